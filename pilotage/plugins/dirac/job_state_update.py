"""WorkloadManagement/JobStateUpdate: reports of genuine JobAgents and JobWrappers, which name only the job.

`marks` tells which attempt a report is about. A ghost, whose job was given away, gets `Kill` at its next
heartbeat, and its other reports change nothing. A report that a host sends, for itself or for a user, may be
days old: it changes nothing while an attempt is open. A JobWrapper goes on reporting after the end of its
job: that is accepted, since it would repeat what is refused for days.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from sqlalchemy import Connection

from cs_config.options import bounds
from pilotage.plugins.dirac import jencode, peers
from pilotage.plugins.dirac.jencode import Result
from pilotage.plugins.dirac.peers import DiracCall, JobId, Method
from pilotage.service import lease_reports
from requirements.errors import PilotageError
from requirements.states import FINAL, JobStatus
from taskqueue.db import database
from taskqueue.errors import JobNotFound
from taskqueue.jobs import control, descriptions, jobs
from taskqueue.jobs.jobs import Job
from taskqueue.leases import attempts, marks
from taskqueue.leases.attempts import Attempt
from taskqueue.leases.reports import (
    FinishReport,
    HeartbeatReport,
    LeaseReport,
    Note,
    NoteReport,
    PayloadResult,
    Progress,
    ReleaseReport,
    ReportAnswer,
    Sender,
    StartReport,
)

_log = logging.getLogger(__name__)

#: The door has checked who reports on which attempt.
_SENDER: Final = Sender(subject=None)
#: The source of a status that names none.
_NOBODY: Final = "Unknown"
#: Characters of a status, and of the output's end.
_STATUS, _TAIL = 255, 16_384
#: What clocks of worker nodes may be slow.
_CLOCKS: Final = timedelta(minutes=10)
_ENDS: Final[Mapping[str, Literal["Done", "Failed", "Completed"]]] = {
    "Done": "Done",
    "Completed": "Completed",
    "Failed": "Failed",
    "Killed": "Failed",
}
#: Parameter with the end of the payload's output in heartbeats, which DIRAC's `dirac-wms-job-peek` shows.
OUTPUT: Final = "StandardOutput"
#: Numbers in heartbeats of genuine Watchdogs; the latest ones are parameters of the job.
MEASURED: Final = frozenset(
    {"AvailableDiskSpace", "CPUConsumed", "LoadAverage", "MemoryUsed", "Vsize", "WallClockTime"}
)

#: Statuses of one report by the time of each.
Statuses = Annotated[dict[str, dict[str, Any]], Field(max_length=1000)]
#: A name and a value by job.
ParameterByJob = Annotated[dict[JobId, tuple[str, Any]], Field(max_length=bounds.DIRAC_JOBS_SET)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Subject of a report: the job and its attempt."""

    job: Job
    attempt: Attempt | None  #: None: the job was never matched
    is_marked: bool  #: the sender showed its mark before
    is_sent_on: bool  #: by a host that does not hold the attempt

    @property
    def is_ghost(self) -> bool:
        """Whether the sender goes on with a job that it has lost, or reports on one that another may have."""
        if self.attempt is None:
            return False
        if self.attempt.closed_at is None:
            return self.is_sent_on
        is_lost = self.attempt.closed_as == attempts.LOST
        return self.attempt.epoch < self.job.epoch or not (is_lost or self.is_over)

    @property
    def is_over(self) -> bool:
        """Whether the attempt ended as the sender reported."""
        return self.attempt is not None and self.attempt.closed_as in (attempts.FINISHED, attempts.RELEASED)

    @property
    def lacks_output(self) -> bool:
        """Whether the sender has ended the job without an output: a JobWrapper may send it after that."""
        if self.attempt is None or self.attempt.closed_as != attempts.FINISHED or not self.is_marked:
            return False
        return not self.is_ghost and self.job.status in FINAL and self.attempt.output is None


def find_standing(call: DiracCall, job_id: int) -> Standing:
    """The attempt that a report of the peer is about, which then has its mark.

    `JobNotFound` if the job is not its own.
    """
    with database.writing(call.parts.engine) as conn:
        return read_standing(conn, call, job_id, learn=True)


def read_standing(conn: Connection, call: DiracCall, job_id: int, *, learn: bool) -> Standing:
    """The same as `find_standing`; without `learn` nothing is written."""
    job = jobs.get_job(conn, job_id)
    is_controlled = call.peer.controls(job)
    if not is_controlled and not (call.peer.has(peers.GENERIC_PILOT) and job.vo in call.peer.vos):
        raise JobNotFound(job_id)
    is_direct = not (call.peer.is_host or call.peer.is_forwarded)
    peer = call.peer
    attempt, is_marked = marks.find_attempt(
        conn, job_id, peer.mark, learn=learn and is_direct, has_key=peer.has_key
    )
    # A host's JobAgent has its mark from the match.
    is_sent_on = call.peer.is_forwarded or (call.peer.is_host and not is_marked)
    if is_sent_on:
        attempt, is_marked = attempts.get_latest(conn, job_id), False
    if not is_controlled and (attempt is None or attempt.holder != call.peer.holder):
        raise JobNotFound(job_id)
    return Standing(job=job, attempt=attempt, is_marked=is_marked, is_sent_on=is_sent_on)


def _record(call: DiracCall, reports: Sequence[LeaseReport]) -> list[ReportAnswer]:
    """Record reports in one transaction; those that come too late are only logged."""
    config, now = call.parts.live.current, call.parts.clock()
    outcomes = lease_reports.store_reports(call.parts.engine, reports, config=config, now=now)
    for report, outcome in zip(reports, outcomes, strict=True):
        if isinstance(outcome, PilotageError):
            _log.info("%s of %s had no effect: %s", report.kind, call.peer.user, outcome)
    answers = [each for each in outcomes if not isinstance(each, PilotageError)]
    if due := [each.job_id for each in answers if each.status == JobStatus.RESCHEDULED]:
        call.parts.notify(due)
    return answers


def set_job_status_bulk(
    call: DiracCall,
    job_id: JobId,
    statuses: Statuses,
    force: bool = False,  # noqa: ARG001, FBT001, FBT002  (DIRAC's)
) -> Result:
    """Statuses with their times, in any order; those of earlier attempts are dropped."""
    standing = find_standing(call, job_id)
    ordered = [
        {name: str(word) for name, word in statuses[time].items()}
        for time in sorted(statuses)
        if standing.attempt is None or not _is_before(time, standing.attempt.opened_at)
    ]
    if standing.job.status is JobStatus.COMPLETED and not standing.is_ghost:
        return _complete(call, standing.job, ordered)
    if standing.attempt is not None and not standing.is_ghost and not standing.is_over:
        _record(call, _drop_old_notes(list(_translate(standing.attempt, standing.job, ordered))))
    return jencode.ok()


def _is_before(time: str, opened_at: datetime) -> bool:
    """Whether a time of a status, if it is one, is certainly before that of a match."""
    try:
        read = datetime.fromisoformat(time)
        at = read.replace(tzinfo=UTC) if read.tzinfo is None else read
        return opened_at - at > _CLOCKS
    except (ValueError, OverflowError):
        return False


def _complete(call: DiracCall, job: Job, statuses: Sequence[Mapping[str, str]]) -> Result:
    """The end of the requests that a Completed job had left."""
    for each in statuses:
        if (word := each.get("Status", "")) in ("Done", "Failed") and call.peer.controls(job):
            with database.writing(call.parts.engine) as conn:
                minor, source = each.get("MinorStatus", "")[:_STATUS], each.get("Source", "")[:_STATUS]
                control.complete_job(
                    conn, job.job_id, JobStatus(word), minor=minor, source=source, now=call.parts.clock()
                )
            break
    return jencode.ok()


def _translate(attempt: Attempt, job: Job, statuses: Sequence[Mapping[str, str]]) -> Iterator[LeaseReport]:
    """The reports on an attempt that statuses mean: at most one start, and nothing after its end."""
    lease, has_begun, last = attempt.lease, attempt.started_at is not None, job.application_status
    for each in statuses:
        word = each.get("Status", "")
        minor, application = (
            each.get("MinorStatus", "")[:_STATUS],
            each.get("ApplicationStatus", "")[:_STATUS],
        )
        last = application or last
        source = each.get("Source", "")[:_STATUS]
        sender = _SENDER if source in ("", _NOBODY) else replace(_SENDER, source=source)
        if not has_begun and word in ("Running", "Done", "Completed"):
            has_begun = True
            yield StartReport(lease=lease, sender=sender)
        if word in _ENDS:
            result = PayloadResult(status=_ENDS[word], minor_status=minor, application_status=last)
            yield FinishReport(lease=lease, sender=sender, result=result)
            return
        if word == "Rescheduled":
            yield ReleaseReport(lease=lease, sender=sender, reason=minor or application)
            return
        if minor or application:
            note = Note(minor_status=minor or None, application_status=application or None)
            yield NoteReport(lease=lease, sender=sender, note=note)


def _drop_old_notes(reports: Sequence[LeaseReport]) -> list[LeaseReport]:
    """Without notes that too many others follow, such as those of a job that could not report for days."""
    notes = [each for each in reports if isinstance(each, NoteReport)]
    dropped = {id(each) for each in notes[: -bounds.DIRAC_NOTES]}
    return [each for each in reports if id(each) not in dropped]


def set_job_status(
    call: DiracCall,
    job_id: JobId,
    status: str = "",
    minor_status: str = "",
    source: str = _NOBODY,
    time: Any = None,
    force: bool = False,  # noqa: FBT001, FBT002  (DIRAC's)
) -> Result:
    """One status."""
    return set_job_status_bulk(
        call, job_id, {str(time): {"Status": status, "MinorStatus": minor_status, "Source": source}}, force
    )


def set_application_status(call: DiracCall, job_id: JobId, status: str, source: str = _NOBODY) -> Result:
    """The application's own status."""
    return set_job_status_bulk(call, job_id, {"": {"ApplicationStatus": status, "Source": source}})


def set_attribute(call: DiracCall, job_id: JobId, name: str, value: Any) -> Result:
    """An attribute that is a status; times and sites follow from what is reported."""
    words = {"Status", "MinorStatus", "ApplicationStatus"}
    if name in words:
        return set_job_status_bulk(call, job_id, {"": {name: str(value)}})
    if name == "Site" or name.endswith("Time"):
        find_standing(call, job_id)
        return jencode.ok()
    return jencode.error(f"the attribute {name!r:.80} of a job cannot be set")


def set_site(call: DiracCall, job_id: JobId, site: str) -> Result:
    """The site, which is known from the match."""
    return set_attribute(call, job_id, "Site", site)


def set_parameter(call: DiracCall, job_id: JobId, name: str, value: Any) -> Result:
    """One parameter."""
    return set_parameters(call, job_id, [(name, value)])


def set_parameters(call: DiracCall, job_id: JobId, given: list[tuple[str, Any]]) -> Result:
    """Parameters; too long ones are cut, and those of a ghost, or beyond what a job may have, are dropped."""
    standing = find_standing(call, job_id)
    if standing.attempt is not None and not standing.is_ghost:
        _record(call, [_note_parameters(call, standing.attempt, _cut(given))])
    return jencode.ok()


def _note_parameters(call: DiracCall, attempt: Attempt, given: Mapping[str, str]) -> NoteReport:
    with database.reading(call.parts.engine) as conn:
        stored = descriptions.read_parameter_sizes(conn, [attempt.job_id]).get(attempt.job_id, {})
    note = Note(parameters=_choose_fitting(given, stored))
    return NoteReport(lease=attempt.lease, sender=_SENDER, note=note)


def set_parameters_of_jobs(call: DiracCall, given: ParameterByJob) -> Result:
    """One parameter of each of several jobs."""
    for job_id, (name, value) in given.items():
        set_parameter(call, job_id, name, value)
    return jencode.ok()


def _cut(given: Sequence[tuple[str, Any]]) -> dict[str, str]:
    words = ((str(name)[: bounds.PARAMETER_NAME], str(value)) for name, value in given)
    return {name: value[: bounds.PARAMETER_VALUE] for name, value in words if name and name.isprintable()}


def _choose_fitting(given: Mapping[str, str], stored: Mapping[str, int]) -> dict[str, str]:
    """The parameters that fit beside the stored ones (characters by name), in their order."""
    sizes, fitting = dict(stored), {}
    for name, value in given.items():
        after = {**sizes, name: len(value)}
        if len(after) <= bounds.PARAMETERS and sum(after.values()) <= bounds.ALL_PARAMETERS:
            sizes, fitting[name] = after, value
    return fitting


def send_heartbeat(call: DiracCall, job_id: JobId, dynamic: dict[str, Any], static: dict[str, Any]) -> Result:
    """A sign of life with numbers and the end of the output; the answer ends payloads killed or lost."""
    standing = find_standing(call, job_id)
    attempt = standing.attempt
    if attempt is None or standing.is_ghost or attempt.closed_as == attempts.RELEASED:
        return jencode.ok({"Kill": ""})
    if standing.is_over:
        return jencode.ok({})
    tail = static.get(OUTPUT)
    progress = Progress(output_tail=None if tail is None else str(tail)[-_TAIL:])
    reports: list[LeaseReport] = [HeartbeatReport(lease=attempt.lease, sender=_SENDER, progress=progress)]
    if attempt.started_at is None:
        reports.insert(0, StartReport(lease=attempt.lease, sender=_SENDER))
    if numbers := _read_numbers(dynamic):
        reports.insert(-1, _note_parameters(call, attempt, numbers))
    answers = _record(call, reports)
    return jencode.ok({} if answers and not answers[-1].ending else {"Kill": ""})


def _read_numbers(dynamic: Mapping[str, Any]) -> dict[str, str]:
    found = {name: dynamic[name] for name in sorted(MEASURED & dynamic.keys())}
    return {
        name: f"{value:.1f}"
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def ignore_stager(call: DiracCall, job_id: JobId, status: str) -> Result:  # noqa: ARG001
    """Nothing is staged here."""
    return jencode.ok()


METHODS: Final[Mapping[str, Method]] = {
    "setJobStatusBulk": set_job_status_bulk,
    "setJobStatus": set_job_status,
    "setJobApplicationStatus": set_application_status,
    "setJobAttribute": set_attribute,
    "setJobSite": set_site,
    "setJobParameter": set_parameter,
    "setJobParameters": set_parameters,
    "setJobsParameter": set_parameters_of_jobs,
    "sendHeartBeat": send_heartbeat,
    "updateJobFromStager": ignore_stager,
}
