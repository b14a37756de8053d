"""The states of a job in time, as a line of spans."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from taskqueue.log import LogEntry
from taskqueue.states import FINAL, JobStatus

#: Part of the line that even the shortest span has, so that it can be seen.
_LEAST = 0.02
#: Part from which there is room for its name.
_ROOM = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A time in one status."""

    status: JobStatus
    since: datetime
    lasted: timedelta | None  #: None: it has ended there
    minors: Sequence[str]  #: the minor statuses that it had, in order
    epoch: int  #: the attempt at its end
    is_new_attempt: bool  #: another pilot than before
    x: float  #: where it begins, in percent of the line
    width: float  #: in percent; longer than its part in time if that could not be seen

    @property
    def has_room(self) -> bool:
        """Whether its name fits into it."""
        return self.width >= 100 * _ROOM


def spans(entries: Sequence[LogEntry], *, now: datetime) -> list[Span]:
    """The line of a job until now; nothing without its log, which retention removes."""
    stays = [list(stay) for _, stay in groupby(entries, key=lambda entry: (entry.to_status, entry.epoch))]
    ends: list[datetime | None] = [stay[0].at for stay in stays[1:]]
    if stays:
        ends.append(None if stays[-1][0].to_status in FINAL else max(now, stays[-1][0].at))
    widths = _widths([_seconds(stay[0].at, end) for stay, end in zip(stays, ends, strict=True)])
    found: list[Span] = []
    for stay, end, width in zip(stays, ends, widths, strict=True):
        before = found[-1] if found else None
        found.append(_span(stay, end, width, before))
    return found


def _span(stay: Sequence[LogEntry], end: datetime | None, width: float, before: Span | None) -> Span:
    first, last = stay[0], stay[-1]
    return Span(
        status=first.to_status,
        since=first.at,
        lasted=None if end is None else end - first.at,
        minors=list(dict.fromkeys(entry.minor_status for entry in stay if entry.minor_status)),
        epoch=last.epoch,
        is_new_attempt=last.epoch > (before.epoch if before else 0),
        x=round(before.x + before.width, 3) if before else 0.0,
        width=round(100 * width, 3),
    )


def _seconds(since: datetime, end: datetime | None) -> float:
    return 0.0 if end is None else max(0.0, (end - since).total_seconds())


def _widths(seconds: Sequence[float]) -> list[float]:
    """Parts of the line, each at least as wide as can be seen; in sum one."""
    total = sum(seconds)
    parts = [max(_LEAST, each / total if total else 0.0) for each in seconds]
    return [each / sum(parts) for each in parts]
