"""The sweep: jobs that are due and that nobody rang for, or whose bell was lost.

A job can end the process that looks at it, by a defect in a library written in C for instance. So the sweep
notes which jobs it takes in hand. Those that a dead process had in hand are taken in smaller and smaller
groups, after all others, until the one at fault is alone; it fails, and the others go on.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Engine

from agents import leader
from agents.leader import Leadership
from cs_config.tree.configuration import Configuration
from optimizers.chain import batch
from optimizers.chain.batch import MOST_AT_ONCE, BatchResult, Observer
from optimizers.chain.chain import Step
from taskqueue.db import database
from taskqueue.jobs import optimizer_queue

NAME: Final = "sweep"
#: Jobs that are due no longer than this are probably in a worker's hands.
LAG: Final = timedelta(seconds=3)
#: Batches in one cycle, so that a cycle has an end.
_MOST_BATCHES: Final = 20
#: Jobs in one transaction after so many crashes, and how many are enough for a job that was alone at last.
_AT_ONCE: Final = (MOST_AT_ONCE, 20, 1, 1)
_MOST_CRASHES: Final = len(_AT_ONCE)


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
    steps: Mapping[str, Step] | None = None,
) -> SweepResult | None:
    """Lead jobs through the optimizers that have been due for longer than `lag`; needs no Redis.

    Args:
        engine: The database.
        config: The current configuration.
        now: The time.
        holder: This process, by a name that no other ever has.
        lag: How long to leave jobs to those who were rung.
        observe: Is told the result of every batch.
        steps: Optimizers by name; those that are installed if None.

    Returns:
        None: another process does this now.
    """
    mine = leader.acquire(engine, NAME, holder=holder, now=now)
    if mine is None:
        return None
    total = BatchResult()
    for _ in range(_MOST_BATCHES):
        with database.reading(engine) as conn:
            job_ids = optimizer_queue.list_due(conn, now=now - lag, most=MOST_AT_ONCE)
        if not job_ids:
            break
        result = BatchResult()
        for crashes, some in _group_jobs(engine, job_ids, holder):
            if crashes >= _MOST_CRASHES:
                reason = f"the optimizers crashed {crashes} times when they looked at it"
                result += batch.fail_jobs(engine, config, some, reason=reason, now=now)
                continue
            with _record_trial(mine, some, holder):
                result += batch.optimize(engine, config, some, now=now, observe=observe, steps=steps)
        total += result
        if len(result.left) == len(job_ids):
            break  # all are in other hands
    mine.finish()
    return SweepResult(waiting=len(total.waiting), held=len(total.held), failed=len(total.failed))


def _group_jobs(engine: Engine, job_ids: Sequence[int], holder: str) -> Iterator[tuple[int, Sequence[int]]]:
    """Jobs that are looked at together, with how often a process ended then; the harmless ones first."""
    with database.reading(engine) as conn:
        crashes = optimizer_queue.count_crashes(conn, job_ids, holder=holder)
    alike: defaultdict[int, list[int]] = defaultdict(list)
    for job_id in job_ids:
        alike[min(crashes.get(job_id, 0), _MOST_CRASHES)].append(job_id)
    for times, some in sorted(alike.items()):
        size = _AT_ONCE[min(times, _MOST_CRASHES - 1)]
        for start in range(0, len(some), size):
            yield times, some[start : start + size]


@contextmanager
def _record_trial(mine: Leadership, job_ids: Sequence[int], holder: str) -> Iterator[None]:
    """The jobs are noted as in hand, whatever becomes of this process."""
    with mine.writing() as conn:
        optimizer_queue.begin_trial(conn, job_ids, holder=holder)
    yield
    with mine.writing() as conn:
        optimizer_queue.end_trial(conn, job_ids, holder=holder)
