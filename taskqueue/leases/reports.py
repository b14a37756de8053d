"""Reports of pilots on their leases, and the decision what each of them changes.

The decision is a pure function of the report, the attempt and the job. `lifecycle` makes it under locks, for
any state of a job. `plain_reports` makes it for the state that is to be expected, and its statement changes
only what is in that state.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

from cs_config.options import bounds
from requirements.states import FINAL, JobStatus, may_come_from
from taskqueue.errors import IllegalTransition, OutputMissing, StaleLease
from taskqueue.jobs import control, descriptions
from taskqueue.leases import attempts, expiry
from taskqueue.leases.attempts import FINISHED, Attempt, AttemptTimes
from taskqueue.leases.retries import RETRIED, NoRetry, Retry, RetryDecision

#: What reports of pilots change has this source in the job's log.
SOURCE: Final = "Pilot"
STARTED: Final = "Job Initialization"
RUNNING_AGAIN: Final = "Application"
RELEASED_BY_PILOT: Final = "Released by the pilot"
LAST_RELEASE: Final = "Maximum of reschedulings reached"
#: Minor status of an end, unless it is reported.
_ENDS: Final[Mapping[str, str]] = {
    "Done": "Execution Complete",
    "Completed": "Pending Requests",
    "Failed": "Application Finished With Errors",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GridJobPhase:
    """How far one phase of a grid job is, over all of its local jobs. Source: SAM-Grid."""

    name: str
    done: int
    of: int
    unit: str = ""  #: what is counted, such as events


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress in one heartbeat; None: unchanged."""

    text: str | None = None  #: shown to users
    output_tail: str | None = None
    phases: Sequence[GridJobPhase] | None = None
    local_jobs: Mapping[str, int] | None = None  #: numbers of a grid job's local jobs, by state

    def to_columns(self) -> dict[str, str]:
        """The values that change, by column of `attempts`."""
        phases = None if self.phases is None else json.dumps([asdict(each) for each in self.phases])
        values = {
            "progress": self.text,
            "output_tail": self.output_tail,
            "phases": phases,
            "local_jobs": None if self.local_jobs is None else json.dumps(dict(self.local_jobs)),
        }
        return {name: value for name, value in values.items() if value is not None}


NO_PROGRESS = Progress()


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakUse:
    """The largest use of a payload until a report; None: not reported. Fields are columns of `attempts`."""

    peak_ram_mb: int | None = None
    peak_scratch_mb: int | None = None
    cpu_seconds: float | None = None

    def raise_columns(self, attempt: Attempt) -> dict[str, float]:
        """The new values of the columns: reports may arrive in any order, and twice."""
        reported = {name: value for name in attempts.PEAKS if (value := getattr(self, name)) is not None}
        return {name: max(value, getattr(attempt, name) or 0) for name, value in reported.items()}


NO_USE = PeakUse()


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadResult:
    """How a payload ended."""

    status: Literal["Done", "Failed", "Completed"]
    exit_code: int | None = None
    minor_status: str = ""
    application_status: str = ""
    cpu_seconds: float | None = None  #: used by the payload; None: not reported
    cpu_power: float | None = None  #: normalised seconds in one CPU second; None: not known

    @property
    def stored_minor_status(self) -> str:
        """Minor status of the job: the reported one or a default."""
        return self.minor_status or _ENDS[self.status]

    def to_json(self) -> str:
        """Canonical text of the report, compared with a repeated one.

        Without absent CPU figures, so that it equals that of a report without these fields.
        """
        return _to_json(
            {
                "finish": {
                    name: value
                    for name, value in asdict(self).items()
                    if value is not None or name not in {"cpu_seconds", "cpu_power"}
                }
            }
        )


@dataclass(frozen=True, kw_only=True)
class LeaseRules:
    """Options for leases: the defaults, for VOs that are not in the configuration, and those of VOs."""

    lease_time: timedelta  #: from a report to the end of the lease; short enough for a date
    max_rescheduling: int  #: how often a job may be rescheduled
    lease_times: Mapping[str, timedelta] = field(default_factory=dict)  #: by VO
    max_reschedulings: Mapping[str, int] = field(default_factory=dict)
    #: VOs with rules of retry for all of their jobs.
    ruled_vos: frozenset[str] = frozenset()

    @cached_property
    def lease_seconds(self) -> str:
        """The lease times as a JSON object of seconds; that of other VOs is under the empty name."""
        times = {"": self.lease_time, **self.lease_times}
        return json.dumps({vo: each.total_seconds() for vo, each in times.items()})

    def extend(self, attempt: Attempt, now: datetime) -> datetime:
        """The end of the lease after a report."""
        own = None if attempt.times is None else AttemptTimes.from_text(attempt.times)
        return now + (self.lease_times.get(attempt.vo, self.lease_time) if own is None else own.lease_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change of the job's status."""

    status: JobStatus
    minor: str
    application: str | None = None  #: None: unchanged
    is_counted: bool = True  #: a rescheduling counts against its maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Details that a pilot reports about its job beside the status; None: unchanged."""

    minor_status: str | None = None
    application_status: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)  #: by name; the others are unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAnswer:
    """The answer to a recorded report."""

    job_id: int
    epoch: int
    vo: str
    ending: bool = False  #: the job was killed
    status: str | None = None  #: of the job, after the end of the attempt
    replaced_output: str | None = None  #: digest that another one replaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The effect of a report; nothing changes for a repeated one."""

    answer: ReportAnswer
    changes: Mapping[str, Any] = field(default_factory=dict)  #: of the attempt, by field
    moves: tuple[Move, ...] = ()  #: of the job, one after the other
    note: Note | None = None  #: on the job, after the moves
    retry: Retry | None = None  #: the job runs again, as planned here
    source: str = SOURCE  #: of all this, in the job's log


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of a job on which the decision about a report depends."""

    status: JobStatus
    minor_status: str = ""
    reschedules: int = 0
    releases: int = 0  #: attempts that were given back before their start
    epoch: int = 0  #: number of its latest attempt
    #: Characters of its parameters by name; read only for a note with parameters.
    parameters: Mapping[str, int] = field(default_factory=dict)
    #: What rules make of a failure that is reported; None: no rule names it.
    retry: RetryDecision | None = None


def _refuse(_: Attempt) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """The sender of a report."""

    subject: str | None  #: of its token; None: it may report for all holders
    #: Whether it may report on an attempt that another token holds.
    stands_in: Callable[[Attempt], bool] = _refuse
    source: str = SOURCE  #: of what the report changes, in the job's log

    def may_report(self, attempt: Attempt) -> bool:
        """Whether the attempt is the sender's."""
        return self.subject in (None, attempt.holder) or self.stands_in(attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReport:
    """A report on the attempt with this lease."""

    lease: str
    sender: Sender

    kind: ClassVar[str]  #: in messages
    resumes: ClassVar[bool] = True  #: a lost attempt is reopened by it, if its job is still free

    def decide(self, attempt: Attempt, job: JobState, rules: LeaseRules, now: datetime) -> Decision:
        """The effect of this report on an attempt, which may be closed.

        Raises:
            StaleLease: The attempt was closed by something else.
            IllegalTransition: The job's status does not allow it.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReport(LeaseReport):
    """A payload is about to run."""

    kind = "start"

    def decide(self, attempt: Attempt, job: JobState, rules: LeaseRules, now: datetime) -> Decision:
        """Begin the attempt, unless it has begun, and extend its lease."""
        attempts.check_open(attempt)
        moves = (
            () if attempt.started_at or attempt.ending else _move(attempt, job, JobStatus.RUNNING, STARTED)
        )
        return Decision(answer=_answer(attempt), changes=_begin(attempt, rules, now), moves=moves)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReport(LeaseReport):
    """A payload runs."""

    progress: Progress = NO_PROGRESS
    used: PeakUse = NO_USE

    kind = "heartbeat"

    def decide(self, attempt: Attempt, job: JobState, rules: LeaseRules, now: datetime) -> Decision:
        """Extend the lease of a job that has started; a Stalled job becomes Running again."""
        attempts.check_open(attempt)
        moves = _revive(attempt, job)
        changes: dict[str, object]
        if attempt.started_at or attempt.quarantined:
            changes = _begin(attempt, rules, now)
        else:
            # Our pilots start a job at once: only that extends the time allowed for starting.
            own = {} if attempt.times is None else {"lease_expires_at": rules.extend(attempt, now)}
            changes = {"heartbeat_at": now, **own}
        changes |= {**self.progress.to_columns(), **self.used.raise_columns(attempt)}
        return Decision(answer=_answer(attempt), changes=changes, moves=moves)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteReport(LeaseReport):
    """A payload, or what prepares it, reports its state in words and values."""

    note: Note

    kind = "note"

    def decide(self, attempt: Attempt, job: JobState, rules: LeaseRules, now: datetime) -> Decision:
        """Extend the lease, also of a job that has not started, and store the note.

        Of a job that has ended, and of a killed one, only the parameters are stored.

        Raises:
            InvalidRequest: The parameters are too many or too long.
        """
        is_late = attempt.closed_as == FINISHED and attempt.epoch == job.epoch
        if not is_late:
            attempts.check_open(attempt)
        descriptions.check_parameters(self.note.parameters, job.parameters)
        note = Note(parameters=self.note.parameters) if is_late or attempt.ending else self.note
        answer = _answer(attempt, job.status if is_late else None)
        if is_late:
            return Decision(answer=answer, note=note)
        is_matched = attempt.started_at is None and not attempt.quarantined
        changes = _begin(attempt, rules, now)
        if is_matched:
            del changes["started_at"]
            # Not less than the pilot was told: it may start the job until then.
            changes["lease_expires_at"] = max(attempt.lease_expires_at, rules.extend(attempt, now))
        return Decision(answer=answer, changes=changes, moves=_revive(attempt, job), note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishReport(LeaseReport):
    """A payload has ended."""

    result: PayloadResult
    output: str | None = None  #: digest of the archive that was sent before; None: not named
    used: PeakUse = NO_USE

    kind = "finish"

    def decide(self, attempt: Attempt, job: JobState, rules: LeaseRules, now: datetime) -> Decision:  # noqa: ARG002  (other reports use them)
        """End the job, which must have started; one that was killed meanwhile stays Killed.

        One that failed is rescheduled where a rule lets it run again.

        Raises:
            OutputMissing: The attempt has not the output that the report names.
        """
        request, result = self.result.to_json(), self.result
        if (answer := _find_previous_answer(attempt, request)) is not None:
            return Decision(answer=answer)
        attempts.check_open(attempt)
        if self.output not in (None, attempt.output):
            raise OutputMissing(
                f"the output of attempt {attempt.epoch} of job {attempt.job_id} is not stored; send it again"
            )
        moves = _revive(attempt, job)
        if not attempt.ending:
            reached = replace(job, status=moves[-1].status) if moves else job
            moves += self._end_job(attempt, reached)
        closed = _close(
            attempt, FINISHED, request, JobStatus.KILLED if attempt.ending else moves[-1].status, now
        )
        changes = {**closed.changes, "exit_code": result.exit_code, **self.used.raise_columns(attempt)}
        if attempt.quarantined and attempt.started_at is None:
            changes["started_at"] = now
        is_retried = bool(moves) and moves[-1].status is JobStatus.RESCHEDULED
        retry = job.retry if is_retried and isinstance(job.retry, Retry) else None
        return replace(closed, changes=changes, moves=moves, retry=retry)

    @property
    def is_failure(self) -> bool:
        """Whether the payload has failed."""
        return self.result.status == "Failed"

    def _end_job(self, attempt: Attempt, job: JobState) -> tuple[Move]:
        result, retry = self.result, job.retry
        if isinstance(retry, Retry) and job.status in may_come_from(JobStatus.RESCHEDULED):
            [again] = _move(attempt, job, JobStatus.RESCHEDULED, RETRIED, retry.note)
            return (replace(again, is_counted=False),)
        why = [retry.reason] if isinstance(retry, NoRetry) else []
        application = "; ".join(filter(None, [result.application_status, *why]))
        return _move(attempt, job, JobStatus(result.status), result.stored_minor_status, application)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseReport(LeaseReport):
    """The pilot gives the job back."""

    reason: str = ""
    #: The pilot never received the job, or its gateway cannot submit it: this counts as no rescheduling.
    is_undelivered: bool = False

    kind = "release"
    resumes = False

    def decide(self, attempt: Attempt, job: JobState, rules: LeaseRules, now: datetime) -> Decision:
        """Let a job that was not started wait again; reschedule another one, the last time let it fail.

        A job that is given back again and again before its start is rescheduled now and then, so that nodes
        that can start nothing do not take it for ever.
        """
        told = {"undelivered": True} if self.is_undelivered else {}
        request = _to_json({"release": self.reason, **told})
        if (answer := _find_previous_answer(attempt, request)) is not None:
            return Decision(answer=answer)
        attempts.check_open(attempt)
        maximum = rules.max_reschedulings.get(attempt.vo, rules.max_rescheduling)
        moves = () if attempt.ending else self._return_job(attempt, job, maximum)
        return replace(
            _close(attempt, attempts.RELEASED, request, moves[-1].status if moves else job.status, now),
            moves=moves,
        )

    def _is_too_often(self, job: JobState) -> bool:
        return not self.is_undelivered and (job.releases + 1) % bounds.RELEASES == 0

    def _return_job(self, attempt: Attempt, job: JobState, maximum: int) -> tuple[Move, ...]:
        application = self.reason or RELEASED_BY_PILOT
        if attempt.started_at is None and not self._is_too_often(job):
            return _move(attempt, job, JobStatus.WAITING, RELEASED_BY_PILOT, application)
        moves = _revive(attempt, job)
        reached = replace(job, status=moves[-1].status) if moves else job
        if self.is_undelivered and reached.status in may_come_from(JobStatus.RESCHEDULED):
            [back] = _move(attempt, reached, JobStatus.RESCHEDULED, control.RESCHEDULED, application)
            return *moves, replace(back, is_counted=False)
        if job.reschedules < maximum and reached.status in may_come_from(JobStatus.RESCHEDULED):
            return moves + _move(attempt, reached, JobStatus.RESCHEDULED, control.RESCHEDULED, application)
        return moves + _move(attempt, reached, JobStatus.FAILED, LAST_RELEASE, application)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputReport(LeaseReport):
    """An output archive is about to be sent, or was stored."""

    digest: str | None  #: of the stored archive; None: it is about to be sent
    may_be_late: bool = False  #: also after the end of the attempt, if it has no output

    kind = "output"

    def decide(self, attempt: Attempt, job: JobState, rules: LeaseRules, now: datetime) -> Decision:  # noqa: ARG002  (other reports use them)
        """Store the archive of an open attempt; also of a job that was killed while it ran.

        A late one is stored if its attempt has ended the job, which was not rescheduled since.
        """
        has_ended_job = attempt.closed_as == FINISHED and attempt.epoch == job.epoch and job.status in FINAL
        if not (self.may_be_late and has_ended_job and attempt.output in (None, self.digest)):
            attempts.check_open(attempt)
        if self.digest in (None, attempt.output):
            return Decision(answer=_answer(attempt))
        answer = replace(_answer(attempt), replaced_output=attempt.output)
        return Decision(answer=answer, changes={"output": self.digest})


def _answer(attempt: Attempt, status: str | None = None) -> ReportAnswer:
    return ReportAnswer(
        job_id=attempt.job_id,
        epoch=attempt.epoch,
        vo=attempt.vo,
        ending=attempt.ending and status is None,
        status=status,
    )


def _find_previous_answer(attempt: Attempt, request: str) -> ReportAnswer | None:
    """The answer given before, if this request is the one that closed the attempt."""
    if attempt.closed_at is None or attempt.request is None or attempt.answer is None:
        return None
    if attempt.request != request:
        raise StaleLease(
            f"attempt {attempt.epoch} of job {attempt.job_id} was already {attempt.closed_as} "
            "by a different report"
        )
    return _answer(attempt, json.loads(attempt.answer)["status"])


def _begin(attempt: Attempt, rules: LeaseRules, now: datetime) -> dict[str, object]:
    return {
        "heartbeat_at": now,
        "started_at": attempt.started_at or now,
        "lease_expires_at": rules.extend(attempt, now),
    }


def _close(attempt: Attempt, closed_as: str, request: str, status: JobStatus, now: datetime) -> Decision:
    """Close with the report that closed it and its answer, which a repetition gets again."""
    answer = _to_json({"status": status})
    changes = {"closed_at": now, "closed_as": closed_as, "request": request, "answer": answer}
    return Decision(answer=_answer(attempt, status), changes=changes)


def _revive(attempt: Attempt, job: JobState) -> tuple[Move, ...]:
    """Make a Stalled job Running again, and one whose start was among lost commits."""
    if attempt.ending:
        return ()
    lost_its_start = attempt.quarantined and attempt.started_at is None
    if lost_its_start or job.status is JobStatus.STALLED:
        # The application status is the reason of an end that was reported wrongly.
        application = "" if job.minor_status == expiry.PILOT_ENDED else None
        return _move(attempt, job, JobStatus.RUNNING, RUNNING_AGAIN, application)
    return ()


def _move(
    attempt: Attempt, job: JobState, wanted: JobStatus, minor: str, application: str | None = None
) -> tuple[Move]:
    if job.status not in may_come_from(wanted):
        raise IllegalTransition(attempt.job_id, current=job.status, wanted=wanted)
    return (Move(status=wanted, minor=minor, application=application),)


def _to_json(value: Mapping[str, object]) -> str:
    return json.dumps(value, sort_keys=True)
