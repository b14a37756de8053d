"""How the outcome of a chain stands in the job's row and log."""

from datetime import timedelta
from typing import Final

from cs_config import bounds
from optimizers.candidate import NO_ELIGIBLE_QUEUE
from optimizers.chain import Passage
from optimizers.context import Context
from optimizers.outcome import Done, Failed, Hold
from taskqueue.preparing import Verdict
from taskqueue.states import JobStatus

#: A step may be a plug-in, and hold a job for any time.
_LONGEST: Final = timedelta(seconds=bounds.SECONDS)


def verdict_of(passage: Passage, vo: str, context: Context, matchable: frozenset[str]) -> Verdict:
    """The state that an outcome means, in the words of DIRAC.

    Args:
        passage: What the chain said.
        vo: Of the job, or of all that ask the same.
        context: Options and time.
        matchable: Those of the batch's pools that have an eligible queue.
    """
    outcome = passage.outcome
    if isinstance(outcome, Done):
        return _waiting(passage, outcome, matchable)
    if isinstance(outcome, Hold):
        delay = outcome.delay or timedelta(seconds=context.operations(vo).job_scheduling.hold_time)
        return Verdict(
            status=JobStatus.CHECKING,
            minor_status=passage.step,
            application_status=outcome.reason,
            source=passage.step,
            step=passage.step,
            due_at=context.now + min(delay, _LONGEST),
        )
    return _failed(passage, outcome)


def _waiting(passage: Passage, outcome: Done, matchable: frozenset[str]) -> Verdict:
    candidate = outcome.candidate
    pool = candidate.pool.pool_id if candidate.pool else None
    stuck = pool is not None and pool not in matchable
    return Verdict(
        status=JobStatus.WAITING,
        minor_status=NO_ELIGIBLE_QUEUE if stuck else candidate.minor_status,
        note=f"passed {', '.join(passage.passed)}",
        source=passage.step,
        submit_pool=pool,
        site=candidate.site,
    )


def _failed(passage: Passage, outcome: Failed) -> Verdict:
    return Verdict(
        status=JobStatus.FAILED,
        minor_status=f"{passage.step} optimizer",
        application_status=outcome.reason,
        source=passage.step,
    )
