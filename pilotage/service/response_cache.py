"""Answers that took a walk along very many rows, given again for a while: pages refresh themselves."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

Answer = TypeVar("Answer")

#: Rows of an answer that is worth to be remembered.
WORTH: Final = 100_000
#: So many rows let it live for one second, but no longer than this.
ROWS_A_SECOND: Final = 50_000
LONGEST: Final = timedelta(minutes=1)
#: Questions whose answers are kept.
MOST: Final = 100


@dataclass(frozen=True, slots=True)
class _Known(Generic[Answer]):
    answer: Answer
    since: datetime
    until: datetime


class ResponseCache(Generic[Answer]):
    """The last answers of one kind, in this process; what was quick to count is counted anew each time."""

    def __init__(self, rows: Callable[[Answer], int]) -> None:
        """Remember nothing yet.

        Args:
            rows: How many rows an answer was counted from.
        """
        self._rows = rows
        self._known: dict[Hashable, _Known[Answer]] = {}

    def get(self, question: Hashable, make: Callable[[], Answer], *, now: datetime) -> Answer:
        """The answer as of now, or of some time ago that grows with the rows: a minute at most."""
        known = self._known.get(question)
        if known is not None and known.since <= now < known.until:
            return known.answer
        answer = make()
        if (rows := self._rows(answer)) >= WORTH:
            life = min(timedelta(seconds=rows / ROWS_A_SECOND), LONGEST)
            alive = [(each, kept) for each, kept in list(self._known.items()) if now < kept.until]
            self._known = {**dict(alive[1 - MOST :]), question: _Known(answer, now, now + life)}
        return answer
