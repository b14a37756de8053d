"""One attempt at a job, from its lease to its final report: prepare, run, send the output, report."""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Callable, TypeVar

from pilotage.fabric.pilot.allotment import Allotment
from pilotage.fabric.pilot.errors import HostTrouble
from pilotage.fabric.pilot.node.cgroup import Delegation
from pilotage.fabric.pilot.offer import Offer
from pilotage.fabric.pilot.payload import archives, container, monitor, payload, work_area
from pilotage.fabric.pilot.payload.archives import PackedOutput
from pilotage.fabric.pilot.payload.container import StartFailure
from pilotage.fabric.pilot.payload.description import PayloadDescription, UnfitDescription
from pilotage.fabric.pilot.payload.monitor import Excess, MonitoredEnd, SlotMemory, SlotShare
from pilotage.fabric.pilot.payload.payload import NotStarted, PayloadUse, Report
from pilotage.fabric.pilot.payload.preparation import CannotRun, Prepared, Preparer
from pilotage.fabric.pilot.payload.work_area import WorkArea
from pilotage.fabric.pilot.service import service_client
from pilotage.fabric.pilot.service.heartbeat import KILL, Heartbeat, elapsed_time
from pilotage.fabric.pilot.service.service_client import LeaseAnswer, Match, Service
from pilotage.fabric.pilot.service.transport import Away, Refused
from pilotage.fabric.pilot.settings import PayloadOptions

_SHOWN = 5


def pack_output(asked: PayloadDescription, area: WorkArea, *, limit: int) -> PackedOutput:
    """Pack standard output and error first, then the OutputSandbox."""
    wanted = (asked.std_output, asked.std_error, *asked.output_sandbox)
    with area.output.open("wb") as archive:
        return archives.pack(area.home, wanted, archive, limit=limit)


def with_shortcomings(report: Report, packed: PackedOutput) -> Report:
    """Add to the report what the archive lacks: missing files are noted, too large ones fail the job."""
    if packed.missing:
        report = report.noting(f"missing from OutputSandbox: {_some(packed.missing)}")
    if packed.refused:
        report = report.noting(f"not a file of the work directory: {_some(packed.refused)}")
    if packed.too_large:
        report = report.without_output(f"too large: {_some(packed.too_large)}")
    return report


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


log = logging.getLogger(__name__)

T = TypeVar("T")

#: Outcomes of an attempt besides Done and Failed.
RELEASED, LOST = "Released", "Lost"

_STOPPED = "a signal ended the pilot"
#: Seconds before the end of a slot from which on a signal is that of its time limit.
_AT_LIMIT = 60.0

#: Seconds to retry the last requests of a pilot that has to end.
_LAST_TRIES = 5.0
#: Minimum seconds to retry the input sandbox, however short the lease seems by the local clock.
_LEAST_PATIENCE = 10.0
#: Minimum number of heartbeats in the duration of a lease.
_BEATS_IN_LEASE = 3


@dataclass(frozen=True)
class AttemptOutcome:
    """Outcome of an attempt."""

    job_id: int
    epoch: int
    ended: str  #: Done, Failed, Released (given back) or Lost (the lease is no longer ours)
    detail: str


@dataclass(frozen=True)
class AttemptContext:
    """Objects shared by all attempts of a pilot."""

    service: Service
    preparer: Preparer
    payload_options: PayloadOptions
    offer: Offer
    memory: SlotMemory
    stop: threading.Event  #: set when the pilot has to end
    delegation: Delegation | None = None  #: of a cgroup, in which memory is limited; None: it is watched


def run_attempt(
    match: Match, context: AttemptContext, *, share: Allotment, seconds_left: Callable[[], float | None]
) -> AttemptOutcome:
    """Run a job to its end and report it.

    Raises:
        HostTrouble: This host cannot run the job; it was given back.
    """
    attempt = _Attempt(match, context, share, seconds_left)
    try:
        return attempt.run()
    except Refused as error:
        return attempt.outcome(LOST, str(error))
    except Away as error:
        return attempt.outcome(LOST, f"the service stays away: {error}")
    except (HostTrouble, OSError) as error:
        attempt.try_to_release(f"trouble with the host {socket.gethostname()}: {error}")
        raise HostTrouble(str(error)) from error


@dataclass(frozen=True)
class _Attempt:
    match: Match
    context: AttemptContext
    share: Allotment
    seconds_left: Callable[[], float | None]

    def run(self) -> AttemptOutcome:
        options = self.context.payload_options
        area = work_area.make_work_area(options.work_dir, job_id=self.match.job_id, epoch=self.match.epoch)
        try:
            return self._run_in(area)
        finally:
            if not options.keep_work:
                area.remove()

    def outcome(self, ended: str, detail: str) -> AttemptOutcome:
        return AttemptOutcome(self.match.job_id, self.match.epoch, ended, detail)

    def try_to_release(self, reason: str) -> AttemptOutcome:
        """Give the job back. If the request fails, the lease expires without our heartbeats."""
        try:
            self._briefly(lambda: self.context.service.release(self.match.lease, reason))
        except (Away, Refused) as error:
            return self.outcome(LOST, f"{reason}; and: {error}")
        return self.outcome(RELEASED, reason)

    def _run_in(self, area: WorkArea) -> AttemptOutcome:
        try:
            ready = self._prepare(area)
            if self.context.stop.is_set():
                return self.try_to_release(self._explain_stop())
            if too_late := self._too_late(ready):
                return self.try_to_release(too_late)
            # Retry even beyond the lease: only the service can decide whether it has expired.
            started, news = self._patiently(self._start, self.context.payload_options.report_patience)
        except Away:
            if self.context.stop.is_set():
                return self.try_to_release(self._explain_stop())
            raise
        if KILL in news.commands:
            return self._finish(payload.failure_report(payload.KILLED))
        if isinstance(ready, Report):
            return self._finish(ready)
        return self._execute(ready, area, news, started)

    def _start(self) -> tuple[float, LeaseAnswer]:
        """Report the start; the time before, and the answer."""
        facts = {"host": socket.gethostname(), "pilot": os.getpid()}
        return elapsed_time(), self.context.service.start(self.match.lease, facts)

    def _prepare(self, area: WorkArea) -> Prepared | Report:
        prepare = self.context.preparer.prepare
        try:
            return self._patiently(
                lambda: prepare(self.match, area, self.share),
                max(self.match.lease_seconds, _LEAST_PATIENCE),
            )
        except CannotRun as error:
            return error.report

    def _explain_stop(self) -> str:
        left = self.seconds_left()
        if left is None:
            return _STOPPED
        return f"{_STOPPED} {'before the end' if left > _AT_LIMIT else 'at the time limit'} of its slot"

    def _too_late(self, ready: Prepared | Report) -> str:
        """Reason to leave the job to another pilot (retries may have taken hours); empty if it still fits."""
        if isinstance(ready, Report):
            return ""
        offer, left = self.context.offer, self.seconds_left()
        # Compare with a fresh offer: a stricter check would hand the same job back for ever.
        offered = None if left is None else offer.seconds_offered(left)
        missing = monitor.seconds_missing(ready.description, seconds_left=offered, cpu_power=offer.cpu_power)
        return f"it requires {missing:.0f} s more than are left of the slot" if missing else ""

    def _execute(self, ready: Prepared, area: WorkArea, news: LeaseAnswer, started: float) -> AttemptOutcome:
        offer = self.context.offer
        share = SlotShare(
            self.seconds_left(), offer.max_ram, cores=self.share.processors, scratch=offer.granted_scratch
        )
        allowed = monitor.job_limits(ready.description, share)
        account = self.context.memory.account(self.share.ram_mb)
        with ExitStack() as stack:
            try:
                running = stack.enter_context(
                    monitor.run_payload(ready, area, allowed, account, self.context.delegation)
                )
            except UnfitDescription as error:
                return self._finish(payload.failure_report(payload.UNFIT, str(error)))
            except NotStarted as error:
                return self._finish(payload.failure_report(payload.NOT_FOUND, str(error)))
            # Heartbeats go on while the output is sent, which may take long when the service is away.
            every = min(
                self.context.payload_options.heartbeat, max(1.0, self.match.lease_seconds / _BEATS_IN_LEASE)
            )
            heartbeat = Heartbeat(
                self.context.service, self.match.lease, every=every, news=running.news, started=started
            )
            heartbeat.obey(news)
            stack.enter_context(heartbeat.running())
            watched = running.until_end(
                heartbeat, self.context.stop, grace=self.context.payload_options.grace
            )
            if watched.why == monitor.STOPPED:  # what gives a job back states no use
                heartbeat.send_last()
            return self._settle(watched, running.used, ready, area)

    def _settle(
        self, watched: MonitoredEnd, used: PayloadUse, ready: Prepared, area: WorkArea
    ) -> AttemptOutcome:
        if watched.why == monitor.STALE:
            return self.outcome(LOST, "the attempt was closed by the service; the payload was ended")
        if watched.why == monitor.UNANSWERED:
            return self.outcome(LOST, "no answer from the service for too long; the payload was ended")
        if watched.why == monitor.STOPPED:
            return self.try_to_release(f"{self._explain_stop()}; the payload was ended")
        failure = find_start_failure(watched, ready, area)
        if failure is not None and failure.fault == container.OF_HOST:
            raise HostTrouble(failure.reason)
        report = self._deliver(judge(watched, failure), ready, area)
        if failure is not None and failure.fault == container.UNKNOWN:
            self._persistently(lambda: self.context.service.release(self.match.lease, failure.reason))
            return self.outcome(RELEASED, failure.reason)
        if watched.why is None and payload.asks_for_reschedule(watched.end):
            # Its output is kept in case this was the last attempt.
            reason = f"exit status {payload.RESCHEDULE}: the payload requests to be rescheduled"
            self._persistently(lambda: self.context.service.release(self.match.lease, reason))
            return self.outcome(RELEASED, reason)
        report = report.having_used(used, cpu_power=self.context.offer.measured_power)
        try:
            return self._finish(report)
        except Refused as error:
            if not error.needs_output:
                raise
        # The service has lost commits since the output was sent.
        return self._finish(self._send_output(report, area))

    def _deliver(self, report: Report, ready: Prepared, area: WorkArea) -> Report:
        packed = pack_output(ready.description, area, limit=self.context.payload_options.output_limit)
        return self._send_output(with_shortcomings(report, packed), area)

    def _send_output(self, report: Report, area: WorkArea) -> Report:
        def send() -> str | None:
            with area.output.open("rb") as archive:
                size = os.fstat(archive.fileno()).st_size
                return self.context.service.deliver_output(self.match.lease, archive, size=size)

        try:
            return replace(report, output=self._persistently(send))
        except Refused as error:
            if error.ends_attempt:
                raise
            return report.without_output(str(error))

    def _finish(self, report: Report) -> AttemptOutcome:
        report = self._persistently(lambda: self.context.service.finish(self.match.lease, report))
        return self.outcome(
            report.status, ": ".join(filter(None, (report.minor_status, report.application_status)))
        )

    def _patiently(self, request: Callable[[], T], patience: float) -> T:
        return service_client.retry_while_away(request, patience=patience, stop=self.context.stop)

    def _briefly(self, request: Callable[[], T]) -> T:
        """Retry for a short time, even if the pilot has to end."""
        return service_client.retry_while_away(request, patience=_LAST_TRIES, stop=threading.Event())

    def _persistently(self, request: Callable[[], T]) -> T:
        """Retry as long as a result is kept, and a little longer when the pilot has to end."""
        try:
            return self._patiently(request, self.context.payload_options.report_patience)
        except Away:
            if not self.context.stop.is_set():
                raise
        return self._briefly(request)


def find_start_failure(watched: MonitoredEnd, ready: Prepared, area: WorkArea) -> StartFailure | None:
    """Why the container of a payload did not start; None: it did, there is none, or the pilot ended it."""
    if watched.why is not None or not ready.is_contained or not watched.end.exit_code:
        return None
    return container.explain_start(ready.description.image, ready.description.std_error, area)


def judge(watched: MonitoredEnd, failure: StartFailure | None = None) -> Report:
    """Report of an ended payload: why the pilot ended it or it did not start, else its exit status."""
    if failure is not None:
        return payload.failure_report(payload.NO_IMAGE, failure.reason, watched.end)
    if isinstance(watched.why, Excess):
        return payload.failure_report(watched.why.minor_status, watched.why.detail, watched.end)
    if watched.why == monitor.KILL_WANTED:
        return payload.failure_report(payload.KILLED, "", watched.end)
    return payload.report_of_end(watched.end)
