"""Depth agent: samples how many waiting jobs each site and queue could run."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Engine

from agents import leader
from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions, queue_report
from taskqueue import ownership
from taskqueue.accounting import depths
from taskqueue.accounting.depths import QueueDepth
from taskqueue.db import database
from taskqueue.task_queues import listing

NAME: Final = "depths"


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthsResult:
    """Number of places in the sample; 0: none was due."""

    sampled: int = 0

    def __bool__(self) -> bool:
        return False  # routine: not worth a line in the log


def cycle(engine: Engine, config: Configuration, *, now: datetime, holder: str) -> DepthsResult | None:
    """Store the sample that is due, if it is not stored; None while another process is the leader."""
    with leader.lead(engine, NAME, holder=holder, now=now) as leadership:
        if leadership is None:
            return None
        at = depths.truncate(now)
        with database.reading(engine) as conn:
            latest = depths.read_latest(conn)
            vos = sorted(ownership.list_vos(conn))
        if latest == at:
            return DepthsResult()
        counted = leadership.serve_each(vos, lambda vo: list(_count(engine, config, vo)))
        found = [each for of_vo in counted.values() for each in of_vo]
        with leadership.writing() as conn:
            depths.store_sample(conn, at, found)
        return DepthsResult(sampled=len(found))


def _count(engine: Engine, config: Configuration, vo: str) -> Iterator[QueueDepth]:
    with database.reading(engine) as conn:
        waiting = listing.list_waiting(conn, {vo})
        ads = job_conditions.read_job_ads(conn, config, waiting, needed=config.has_admission)
    runnable = queue_report.count_runnable(config, waiting, ads)
    for site, jobs in runnable.by_site.items():
        yield QueueDepth(site=site, queue=depths.ALL, vo=vo, jobs=jobs)
        for address, number in runnable.count_by_queue(site).items():
            yield QueueDepth(site=site, queue=f"{address.ce}/{address.queue}", vo=vo, jobs=number)
