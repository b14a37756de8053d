"""Waiting jobs say whether some queue is eligible for them, as soon as that changes."""

from agents.turn import Turn
from optimizers.candidate import NO_ELIGIBLE_QUEUE, WAITS_FOR_PILOT
from taskqueue import database, pool_refresh, stuck_jobs

_SOURCE = "PoolAgent"


def tell(mine: Turn, resolved_now: frozenset[str]) -> int:
    """Correct the minor status of waiting jobs in pools that were resolved lately.

    A cycle that was killed halfway did not note its end: pools that it resolved are looked at again.

    Args:
        mine: The turn of the pool agent.
        resolved_now: Pools that this cycle has resolved.

    Returns:
        How many jobs were told.
    """
    with database.reading(mine.engine) as conn:
        lately = resolved_now.union(pool_refresh.refreshed_since(conn, mine.last))
        resolved = stuck_jobs.have_queue(conn, lately)
    return sum(
        _tell_pool(mine, pool_id, has_queue=has_queue) for pool_id, has_queue in sorted(resolved.items())
    )


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
