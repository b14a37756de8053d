"""Answers about classes as sets of bits, which outlive the coming of classes: new ones are asked about."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Question = TypeVar("_Question", bound=Hashable)
_Entry = TypeVar("_Entry")

#: Newcomers that are asked about one by one; of more the question is asked anew.
_FEW = 32
#: Newcomers that are listed; after so many all questions are asked anew.
_LISTED = 10_000


class RememberedMasks(Generic[_Question, _Entry]):
    """Of each question the answer, and how many had come when it was given."""

    def __init__(self, most: int) -> None:
        self._most = most  # beyond that we start anew
        self._arrived: list[_Entry] = []
        self._answers: dict[_Question, tuple[int, int]] = {}

    def arrived(self, entry: _Entry) -> None:
        """There is one more to be asked about."""
        if len(self._arrived) >= _LISTED:
            self.clear()
        if self._answers:
            self._arrived.append(entry)

    def clear(self) -> None:
        """Some are gone, and their bits will be given to others."""
        self._answers.clear()
        self._arrived.clear()

    def of(
        self,
        question: _Question,
        evaluate: Callable[[_Question], int],
        fits: Callable[[_Entry], bool],
        *,
        slot: Callable[[_Entry], int],
    ) -> int:
        """The answer for all that have come.

        Args:
            question: What is asked.
            evaluate: Answers for all at once.
            fits: Answers for one, in the same way.
            slot: The number of one's bit.
        """
        mask, seen = self._answers.get(question, (0, -1))
        if seen == len(self._arrived):
            return mask
        if seen >= 0 and len(self._arrived) - seen <= _FEW:
            for entry in self._arrived[seen:]:
                mask |= fits(entry) << slot(entry)
        else:
            mask = evaluate(question)
        if len(self._answers) >= self._most:
            self.clear()
        self._answers[question] = mask, len(self._arrived)
        return mask
