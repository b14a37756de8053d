"""Cache of expensive answers; cheap ones are computed each time.

Pages refresh themselves, and some answers are counted from very many rows.
"""

from collections.abc import Callable, Hashable
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


class ResponseCache(Generic[Answer]):
    """The last expensive answers of one kind in this process."""

    def __init__(self, rows: Callable[[Answer], int]) -> None:
        self._rows = rows  #: number of rows that an answer was counted from
        self._entries: dict[Hashable, tuple[Answer, datetime, datetime]] = {}  #: valid from, and until

    def get(self, question: Hashable, make: Callable[[], Answer], *, now: datetime) -> Answer:
        """Return the cached answer, at most a minute old (less for fewer rows), or make a new one."""
        known, since, until = self._entries.get(question, (None, now, now))
        if known is not None and since <= now < until:
            return known
        answer = make()
        if (rows := self._rows(answer)) >= WORTH:
            life = min(timedelta(seconds=rows / ROWS_A_SECOND), LONGEST)
            alive = [(each, kept) for each, kept in list(self._entries.items()) if now < kept[2]]
            self._entries = {**dict(alive[1 - MOST :]), question: (answer, now, now + life)}
        return answer
