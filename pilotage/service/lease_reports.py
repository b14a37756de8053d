"""Lease reports of pilots: one transaction records all that arrived meanwhile."""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import anyio.to_thread
from sqlalchemy import Engine

from agents import retries
from cs_config.cache import derived
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from cs_config.versions.store import LiveConfiguration
from pilotage.service import deadline
from pilotage.service.batching import run_in_thread
from requirements.errors import PilotageError
from requirements.states import HELD
from taskqueue.accounting import time_series
from taskqueue.db import database
from taskqueue.db.compiled_sql import AutocommitRunner
from taskqueue.leases import lifecycle, plain_reports
from taskqueue.leases.lifecycle import ReportOutcome
from taskqueue.leases.reports import LeaseReport, LeaseRules, ReportAnswer

log = logging.getLogger(__name__)

#: A lease that is extended until then must end at a date that can be stored.
_LATEST_REPORT = datetime(2200, 1, 1, tzinfo=UTC)
#: Heartbeats a second of the whole installation beyond which they become rarer: a third of a core.
HEARTBEATS = 1000.0
#: Shortest interval in seconds, however short the configured times: limits the load on the service.
_SHORTEST = 0.1


@derived
def build_rules(config: Configuration) -> LeaseRules:
    """The rules for leases of each VO; one with a lease time beyond the range of dates gets the default."""
    lease_times: dict[str, timedelta] = {}
    vos = sorted({*config.vos, *config.vo_operations})
    for vo in vos:
        try:
            lease_times[vo] = _find_lease_time(config, vo)
        except OverflowError as error:
            log.warning("the lease time of the VO %s cannot be added to a date: %s", vo, error)
    return LeaseRules(
        lease_time=_find_lease_time(config, None),
        max_rescheduling=options_for(config, None).job_scheduling.max_rescheduling,
        lease_times=lease_times,
        max_reschedulings={vo: options_for(config, vo).job_scheduling.max_rescheduling for vo in vos},
        ruled_vos=frozenset(vo for vo in vos if retries.has_rules(config, vo)),
    )


def _find_lease_time(config: Configuration, vo: str | None) -> timedelta:
    """The lease time of a VO (None: the default); OverflowError if a date has no room for it."""
    leases = options_for(config, vo).leases
    time = timedelta(seconds=max(leases.time, leases.stalled_time))
    _ = _LATEST_REPORT + time
    return time


def heartbeat_every(config: Configuration, vo: str, running: int) -> float:
    """Seconds between heartbeats while so many jobs run in the installation.

    A few may be lost before the job counts as stalled.
    """
    leases = options_for(config, vo).leases
    adapted = max(leases.heartbeat_time, min(running / HEARTBEATS, leases.longest_heartbeat_time))
    return max(_SHORTEST, min(adapted, leases.stalled_time / 4))


def run_on_time(config: Configuration, vo: str) -> float:
    """Seconds without an answer after which a pilot ends its payload."""
    return options_for(config, vo).leases.run_on_time


class RunningJobs:
    """How many jobs pilots have, as accounting counted them some seconds ago; 0 until the first reading."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.count = 0

    def read(self, _now: datetime) -> None:
        """Read the number again."""
        with database.reading(self._engine) as conn:
            current = time_series.count_current(conn)
        self.count = sum(of_vo.get(status, 0) for of_vo in current.values() for status in HELD)


class LeaseReports:
    """Record lease reports in batches; one instance per process."""

    def __init__(self, engine: Engine, live: LiveConfiguration, clock: Callable[[], datetime]) -> None:
        self._engine = engine
        self._live = live
        self._clock = clock
        self._server = AutocommitRunner(engine)
        #: PostgreSQL: plain reports are one statement, others one transaction each. SQLite has one writer,
        #: and each transaction waits for the disk: all reports share one.
        self._is_postgresql = engine.dialect.name == "postgresql"
        self._plain = run_in_thread(self._record_plain)
        self._every = run_in_thread(self._record)

    async def record(self, report: LeaseReport) -> ReportAnswer:
        """Record a report of a pilot.

        Raises:
            PilotageError: It was refused, and changed nothing.
            Busy: Too many reports wait.
            NotConfirmed: The database does not confirm it in time.
        """
        outcome = await deadline.confirm(self._store(report))
        if isinstance(outcome, PilotageError):
            raise outcome
        return outcome

    async def _store(self, report: LeaseReport) -> ReportOutcome:
        if not self._is_postgresql:
            return await self._every.answer(report)
        if plain_reports.may_be_plain(report) and (answer := await self._plain.answer(report)) is not None:
            return answer
        outcomes = await anyio.to_thread.run_sync(self._record, [report], abandon_on_cancel=True)
        return outcomes[0]

    def _record_plain(self, reports: Sequence[LeaseReport]) -> Sequence[ReportAnswer | None]:
        rules, now = build_rules(self._live.current), self._clock()
        return database.run_with_retry(
            lambda: plain_reports.record_plain(self._server, reports, rules=rules, now=now)
        )

    def _record(self, reports: Sequence[LeaseReport]) -> Sequence[ReportOutcome]:
        return store_reports(self._engine, reports, config=self._live.current, now=self._clock())


@database.retry_on_conflict
def store_reports(
    engine: Engine, reports: Sequence[LeaseReport], *, config: Configuration, now: datetime
) -> Sequence[ReportOutcome]:
    """Record reports in any state of their attempts, in one transaction."""
    rules, retry = build_rules(config), retries.make_plan(config, now)
    with database.writing(engine) as conn:
        return lifecycle.record(conn, reports, rules=rules, retry=retry, now=now)
