"""Lifecycle of a lease: records reports of pilots, in any state of the attempt and the job.

All reports of a call are one transaction on the locked attempts and jobs. A repeated `start`, `finish` or
`release` gets the first answer again, since that may have been lost. Every other report after the attempt was
closed gets StaleLease and changes nothing but the job's log, once per kind of report; a lease that never
existed, or that is another pilot's, gets LeaseNotFound.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from cs_config.options.retry_rules import Ending
from requirements.errors import InvalidRequest, PilotageError
from requirements.states import JobStatus, read_status
from taskqueue.db import sql
from taskqueue.errors import IllegalTransition, LeaseNotFound, OutputMissing, StaleLease
from taskqueue.jobs import descriptions, log, transitions, unmatchable
from taskqueue.leases import attempts, expiry, retries
from taskqueue.leases.attempts import Attempt
from taskqueue.leases.reports import (
    SOURCE,
    Decision,
    FinishReport,
    JobState,
    LeaseReport,
    LeaseRules,
    Move,
    NoteReport,
    ReleaseReport,
    ReportAnswer,
    Sender,
)
from taskqueue.leases.retries import FailedAttempt, RetryDecision, RetryPlan, plan_nothing
from taskqueue.task_queues import task_queues

STALE = "Pilot, stale lease"
KILLED_AND_OVER = "The pilot has ended the killed job"

#: The answer to a report, or why it was refused.
ReportOutcome = ReportAnswer | PilotageError


def record(
    conn: Connection,
    reports: Sequence[LeaseReport],
    *,
    rules: LeaseRules,
    retry: RetryPlan = plan_nothing,
    now: datetime,
) -> list[ReportOutcome]:
    """Record reports, of one lease in their order; a refused one changes nothing but the job's log.

    `retry`: what is made of failures.
    """
    outcomes: dict[int, ReportOutcome] = {}
    left = dict(enumerate(reports))
    while left:
        first = {left[number].lease: number for number in reversed(left)}
        some = {number: left.pop(number) for number in sorted(first.values())}
        found = _record_distinct(conn, some.values(), rules, retry, now)
        outcomes |= zip(some, found, strict=True)
    return [outcomes[number] for number in range(len(reports))]


def recall(conn: Connection, lease: str, *, reason: str, now: datetime) -> bool:
    """Return a job whose pilot never received it; False: it was started, or the attempt is closed."""
    locked = attempts.lock_attempts(conn, [lease])
    if not locked:
        raise LeaseNotFound(lease)
    [attempt] = locked
    if attempt.closed_at is not None or attempt.started_at is not None:
        return False
    rules = LeaseRules(lease_time=timedelta(), max_rescheduling=0)
    report = ReleaseReport(lease=lease, sender=Sender(subject=None), reason=reason, is_undelivered=True)
    [outcome] = record(conn, [report], rules=rules, now=now)
    if isinstance(outcome, PilotageError):
        raise outcome
    return True


def _record_distinct(
    conn: Connection,
    reports: Collection[LeaseReport],
    rules: LeaseRules,
    retry: RetryPlan,
    now: datetime,
) -> list[ReportOutcome]:
    """Record reports on different leases."""
    held = _lock(conn, reports, now)
    given_back = {each.lease for each in reports if isinstance(each, ReleaseReport)}
    releases = attempts.count_releases(
        conn, {each.job_id for lease, each in held.items() if lease in given_back and each.started_at is None}
    )
    noted = {
        held[each.lease].job_id
        for each in reports
        if isinstance(each, NoteReport) and each.note.parameters and each.lease in held
    }
    sizes = descriptions.read_parameter_sizes(conn, noted)
    jobs = {
        row.job_id: JobState(
            status=read_status(row.status),
            minor_status=row.minor_status,
            reschedules=row.reschedules,
            releases=releases.get(row.job_id, 0),
            epoch=row.epoch,
            parameters=sizes.get(row.job_id, {}),
        )
        for row in sql.read_batches(conn, transitions.LOCK_JOBS, {each.job_id for each in held.values()})
    }
    for job_id, found in _decide_retries(conn, reports, held, rules, retry).items():
        jobs[job_id] = replace(jobs[job_id], retry=found)
    outcomes: list[ReportOutcome] = []
    decided: list[tuple[Attempt, Decision]] = []
    stale: list[log.LogEntry] = []
    for report in reports:
        attempt = held.get(report.lease)
        if attempt is None:
            outcomes.append(LeaseNotFound(report.lease))
            continue
        job = jobs[attempt.job_id]
        try:
            decision = report.decide(attempt, job, rules, now)
        except StaleLease as refusal:
            stale.append(_note_stale(attempt, job, report.kind, now))
            outcomes.append(refusal)
        except (IllegalTransition, InvalidRequest, OutputMissing) as refusal:
            outcomes.append(refusal)
        else:
            decided.append((attempt, replace(decision, source=report.sender.source)))
            outcomes.append(decision.answer)
    _apply(conn, decided, now)
    log.append_new(conn, stale)
    return outcomes


def _decide_retries(
    conn: Connection,
    reports: Collection[LeaseReport],
    held: Mapping[str, Attempt],
    rules: LeaseRules,
    retry: RetryPlan,
) -> Mapping[int, RetryDecision]:
    """What rules make of the failures that open attempts report."""
    failed = [
        FailedAttempt(
            job_id=attempt.job_id,
            site=attempt.site,
            ram_mb=max(attempt.ram_mb or 0, attempt.peak_ram_mb or 0, each.used.peak_ram_mb or 0) or None,
            ending=Ending(reason=each.result.stored_minor_status, exit_code=each.result.exit_code),
        )
        for each in reports
        if isinstance(each, FinishReport) and each.is_failure
        if (attempt := held.get(each.lease)) is not None and attempt.closed_at is None
    ]
    return retries.decide_retries(conn, failed, retry, ruled_vos=rules.ruled_vos)


def _lock(conn: Connection, reports: Collection[LeaseReport], now: datetime) -> Mapping[str, Attempt]:
    """Lock the attempts, by lease, without those of other holders; lost ones are reopened if possible."""
    # Read before locking: reopening locks the job's rows first.
    seen = {each.lease: each for each in attempts.read_attempts(conn, [each.lease for each in reports])}
    own = [each for each in reports if each.lease in seen and each.sender.may_report(seen[each.lease])]
    leases = [each.lease for each in own]
    resuming = {each.lease for each in own if each.resumes}
    was_lost = {lease for lease in resuming if seen[lease].closed_as == attempts.LOST}
    _resume(conn, [seen[lease] for lease in sorted(was_lost)], now)
    locked = attempts.lock_attempts(conn, leases)
    # Closed as lost between the two statements.
    late = [each for each in locked if each.closed_as == attempts.LOST and each.lease in resuming - was_lost]
    if _resume(conn, late, now):
        locked = attempts.lock_attempts(conn, leases)
    return {each.lease: each for each in locked}


def _resume(conn: Connection, lost: Sequence[Attempt], now: datetime) -> bool:
    resumed = [expiry.resume(conn, each, now=now) for each in lost]
    return any(resumed)


def _apply(conn: Connection, decided: Sequence[tuple[Attempt, Decision]], now: datetime) -> None:
    """Store the decisions: the job's moves, its waiting row, the attempt."""
    rounds = max((len(decision.moves) for _, decision in decided), default=0)
    for number in range(rounds):
        moving: dict[tuple[Move, str], list[int]] = defaultdict(list)
        for attempt, decision in decided:
            if number < len(decision.moves):
                moving[decision.moves[number], decision.source].append(attempt.job_id)
        for (move, source), job_ids in moving.items():
            _move(conn, move, job_ids, now, source=source)
    retried = {attempt.job_id: decision.retry for attempt, decision in decided if decision.retry}
    retries.apply_retries(conn, retried, now=now)
    _store_notes(conn, decided, now)
    ended = [
        attempt.job_id for attempt, decision in decided if attempt.ending and "closed_at" in decision.changes
    ]
    transitions.log_note(conn, ended, minor=KILLED_AND_OVER, source=SOURCE, now=now)
    attempts.store_reported(
        conn, [replace(attempt, **decision.changes) for attempt, decision in decided if decision.changes]
    )


def _store_notes(conn: Connection, decided: Sequence[tuple[Attempt, Decision]], now: datetime) -> None:
    notes = {attempt.job_id: decision.note for attempt, decision in decided if decision.note is not None}
    sources = {attempt.job_id: decision.source for attempt, decision in decided}
    for job_id, note in sorted(notes.items()):
        if (note.minor_status, note.application_status) != (None, None):
            transitions.note_progress(
                conn,
                job_id,
                minor=note.minor_status,
                application=note.application_status,
                source=sources[job_id],
                now=now,
            )
    given = {job_id: note.parameters for job_id, note in notes.items()}
    descriptions.store_parameters(conn, given, now=now)


def _move(conn: Connection, move: Move, job_ids: Collection[int], now: datetime, *, source: str) -> None:
    transitions.move_jobs(
        conn,
        job_ids,
        move.status,
        minor=move.minor,
        application=move.application,
        counts=move.is_counted,
        source=source,
        now=now,
    )
    if move.status is JobStatus.WAITING:
        task_queues.requeue(conn, job_ids, now=now)
        unmatchable.mark_stuck(conn, job_ids, source=SOURCE, now=now)


def _note_stale(attempt: Attempt, job: JobState, kind: str, now: datetime) -> log.LogEntry:
    """A refused report for a closed attempt; nothing else changes."""
    return log.LogEntry(
        job_id=attempt.job_id,
        at=now,
        from_status=job.status,
        to_status=job.status,
        minor_status=f"refused: {kind} of attempt {attempt.epoch}, closed as {attempt.closed_as}",
        source=STALE,
        epoch=attempt.epoch,
    )
