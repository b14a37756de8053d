"""The sweep: jobs that are due and that nobody rang for, or whose bell was lost."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Engine

from agents import turn
from cs_config.configuration import Configuration
from optimizers import batch
from optimizers.batch import MOST_AT_ONCE, BatchResult, Observer
from taskqueue import database, preparing

NAME: Final = "sweep"
#: Jobs that are due no longer than this are probably in a worker's hands.
LAG: Final = timedelta(seconds=3)
#: Batches in one cycle, so that a cycle has an end.
_MOST_BATCHES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What a cycle did."""

    waiting: int = 0
    held: int = 0
    failed: int = 0

    def __bool__(self) -> bool:
        return bool(self.waiting or self.held or self.failed)


def cycle(
    engine: Engine,
    config: Configuration,
    *,
    now: datetime,
    holder: str,
    lag: timedelta = LAG,
    observe: Observer | None = None,
) -> SweepResult | None:
    """Lead jobs through the optimizers that have been due for longer than `lag`; needs no Redis.

    Args:
        engine: The database.
        config: The current configuration.
        now: The time.
        holder: This process, by a name that no other ever has.
        lag: How long to leave jobs to those who were rung.
        observe: Is told the result of every batch.

    Returns:
        None: another process does this now.
    """
    mine = turn.take(engine, NAME, holder=holder, now=now)
    if mine is None:
        return None
    total = BatchResult()
    for _ in range(_MOST_BATCHES):
        with database.reading(engine) as conn:
            job_ids = preparing.due(conn, now=now - lag, most=MOST_AT_ONCE)
        if not job_ids:
            break
        result = batch.optimize(engine, config, job_ids, now=now, observe=observe)
        total += result
        if len(result.left) == len(job_ids):
            break  # all are in other hands
    mine.finish()
    return SweepResult(waiting=len(total.waiting), held=len(total.held), failed=len(total.failed))
