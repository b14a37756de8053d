"""Part of the lost-job agent: jobs that wait long give up what their rules, or those of their VO, name.

Without a job or a VO that has rules (`Relax`) it does nothing. The new descriptions are planned without a
lock; a step is made in a transaction that holds the rows of the waiting jobs and measures their times again.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, Engine

from agents import retries
from agents.leader import Leadership
from agents.waiting.waiting_pass import WaitingPass
from cs_config.options import bounds, relax_rules
from cs_config.options.operations import options_for
from cs_config.options.relax_rules import RELAX
from cs_config.tree.configuration import Configuration
from optimizers.submit.relaxing import RelaxPlan
from taskqueue.db import database
from taskqueue.jobs import descriptions, jobs, relaxing, waiting_ttl
from taskqueue.leases.uptime import Uptime

#: Waiting jobs in one page, which the database searches, pages in a cycle, and jobs that are enough for one.
_PAGE: Final = 2000
_PAGES: Final = 25
_ENOUGH: Final = 1000


def list_ruled(engine: Engine, config: Configuration, vos: Collection[str]) -> Collection[str]:
    """The VOs with such rules; those of single jobs may be of any VO."""
    with database.reading(engine) as conn:
        return vos if relaxing.has_own_rules(conn) else list_first(config, vos)


def list_first(config: Configuration, vos: Collection[str]) -> Mapping[str, int]:
    """Seconds of the first rule of the VOs that have rules for all of their jobs."""
    stated = {vo: options_for(config, vo).job_description.filled_in.get(RELAX) for vo in vos}
    return {
        vo: relax_rules.find_first(texts) for vo, texts in stated.items() if isinstance(texts, list) and texts
    }


def relax_waiting(
    leadership: Leadership, config: Configuration, vos: Collection[str], up: Uptime, memory: WaitingPass
) -> int:
    """Look at the next waiting jobs, and let those that waited long enough give something up; how many."""
    first, now = list_first(config, vos), leadership.now
    if not memory.is_due(now):
        return 0
    with database.reading(leadership.engine) as conn:
        if not first and not relaxing.has_own_rules(conn):
            memory.after = 0
            return 0
    relaxed = 0
    for _ in range(_PAGES):
        with database.reading(leadership.engine) as conn:
            page = relaxing.read_page(
                conn, first, shortest=bounds.RELAX_AFTER, after=memory.after, most=_PAGE, now=now
            )
            waited = _measure(conn, page.waiting, up, now)
            edited, new = _plan(conn, config, waited, now).list_edits()
        if edited:
            with leadership.writing() as conn:
                relaxed += len(relaxing.relax_jobs(conn, edited, new, page.waiting, waited, up, now=now))
        memory.after = page.last or 0
        if page.last is None or relaxed >= _ENOUGH:
            break
    return relaxed


def _measure(conn: Connection, waiting: Mapping[int, int], up: Uptime, now: datetime) -> Mapping[int, float]:
    """Seconds in which each of some waiting jobs could be matched."""
    times = waiting_ttl.measure(conn, waiting, up, now=now) if waiting else {}
    return {job_id: each.seconds for job_id, each in times.items()}


def _plan(conn: Connection, config: Configuration, waited: Mapping[int, float], now: datetime) -> RelaxPlan:
    plan = RelaxPlan(config=config, has_queue=retries.has_queue, now=now)
    stored = descriptions.read_stored(conn, waited) if waited else {}
    for job in jobs.read_jobs(conn, waited) if waited else ():
        plan.add(job, stored[job.job_id], waited=waited[job.job_id])
    return plan
