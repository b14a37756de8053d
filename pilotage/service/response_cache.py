"""Cache of answers that were counted from very many rows, since pages refresh themselves."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

Answer = TypeVar("Answer")

#: Fewest rows of an answer that is cached.
WORTH: Final = 100_000
#: An answer lives one second per this many rows, but no longer than `LONGEST`.
ROWS_A_SECOND: Final = 50_000
LONGEST: Final = timedelta(minutes=1)
#: Cached answers.
MOST: Final = 100


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Answer]):
    answer: Answer
    since: datetime
    until: datetime


class ResponseCache(Generic[Answer]):
    """The last expensive answers of one kind in this process; cheap ones are computed each time.

    Args:
        rows: Returns the number of rows that an answer was counted from.
    """

    def __init__(self, rows: Callable[[Answer], int]) -> None:
        self._rows = rows
        self._entries: dict[Hashable, _Entry[Answer]] = {}

    def get(self, question: Hashable, make: Callable[[], Answer], *, now: datetime) -> Answer:
        """Return the cached answer, at most a minute old (less for fewer rows), or make a new one."""
        entry = self._entries.get(question)
        if entry is not None and entry.since <= now < entry.until:
            return entry.answer
        answer = make()
        if (rows := self._rows(answer)) >= WORTH:
            life = min(timedelta(seconds=rows / ROWS_A_SECOND), LONGEST)
            alive = [(each, kept) for each, kept in list(self._entries.items()) if now < kept.until]
            self._entries = {**dict(alive[1 - MOST :]), question: _Entry(answer, now, now + life)}
        return answer
