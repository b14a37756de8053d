"""Checks of what every installation has: its processes, configuration, agents, optimizers and counters."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from sqlalchemy import Connection

from agents import leader, scope_counters
from cs_config.editing import reverts
from matcher.explain import stuck_classes
from matcher.limits import compiled_rules
from pilotage import extensions
from pilotage.service.auth.callers import Role
from pilotage.service.problems import certificates, finding
from pilotage.service.problems.finding import CheckScope, Finding, Health
from requirements import canonical
from requirements.errors import format_count, format_time
from requirements.record import Record
from requirements.values import MAX_TEXT, find_excess
from taskqueue.db import agent_leases, log_partitions
from taskqueue.jobs import optimizer_queue, unmatchable
from taskqueue.jobs.optimizer_queue import OptimizerQueueState
from taskqueue.pools import pools
from taskqueue.sites import rule_counters

#: What helps where archives cannot be stored.
STORAGE_REMEDY: Final = "free or add space there, or mount it"
#: Counting of jobs in pools without a queue stops here.
MOST_STUCK = 10_000


#: What helps where a condition for readiness is not met.
_READINESS_REMEDIES: Final = {
    "database": "look at its log, disk and connections",
    "history": "restore what is missing, or start anew (*Lost commits* of When it breaks)",
    "claimer": "restart the process, and report its log",
    "index": "wait a minute; else its log shows why",
    "clock": "set the clock of the host",
}


def check_readiness(_: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Check that the process which answers is ready to serve; `/readyz` has the same answers."""
    for name, state in scope.readiness.items():
        if state != "ok" and name != "configuration":  # it has a check of its own, with the reason
            yield Finding("service", Health.BAD, f"{name}: {state}", _READINESS_REMEDIES[name])


def check_storage(_: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Check that archives can be stored."""
    if fault := scope.find_storage_fault():
        yield Finding("blobs", Health.BAD, fault, STORAGE_REMEDY)


def check_certificate(_: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Check that the certificate of the process that answers does not expire soon."""
    if scope.certificate is not None:
        yield certificates.check_file(scope.certificate, scope.now)


def check_replica(_: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Check that the replica, if there is one, is read."""
    if scope.is_replica_used is False:
        yield describe_unused_replica("is away or late")


def describe_unused_replica(problem: str) -> Finding:
    """The finding about a replica with a problem."""
    message = f"{problem}; the primary is read instead"
    return Finding("replica", Health.WARNING, message, "start it, or mend the replication")


def check_configuration(_: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Check that the newest version is in use, has queues, and no probable mistakes."""
    subject, config = "configuration", scope.config
    if scope.configuration_fault is not None:
        remedy = "`pilotage config rollback`, or upgrade what cannot read it"
        yield Finding(subject, Health.BAD, scope.configuration_fault, remedy)
        return
    if not config.addresses:
        message = f"version {config.version} has no queue" if config.version else "none yet"
        how = "`pilotage up --resources FILE` or `pilotage config apply FILE`"
        yield Finding(subject, Health.WARNING, f"{message}, so that nothing can run", how)
        return
    message = f"version {config.version}, {format_count(len(config.addresses), 'queue')}"
    if not config.warnings:
        yield Finding(subject, Health.GOOD, message)
        return
    number = format_count(len(config.warnings), "probable mistake")
    message = f"{message}, {number}, such as {config.warnings[0]}"
    yield Finding(subject, Health.WARNING, message, "`pilotage config check` lists those of a file")


def check_reverts(conn: Connection, _: CheckScope) -> Iterator[Finding]:
    """Check that temporary changes of the configuration end."""
    subject, found = "temporary changes", reverts.list_reverts(conn)
    for each in found:
        if each.problem:
            message = f"{each.path} of version {each.version} cannot be restored: {each.problem}"
            yield Finding(subject, Health.WARNING, message, "`pilotage config set` it by hand")
    if found and not any(each.problem for each in found):
        message = f"values that will be restored: {len(found)}; `pilotage config temporary` lists them"
        yield Finding(subject, Health.GOOD, message)


def check_agents(conn: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Check that every agent runs (one added by a release is easily forgotten), and for all VOs."""
    subject, latest = "agents", agent_leases.list_last_cycles(conn)
    expected = extensions.list_intervals(leader.INTERVALS, with_optional=False)
    if missing := leader.list_overdue(latest, expected, now=scope.now):
        message = f"nobody runs {', '.join(missing)} now"
        yield Finding(subject, Health.WARNING, message, "`pilotage agent all`, or `pilotage up`, does")
        return
    if failed := [
        f"{name} for {', '.join(vos)}" for name, vos in agent_leases.list_broken(conn).items() if vos
    ]:
        yield Finding(subject, Health.WARNING, f"failed: {'; '.join(failed)}", "their log shows why")
        return
    known = extensions.list_intervals(leader.INTERVALS, with_optional=True)
    silent = leader.list_overdue(latest, known, now=scope.now)
    yield Finding(subject, Health.GOOD, f"at work: {', '.join(name for name in known if name not in silent)}")


def check_log_partitions(conn: Connection, _: CheckScope) -> Iterator[Finding]:
    """Check that the job log, if it is in partitions, has some for the days to come."""
    subject, layout = "job log", log_partitions.read_layout(conn)
    if layout.is_full:
        message = "no partition is left: new rows go to the rest, whose rows are deleted one by one later"
        remedy = "`pilotage agent retention`, or `pilotage agent all`, makes partitions"
        yield Finding(subject, Health.BAD, message, remedy)
    elif layout.is_bounded:
        message = "it is being put into partitions; if that was killed, it will refuse new rows in some days"
        remedy = "`pilotage agent retention` removes what is left, `pilotage db partition` begins again"
        yield Finding(subject, Health.WARNING, message, remedy)
    else:
        yield Finding(subject, Health.GOOD, layout.describe())


def check_optimizers(_: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Check that Redis answers, that workers listen, and that no batch failed."""
    if scope.optimizers is not None:
        yield from describe_optimizers(scope.optimizers)


def describe_optimizers(state: OptimizerQueueState) -> Iterator[Finding]:
    """Findings about the queue of the optimizers."""
    if state.problem is not None:
        message = f"does not answer; jobs wait for the sweep: {state.problem}"
        yield Finding("redis", Health.BAD, message, "start it, or correct `redis_url`")
        return
    yield Finding("redis", Health.GOOD, "answers")
    waiting = format_count(state.waiting, "batch of jobs waits", "batches of jobs wait")
    numbers = f"{waiting}, {state.failed} failed in the last hour"
    if not state.is_heard:
        message = f"no worker listens: {numbers}, jobs wait for the sweep"
        yield Finding("workers", Health.WARNING, message, "run `pilotage worker`")
        return
    health = Health.WARNING if state.failed else Health.GOOD
    remedy = "the log of `pilotage worker` shows why" if state.failed else ""
    yield Finding("workers", health, f"{state.workers} listen; {numbers}", remedy)


def check_counters(conn: Connection, _: CheckScope) -> Iterator[Finding]:
    """Compare the counters of limits with what runs."""
    if found := rule_counters.list_differences(conn, compiled_rules.counts):
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        message = f"{scope_counters.describe(found[0])}{more}"
        yield Finding("counters", Health.BAD, message, f"the agent {scope_counters.NAME} mends it")
    elif mended := rule_counters.count_mended(conn):
        counters = format_count(mended, "counter was", "counters were")
        message = f"limits count what runs; {counters} mended so far"
        yield Finding("counters", Health.WARNING, message, "report it if that goes on")
    else:
        yield Finding("counters", Health.GOOD, "limits count what runs")


def check_requirements(conn: Connection, _: CheckScope) -> Iterator[Finding]:
    """Look for required values that were stored before they had bounds: no queue fulfils them."""
    stored = pools.list_long_requirements(conn, characters=MAX_TEXT)
    messages = [
        f"of pool {pool_id[:12]}, {name} {excess}: its jobs are eligible nowhere"
        for pool_id, original in stored
        if isinstance(required := canonical.from_json(original), Record)
        for name, value in required.values
        if (excess := find_excess(value))
    ]
    yield from finding.list_first(
        "requirements",
        Health.WARNING,
        messages,
        "further values that are too long",
        "their owners shorten them",
    )


def check_eligible_queues(conn: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Look for waiting jobs for which no queue is eligible: by their Requirements alone, or with all else."""
    subject, vos = "eligible queues", scope.caller.visible_vos
    # A user's list has the own jobs only, these numbers those of the VO.
    may_list = scope.caller.is_operator or scope.caller.within({Role.VO_ADMIN}) is not None
    stuck = unmatchable.list_stuck_pools(conn, vos)
    if jobs := unmatchable.count_waiting_jobs(conn, stuck, most=MOST_STUCK):
        where = f"{format_count(len(stuck), 'SubmitPool')} without an eligible queue"
        yield Finding(
            subject,
            Health.WARNING,
            f"{_count_waiting(jobs)} in {where}",
            "`pilotage job explain ID` shows what would help",
            "/jobs?status=Waiting&minor_status=No+eligible+queue" if may_list else "",
            tuple(sorted(set(stuck.values()))),
        )
    found = stuck_classes.find_stuck(conn, scope.config, vos, without_pools=frozenset(stuck), most=MOST_STUCK)
    if found is not None:
        classes = format_count(found.classes, "requirement class", "requirement classes")
        yield Finding(
            subject,
            Health.WARNING,
            f"{_count_waiting(found.jobs)} in {classes}, such as job {found.first_job}: {found.why}",
            f"`pilotage job explain {found.first_job}` shows what would help",
            f"/jobs/{found.first_job}/why" if may_list else "",
            tuple(sorted(found.vos)),
        )


def _count_waiting(jobs: int) -> str:
    if jobs == MOST_STUCK:
        return f"{MOST_STUCK:,} or more jobs wait"
    return format_count(jobs, "job waits", "jobs wait")


#: Time after which jobs that are due for the optimizers are late: the sweep looks every few seconds.
_LATE: Final = timedelta(minutes=2)


def check_due_jobs(conn: Connection, scope: CheckScope) -> Iterator[Finding]:
    """Look for jobs that the optimizers should have prepared, as where none runs and Redis is away."""
    if late := optimizer_queue.find_late(conn, before=scope.now - _LATE, most=MOST_STUCK):
        number = f"{MOST_STUCK:,} or more jobs" if late.jobs == MOST_STUCK else format_count(late.jobs, "job")
        verb = "is" if late.jobs == 1 else "are"
        yield Finding(
            "optimizers",
            Health.WARNING,
            f"{number} {verb} not prepared, due since {format_time(late.since)}: no optimizer takes them",
            "run `pilotage worker`, or `pilotage agent all`, whose sweep takes them without Redis",
        )
