"""Waiting jobs say whether some queue is eligible for them, as soon as that changes."""

from agents.turn import Turn
from optimizers.candidate import NO_ELIGIBLE_QUEUE, WAITS_FOR_PILOT
from taskqueue import database, pool_refresh, stuck_jobs

_SOURCE = "PoolAgent"


def untold(mine: Turn) -> frozenset[str]:
    """Pools resolved since the last cycle that noted its end: a killed one may not have told their jobs.

    Asked before the cycle resolves any itself.
    """
    with database.reading(mine.engine) as conn:
        return frozenset(pool_refresh.refreshed_since(conn, mine.last))


def tell(mine: Turn, pool_ids: frozenset[str]) -> int:
    """Correct the minor status of waiting jobs in pools that may have eligible queues now, or no more.

    Returns:
        How many jobs were told.
    """
    with database.reading(mine.engine) as conn:
        resolved = stuck_jobs.have_queue(conn, pool_ids)
        wrong = {
            pool_id: has_queue
            for has_queue in (True, False)
            for pool_id in stuck_jobs.pools_with(
                conn,
                [pool_id for pool_id, has in resolved.items() if has is has_queue],
                NO_ELIGIBLE_QUEUE,
                saying=has_queue,
            )
        }
    return sum(_tell_pool(mine, pool_id, has_queue=has_queue) for pool_id, has_queue in sorted(wrong.items()))


def _tell_pool(mine: Turn, pool_id: str, *, has_queue: bool) -> int:
    right = WAITS_FOR_PILOT if has_queue else NO_ELIGIBLE_QUEUE
    told = after = 0
    while True:
        with database.reading(mine.engine) as conn:
            job_ids = stuck_jobs.waiting(conn, pool_id, NO_ELIGIBLE_QUEUE, saying=has_queue, after=after)
        if not job_ids:
            return told
        with mine.writing() as conn:
            # Another refresh may have come in between.
            if stuck_jobs.have_queue(conn, [pool_id]).get(pool_id) is not has_queue:
                return told
            told += stuck_jobs.say(conn, job_ids, right, source=_SOURCE, now=mine.now)
        after = job_ids[-1]
