"""How long a job waited, by cause: computed from its log, so it costs nothing while it waits."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from taskqueue.log import LogEntry
from taskqueue.states import FINAL, JobStatus

#: Minor status of waiting jobs that no queue is eligible for.
_STUCK = "No eligible queue"

#: What a job waits for in each status, but Waiting, which has two causes.
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


def by_cause(log: Sequence[LogEntry], *, now: datetime) -> dict[str, float]:
    """Seconds by what the job waited for; the time in which it ran is no waiting.

    Args:
        log: All changes of its status, in order.
        now: Until when a job that is not final waits.
    """
    spent: defaultdict[str, float] = defaultdict(float)
    ends = [*(entry.at for entry in log[1:]), now][: len(log)]
    for entry, end in zip(log, ends, strict=True):
        cause = _cause(entry)
        if cause is not None:
            spent[cause] += max(0.0, (end - entry.at).total_seconds())
    return {cause: round(seconds, 3) for cause, seconds in sorted(spent.items(), key=lambda each: -each[1])}


def _cause(entry: LogEntry) -> str | None:
    if entry.to_status in FINAL:
        return None
    if entry.to_status is JobStatus.WAITING:
        return "no eligible queue" if entry.minor_status == _STUCK else "a pilot"
    return _CAUSES.get(entry.to_status)
