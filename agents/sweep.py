"""Sweep agent: runs the optimizers for due jobs whose notification was missed or never sent.

A job can crash the process that optimizes it, for instance by a defect in a C library. So the sweep records
which jobs it is about to optimize. Jobs that a dead process had recorded are retried after all others, in
smaller and smaller groups, until the one at fault is alone; it fails, and the others continue.
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
from requirements.errors import format_count
from taskqueue.db import database
from taskqueue.jobs import optimizer_queue

NAME: Final = "sweep"
#: Jobs that have been due for less than this are probably being optimized by a worker.
LAG: Final = timedelta(seconds=3)
#: Batches per cycle, so that a cycle ends.
_MOST_BATCHES: Final = 20
#: Jobs in one transaction, by number of crashes; after the last one, alone in its transaction, a job fails.
_AT_ONCE: Final = (MOST_AT_ONCE, 20, 1, 1)
_MOST_CRASHES: Final = len(_AT_ONCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Numbers of jobs by their new state."""

    waiting: int = 0
    held: int = 0
    failed: int = 0

    def __bool__(self) -> bool:
        return self != SweepResult()


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
    """Optimize jobs that have been due for longer than `lag`; None while another process is the leader.

    `lag` is the time left to the workers that were notified. `observe` receives the result of every batch;
    `steps` are the optimizers by name (None: the installed ones).
    """
    with leader.lead(engine, NAME, holder=holder, now=now) as leadership:
        if leadership is None:
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
                    reason = f"the optimizers crashed {format_count(crashes, 'time')} on this job"
                    result += batch.fail_jobs(engine, config, some, reason=reason, now=now)
                    continue
                with _record_trial(leadership, some, holder):
                    result += batch.optimize(engine, config, some, now=now, observe=observe, steps=steps)
            total += result
            if len(result.left) == len(job_ids):
                break  # other workers hold them all
        return SweepResult(waiting=len(total.waiting), held=len(total.held), failed=len(total.failed))


def _group_jobs(engine: Engine, job_ids: Sequence[int], holder: str) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield groups of jobs to optimize together, with their number of crashes; jobs without crashes first."""
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
def _record_trial(leadership: Leadership, job_ids: Sequence[int], holder: str) -> Iterator[None]:
    """Record the jobs as being optimized, so that a crash of this process can be attributed to them."""
    with leadership.writing() as conn:
        optimizer_queue.begin_trial(conn, job_ids, holder=holder)
    yield
    with leadership.writing() as conn:
        optimizer_queue.end_trial(conn, job_ids, holder=holder)
