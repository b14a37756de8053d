"""Starts and finishes of many pilots in one statement: those that are as most are.

An open attempt of whoever speaks, nobody has killed the job, and it stands where the report expects it. On
PostgreSQL that is one statement with its commit for all that have come in. What is otherwise is left out and
unchanged: said twice, killed, stalled, closed, another's, or in somebody's hands at this moment (so that none
waits here for a lock); `handover` sees to each of those alone.
"""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from taskqueue.handover import Finish
from taskqueue.plain_report_statements import FINISH, START
from taskqueue.single_statements import Server

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A payload is about to run."""

    lease: str
    holder: str | None  #: token subject of who says it; None: it may speak for others


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A payload has ended."""

    lease: str
    holder: str | None
    report: Finish


#: For how long a sign of life is good, by VO; by no name for those that are not known.
LeaseTime = Callable[[str], timedelta]


class Moved(NamedTuple):
    """A job that is where its pilot says."""

    job_id: int
    epoch: int
    vo: str


def start(
    server: Server,
    reports: Sequence[Started],
    *,
    vos: Iterable[str],
    lease_time: LeaseTime,
    now: datetime,
) -> list[Moved | None]:
    """The jobs are Running; None: that report is not plain, and nothing was changed for it.

    Args:
        server: PostgreSQL.
        reports: Any number.
        vos: That are known.
        lease_time: For how long a sign of life is good, by VO; by no name for those that are not known.
        now: The time.
    """
    said = [_said(number, each.lease, each.holder) for number, each in enumerate(reports)]
    values = {"said": json.dumps(said), "expiry": expiry(vos, lease_time, now), "now": now.isoformat()}
    return _moved(len(reports), server.rows(START.text, START.values(values)))


def finish(server: Server, reports: Sequence[Finished], *, now: datetime) -> list[Moved | None]:
    """The jobs are Done or Failed and their attempts closed; None: as of `start`."""
    said = [
        {**_said(number, each.lease, each.holder), **_ended(each.report)}
        for number, each in enumerate(reports)
    ]
    values = {"said": json.dumps(said), "now": now.isoformat()}
    return _moved(len(reports), server.rows(FINISH.text, FINISH.values(values)))


def expiry(vos: Iterable[str], lease_time: LeaseTime, now: datetime) -> str:
    """Until when a lease is good of which something is heard now, by VO: what the statements take.

    A VO whose lease has a length that no date can bear has the lease of those that are not known.
    """
    found = {"": (now + lease_time("")).isoformat()}
    for vo in vos:
        try:
            found[vo] = (now + lease_time(vo)).isoformat()
        except (OverflowError, ValueError) as error:
            log.warning("the lease time of the VO %s cannot be added to a date: %s", vo, error)
    return json.dumps(found)


def _said(number: int, lease: str, holder: str | None) -> dict[str, object]:
    return {"number": number, "lease": lease, "holder": holder}


def _ended(report: Finish) -> dict[str, object]:
    return {
        "status": report.status,
        "minor_status": report.minor_status_kept,
        "application_status": report.application_status,
        "request": report.as_json(),
        "exit_code": report.exit_code,
    }


def _moved(count: int, rows: Iterable[Sequence[Any]]) -> list[Moved | None]:
    found: list[Moved | None] = [None] * count
    for number, job_id, epoch, vo in rows:
        found[number] = Moved(job_id=job_id, epoch=epoch, vo=vo)
    return found
