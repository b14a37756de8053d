"""Part of the lost-job agent: fails jobs that wait for a match longer than their VO and they allow.

Without a VO that sets `JobScheduling/WaitingTTL` it does nothing. Only who holds the row of a job fails it.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from agents.leader import Leadership
from agents.waiting.waiting_pass import WaitingPass
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from matcher.explain import waiting_reason
from taskqueue.db import database
from taskqueue.jobs import waiting_ttl
from taskqueue.jobs.waiting_ttl import MatchableTime, WaitingJob, WaitingReason
from taskqueue.leases.uptime import Uptime

#: Waiting jobs in one page, and pages in a cycle.
_PAGE: Final = 1000
_PAGES: Final = 5


def list_ttls(config: Configuration, vos: Collection[str]) -> Mapping[str, float]:
    """Seconds that jobs may wait, of the VOs that have set it."""
    ttls = {vo: options_for(config, vo).job_scheduling.waiting_ttl for vo in vos}
    return {vo: ttl for vo, ttl in ttls.items() if ttl}


def fail_unmatched(
    leadership: Leadership,
    config: Configuration,
    vos: Collection[str],
    up: Uptime,
    memory: WaitingPass,
) -> int:
    """Look at the next waiting jobs, and fail those whose time is over; how many."""
    now = leadership.now
    ttls = list_ttls(config, vos)
    if not ttls or not memory.is_due(now):
        return 0
    failed = 0
    for _ in range(_PAGES):
        with database.reading(leadership.engine) as conn:
            page = waiting_ttl.read_page(conn, ttls, after=memory.after, most=_PAGE, now=now)
            expired, reasons = _judge(conn, config, page.jobs, up, now)
        if expired:
            with leadership.writing() as conn:
                failed += len(waiting_ttl.fail_unmatched(conn, expired, reasons, up, now=now))
        memory.after = page.last or 0
        if page.last is None:
            break
    return failed


def _judge(
    conn: Connection, config: Configuration, waiting: Sequence[WaitingJob], up: Uptime, now: datetime
) -> tuple[list[WaitingJob], Mapping[int, WaitingReason]]:
    """The jobs whose time is over, and the reason for each of their task queues.

    Those that the configuration or a ban keeps are left out: that is no fault of theirs.
    """
    times = waiting_ttl.measure(conn, {each.job_id: each.task_queue_id for each in waiting}, up, now=now)
    over: defaultdict[int, list[WaitingJob]] = defaultdict(list)
    for each in waiting:
        if times[each.job_id].seconds >= each.ttl:
            over[each.task_queue_id].append(each)
    reasons: dict[int, WaitingReason] = {}
    for task_queue_id, alike in over.items():
        cause = _find_main_cause([times[each.job_id] for each in alike])
        reason = waiting_reason.find_reason(conn, config, alike[0].job_id, task_queue_id, cause, now)
        if reason is not None:
            reasons[task_queue_id] = reason
    return [each for task_queue_id in reasons for each in over[task_queue_id]], reasons


def _find_main_cause(times: Sequence[MatchableTime]) -> str:
    """The cause that kept some jobs longest, together."""
    causes: Counter[str] = Counter()
    for each in times:
        causes.update(each.causes)
    return max(sorted(causes), key=causes.__getitem__)
