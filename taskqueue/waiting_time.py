"""How long a job waited, by cause: computed from its log, so it costs nothing while it waits."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from taskqueue.hindrances import ORDER, Hindrance
from taskqueue.log import LogEntry
from taskqueue.states import FINAL, JobStatus

#: Minor status of waiting jobs that no queue is eligible for.
_STUCK = "No eligible queue"

#: What a waiting job waits for while nothing is known to keep it from the pilots that ask.
_PILOT = "a pilot"

#: What a job waits for in each status, but Waiting, which has several causes.
_CAUSES: Mapping[JobStatus, str] = {
    JobStatus.SUBMITTING: "confirmation",
    JobStatus.RECEIVED: "optimizers",
    JobStatus.CHECKING: "held by an optimizer",
    JobStatus.SCOUTING: "scout jobs",
    JobStatus.STAGING: "input data",
    JobStatus.RESCHEDULED: "optimizers",
    JobStatus.MATCHED: "start of the pilot's job",
    JobStatus.STALLED: "silent pilot",
}


def by_cause(
    log: Sequence[LogEntry], *, now: datetime, hindrances: Sequence[Hindrance] = ()
) -> dict[str, float]:
    """Seconds by what the job waited for; the time in which it ran is no waiting.

    Args:
        log: All changes of its status, in order.
        now: Until when a job that is not final waits.
        hindrances: What kept its task queue's jobs from pilots meanwhile.
    """
    spent: defaultdict[str, float] = defaultdict(float)
    ends = [*(entry.at for entry in log[1:]), now][: len(log)]
    for entry, end in zip(log, ends, strict=True):
        cause = _cause(entry)
        if cause == _PILOT:
            for hindered_by, seconds in split(entry.at, end, hindrances).items():
                spent[hindered_by] += seconds
        elif cause is not None:
            spent[cause] += max(0.0, (end - entry.at).total_seconds())
    return {cause: round(seconds, 3) for cause, seconds in sorted(spent.items(), key=lambda each: -each[1])}


def split(since: datetime, until: datetime, hindrances: Iterable[Hindrance]) -> dict[str, float]:
    """Seconds of a time of waiting by what kept the job from pilots; the rest it waited for one.

    Of several at once the first in `hindrances.ORDER` counts, so the parts sum to the whole.
    """
    changes: list[tuple[datetime, str, int]] = []
    for each in hindrances:
        begins, ends = max(each.since, since), min(each.until, until)
        if begins < ends:
            changes += [(begins, each.cause, 1), (ends, each.cause, -1)]
    spent: defaultdict[str, float] = defaultdict(float)
    holding: Counter[str] = Counter()
    last = since
    for at, cause, step in [*sorted(changes), (max(since, until), _PILOT, 0)]:
        if at > last or not changes:
            spent[_first(holding)] += (at - last).total_seconds()
        holding[cause] += step
        last = at
    return dict(spent)


def _first(holding: Mapping[str, int]) -> str:
    return next((cause for cause in ORDER if holding[cause] > 0), _PILOT)


def _cause(entry: LogEntry) -> str | None:
    if entry.to_status in FINAL:
        return None
    if entry.to_status is JobStatus.WAITING:
        return "no eligible queue" if entry.minor_status == _STUCK else _PILOT
    return _CAUSES.get(entry.to_status)
