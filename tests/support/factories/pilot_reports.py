"""Reports of pilots, one in a transaction, as the lifecycle records them."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from requirements.errors import PilotageError
from taskqueue.leases import expiry, lifecycle
from taskqueue.leases.reports import (
    NO_PROGRESS,
    FinishReport,
    HeartbeatReport,
    LeaseReport,
    LeaseRules,
    Note,
    NoteReport,
    OutputReport,
    PayloadResult,
    Progress,
    ReleaseReport,
    ReportAnswer,
    Sender,
    StartReport,
)
from tests.support.transactions import own_transaction

ANYBODY = Sender(subject=None)


def rules(lease_time: timedelta = timedelta(minutes=5), maximum: int = 3, **of_vos: timedelta) -> LeaseRules:
    """Rules for all VOs, with the lease times of some."""
    return LeaseRules(lease_time=lease_time, max_rescheduling=maximum, lease_times=of_vos)


@own_transaction
def record(
    conn: Connection, report: LeaseReport, now: datetime, which: LeaseRules | None = None
) -> ReportAnswer:
    """The answer; raises the error if it is refused."""
    [outcome] = lifecycle.record(conn, [report], rules=which or rules(), now=now)
    if isinstance(outcome, PilotageError):
        raise outcome
    return outcome


@own_transaction
def start(conn: Connection, lease: str, *, lease_time: timedelta, now: datetime) -> dict[str, Any]:
    answer = record(conn, StartReport(lease=lease, sender=ANYBODY), now, rules(lease_time))
    return {"job_id": answer.job_id, "epoch": answer.epoch, "commands": _commands(answer)}


@own_transaction
def heartbeat(
    conn: Connection, lease: str, *, said: Progress = NO_PROGRESS, lease_time: timedelta, now: datetime
) -> dict[str, Any]:
    report = HeartbeatReport(lease=lease, sender=ANYBODY, progress=said)
    return {"commands": _commands(record(conn, report, now, rules(lease_time)))}


@own_transaction
def finish(conn: Connection, lease: str, report: PayloadResult, *, now: datetime) -> Mapping[str, Any]:
    return _ended(record(conn, FinishReport(lease=lease, sender=ANYBODY, result=report), now))


def note(conn: Connection, lease: str, note: Note, *, now: datetime) -> ReportAnswer:
    return record(conn, NoteReport(lease=lease, sender=ANYBODY, note=note), now)


@own_transaction
def release(
    conn: Connection,
    lease: str,
    *,
    reason: str,
    max_rescheduling: int,
    now: datetime,
    is_undelivered: bool = False,
) -> Mapping[str, Any]:
    report = ReleaseReport(lease=lease, sender=ANYBODY, reason=reason, is_undelivered=is_undelivered)
    return _ended(record(conn, report, now, rules(maximum=max_rescheduling)))


@own_transaction
def store_output(conn: Connection, lease: str, digest: str, *, now: datetime) -> None:
    record(conn, OutputReport(lease=lease, sender=ANYBODY, digest=digest), now)


def _ended(answer: ReportAnswer) -> Mapping[str, Any]:
    return {"job_id": answer.job_id, "epoch": answer.epoch, "status": answer.status}


def _commands(answer: ReportAnswer) -> list[str]:
    return ["kill"] if answer.ending else []


@own_transaction
def give_up(
    conn: Connection,
    vo: str,
    *,
    now: datetime,
    stalled_since: datetime | None = None,
    max_rescheduling: int = 3,
) -> tuple[list[int], list[int]]:
    """Give up the Stalled jobs of a VO whose pilots are silent since now, or as `stalled_since` says."""
    since = {vo: stalled_since or now}
    return expiry.give_up_stalled(
        conn,
        silent_since={vo: now},
        stalled_since=since,
        ended_since=since,
        max_rescheduling={vo: max_rescheduling},
        now=now,
    )
