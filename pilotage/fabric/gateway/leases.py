"""Leases of grid jobs: start them, send heartbeats with progress, follow commands, deliver ended jobs.

One thread keeps the leases while another delivers outputs, which may take long; each lease has a lock, so
that no heartbeat is sent while its attempt is being finished. An ended grid job is delivered with its output
first, then the outcome; then the manager may forget it. Each step may be repeated: the service accepts an
equal report again, and refuses a different one.
"""

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pilotage.fabric.cycle_summaries import GatewaySummary
from pilotage.fabric.gateway.permits import Permits
from pilotage.fabric.gateway.service import GatewayService
from pilotage.fabric.manager.grid_job import AttemptKey, GridJob, LocalJobStatus, ManagerPhase, PulledGridJob
from pilotage.fabric.manager.journal import LastAnswer
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.pilot.attempt import RELEASED
from pilotage.fabric.pilot.payload import payload
from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.pilot.service.heartbeat import KILL, elapsed_time
from pilotage.fabric.pilot.service.service_client import LeaseAnswer
from pilotage.fabric.pilot.service.transport import Away, Refused
from pilotage.fabric.runner.status_files import Progress
from requirements.errors import format_count

#: Larger numbers are not exact in every JSON reader; the service refuses them.
_LARGEST = 2**53
#: Maximum characters that the service accepts.
_LONGEST = 2000
_LONGEST_TAIL = 16_384
#: Local jobs in one report.
_AT_ONCE = 500


def heartbeat_body(grid_job: GridJob) -> Mapping[str, object]:
    """The content of a heartbeat."""
    return {
        "progress": payload.printable(_progress_text(grid_job), _LONGEST),
        "output_tail": payload.printable(grid_job.tail[-_LONGEST_TAIL:], _LONGEST_TAIL),
        "phases": [_phase(each, grid_job.taken) for each in grid_job.progress],
        "local_jobs": {state.value: number for state, number in grid_job.local.items() if number},
    }


def _phase(phase: Progress, taken: PulledGridJob) -> Mapping[str, object]:
    """One phase; its unit is events if its total equals the number of events of the job."""
    unit = "events" if phase.of == taken.description.get("Events") else ""
    done, of = min(phase.done, _LARGEST), min(phase.of, _LARGEST)
    return {"name": phase.name, "done": done, "of": of, "unit": unit}


def _progress_text(grid_job: GridJob) -> str:
    said = [f"{grid_job.phase}, {grid_job.aggregate}"]
    local = sorted(grid_job.local.items())
    said += [f"{format_count(number, 'local job')} {state}" for state, number in local if number]
    said += [str(each) for each in grid_job.progress]
    return "; ".join([*said, *filter(None, [grid_job.problem])])


log = logging.getLogger(__name__)

_BOOT = Path("/proc/sys/kernel/random/boot_id")
#: Seconds between two notes of an answer in the journal.
_NOTED_EVERY = 60.0
#: Failures in a row after which the service counts as away.
_AWAY = 3


def _local_state(grid_job: GridJob) -> object:
    return grid_job.local_jobs, grid_job.progress


def build_answer(*, sent: float, run_on: float | None) -> LastAnswer:
    """Entry of the journal for an answer to a request that was sent at this `elapsed_time`."""
    return LastAnswer(
        boot=_read_boot(), elapsed=sent, at=time.time() - (elapsed_time() - sent), run_on=run_on
    )


def _read_boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


@dataclass(slots=True)
class GridJobLease:
    """State of a lease in this process."""

    taken: PulledGridJob
    started: bool = False
    closed: bool = False  #: the attempt is closed: reports are not accepted any more
    told_to_end: bool = False
    reported: object = None  #: the local jobs and their progress in the last report that was answered
    local_jobs: dict[int, LocalJobStatus] = field(default_factory=dict)  #: as the service was told
    answered: float = 0.0  #: `elapsed_time` when the last report that was answered was sent
    run_on: float | None = None  #: seconds without an answer after which the local jobs have to end
    lock: threading.Lock = field(default_factory=threading.Lock)

    noted: float | None = None  #: `answered` as it is in the journal

    def restore(self, last: LastAnswer | None) -> None:
        """Count the silence from the answer that an earlier process got, or that brought the grid job."""
        if last is not None:
            silence = time.time() - last.at if last.boot != _read_boot() else elapsed_time() - last.elapsed
            self.answered, self.run_on = elapsed_time() - max(0.0, silence), last.run_on

    @property
    def is_unanswered(self) -> bool:
        """Whether the service may give the grid job to others now."""
        return self.run_on is not None and elapsed_time() - self.answered >= self.run_on


@dataclass(slots=True, kw_only=True)
class GatewayLeases:
    """All leases of this process; methods raise `Away` when the service does not respond."""

    service: GatewayService
    manager: Manager
    permits: Permits
    heartbeat_seconds: float | None = None  #: interval that the service wishes
    _held: dict[AttemptKey, GridJobLease] = field(default_factory=dict)
    _reporting: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, grid_jobs: Sequence[GridJob], summary: GatewaySummary) -> None:
        """Send a heartbeat for each grid job, and follow the commands in the responses.

        One that fails does not stop the others, but several failures in a row mean that the service is
        away. The order is random, so that it is not always the same jobs that are reached.
        """
        for each in grid_jobs:
            self._lease(each.taken)
        self._end_unanswered(summary)
        in_a_row = 0
        for each in random.sample(grid_jobs, len(grid_jobs)):
            try:
                lease = self._lease(each.taken)
                with lease.lock:
                    if not lease.closed:
                        self._report_state(lease, each, summary)
                in_a_row = 0
            except Away as error:
                in_a_row += 1
                if in_a_row == min(_AWAY, len(grid_jobs)):
                    raise
                summary.note_problem(each.taken.vo, f"job {each.taken.job_id}: {error}")

    def phase_of(self, grid_job: GridJob) -> ManagerPhase:
        """Its phase, which is updating while the service does not have the latest state of its local jobs."""
        with self._reporting:
            lease = self._held.get(grid_job.taken.key)
        is_told = lease is not None and lease.reported == _local_state(grid_job)
        is_polling = grid_job.phase is ManagerPhase.POLLING
        return ManagerPhase.UPDATING if is_polling and not is_told else grid_job.phase

    def begin(self, taken: Sequence[PulledGridJob], summary: GatewaySummary) -> None:
        """Start the leases of grid jobs that were just recorded."""
        for each in taken:
            lease = self._lease(each)
            with lease.lock:
                self._report_state(lease, GridJob(taken=each, phase=ManagerPhase.SUBMITTING), summary)

    def deliver(self) -> int:
        """Deliver all ended grid jobs, slowly if necessary; return the number delivered.

        For one thread. `Away` means that the rest has to wait.
        """
        delivered, away = 0, None
        for each in self.manager.grid_jobs():
            try:
                delivered += each.phase is ManagerPhase.ENDED and self._deliver(each)
            except Away as error:  # perhaps only this output cannot be sent
                away = error
        if away is not None:
            raise away
        return delivered

    def _lease(self, taken: PulledGridJob) -> GridJobLease:
        with self._reporting:
            if (lease := self._held.get(taken.key)) is None:
                lease = self._held[taken.key] = GridJobLease(taken)
                lease.restore(self.manager.journal.find_answer(taken.key))
            return lease

    def _report_state(self, lease: GridJobLease, grid_job: GridJob, summary: GatewaySummary) -> None:
        """Start or continue an attempt; the caller holds the lock of the lease.

        A refusal because of a report's content does not end the attempt: the next report may be accepted.
        """
        sent = elapsed_time()
        try:
            is_new = not lease.started
            answer = self._start_or_beat(lease, grid_job)
            self._note_answer(lease, sent, answer)
            self.heartbeat_seconds = answer.heartbeat_seconds or self.heartbeat_seconds
            if KILL in answer.commands:
                self.manager.journal.cancel(lease.taken.key)
                summary.killed += 1
                if not lease.told_to_end:
                    log.warning("job %d: the service requests its end", lease.taken.job_id)
                lease.told_to_end = True
            if not is_new:
                self._report_local_jobs_if_heard(lease, grid_job, summary)
        except Refused as error:
            if error.ends_attempt:
                self._close(lease, f"the attempt is closed: {error}", summary)
            else:
                summary.note_problem(lease.taken.vo, f"job {lease.taken.job_id}: {error}")

    def _note_answer(self, lease: GridJobLease, sent: float, answer: LeaseAnswer) -> None:
        """Store when the service answered; in the journal each minute, so that it is never too late there."""
        is_new = lease.noted is None or answer.run_on_seconds != lease.run_on
        lease.answered, lease.run_on = sent, answer.run_on_seconds
        if is_new or sent - (lease.noted or sent) >= _NOTED_EVERY:
            last = build_answer(sent=sent, run_on=lease.run_on)
            self.manager.journal.note_answer(lease.taken.key, last)
            lease.noted = sent

    def _start_or_beat(self, lease: GridJobLease, grid_job: GridJob) -> LeaseAnswer:
        """Start the attempt if this process has not done so, else send a heartbeat."""
        if lease.started:
            return self.service.heartbeat(lease.taken.lease, heartbeat_body(grid_job))
        answer = self.service.start(lease.taken.lease, {"host": socket.gethostname()})
        lease.started = True
        return answer

    def _report_local_jobs_if_heard(
        self, lease: GridJobLease, grid_job: GridJob, summary: GatewaySummary
    ) -> None:
        """Report local jobs; without an answer they are reported after the next heartbeat."""
        try:
            self._report_local_jobs(lease, grid_job)
        except Away as error:
            summary.note_problem(
                lease.taken.vo, f"job {lease.taken.job_id}: its local jobs are not reported: {error}"
            )

    def _report_local_jobs(self, lease: GridJobLease, grid_job: GridJob) -> None:
        """Report the local jobs that changed since they were reported by this process.

        Heartbeats decide about the attempt: what is refused is not reported again as it is.
        """
        news = [each for each in grid_job.local_jobs if lease.local_jobs.get(each.number) != each]
        for start in range(0, len(news), _AT_ONCE):
            some = news[start : start + _AT_ONCE]
            try:
                self.service.report_local_jobs(lease.taken.lease, list(map(asdict, some)))
            except Refused as error:
                log.info("job %d: its local jobs cannot be reported: %s", lease.taken.job_id, error)
            lease.local_jobs |= {each.number: each for each in some}
        lease.reported = _local_state(grid_job)

    def _end_unanswered(self, summary: GatewaySummary) -> None:
        """End grid jobs on which no report was answered for too long: others may run them soon."""
        with self._reporting:
            held = list(self._held.values())
        for each in held:
            with each.lock:
                if each.is_unanswered and not each.closed:
                    self._close(each, f"no answer from the service for {each.run_on:.0f} s", summary)

    def _close(self, lease: GridJobLease, why: str, summary: GatewaySummary) -> None:
        """Cancel a grid job that is not ours any more: the results of its local jobs are of no use."""
        self.manager.journal.cancel(lease.taken.key)
        lease.closed = True
        summary.lost += 1
        log.warning("job %d: its local jobs are ended: %s", lease.taken.job_id, why)

    def _deliver(self, grid_job: GridJob) -> bool:
        taken = grid_job.taken
        try:
            self._finish(self._lease(taken), grid_job)
        except Refused as error:
            if not error.ends_attempt:
                log.error("job %d cannot be finished: %s", taken.job_id, error)  # noqa: TRY400 - theirs
                return False
            log.warning("job %d: the attempt is over: %s", taken.job_id, error)
        self.manager.journal.forget(taken.key)
        self.permits.remove(taken)
        with self._reporting:
            self._held.pop(taken.key, None)
        return True

    def _finish(self, lease: GridJobLease, grid_job: GridJob) -> None:
        report = grid_job.outcome
        if report is None or lease.closed:
            return
        with lease.lock:
            if not lease.started:
                self._start_or_beat(lease, grid_job)
        if report.status == RELEASED:
            with lease.lock:
                self.service.release(lease.taken.lease, report.application_status)
            log.warning("job %d is given back: %s", lease.taken.job_id, report.application_status)
            return
        # Heartbeats go on while the output is sent.
        report = self._send_output(grid_job, report)
        with lease.lock:
            self._send_last_news(lease, grid_job)
            report = self.service.finish(lease.taken.lease, report)
        log.info("job %d: %s %s", lease.taken.job_id, report.status, report.minor_status)

    def _send_output(self, grid_job: GridJob, report: Report) -> Report:
        """Send the output; return the report with any problem added."""
        if grid_job.output is None:
            return report
        try:
            with grid_job.output.open("rb") as archive:
                size = os.fstat(archive.fileno()).st_size
                output = self.service.deliver_output(grid_job.taken.lease, archive, size=size)
                return replace(report, output=output)
        except Refused as error:
            # A closed attempt may be a repetition: the same report is then accepted as before.
            return report if error.ends_attempt else report.without_output(str(error))
        except FileNotFoundError:
            return report.without_output("the archive is not there any more")

    def _send_last_news(self, lease: GridJobLease, grid_job: GridJob) -> None:
        """Store the last progress with the attempt; a failure does not prevent the final report."""
        try:
            self.service.heartbeat(grid_job.taken.lease, heartbeat_body(grid_job))
            self._report_local_jobs(lease, grid_job)
        except (Away, Refused) as error:
            log.info("job %d: its last progress could not be sent: %s", grid_job.taken.job_id, error)
