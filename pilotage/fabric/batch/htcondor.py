"""HTCondor through its Python bindings: the queue manager here, over SSH, or remote by token.

A remote queue manager, such as that of an HTCondor-CE, is found by its collector; the files of jobs go to
its spool and come back from there. HTCondor transfers a job's script to the node and its output back, so
nodes need not share our directory. A job that ended stays in the queue until it is forgotten, and is then
known by the history. HTCondor restarts a job that was evicted; ours are removed instead. Source: HTCondor,
job ClassAd attributes; HTCondor-CE, remote job submission.
"""

import base64
import inspect
import json
import re
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from pydantic import Field, model_validator

from pilotage.fabric.batch import htcondor_calls
from pilotage.fabric.batch.batch_system import (
    ENDED,
    BatchJob,
    BatchSystemAway,
    Capacity,
    Handle,
    JobResources,
    Output,
    State,
    SubmissionRefused,
    SubmissionUncertain,
)
from pilotage.fabric.batch.command_line import ListingSystem
from pilotage.fabric.batch.forbidden import ForbiddenFlags, Kind, check_submission
from pilotage.fabric.batch.settings import BatchSystemKind, CommandSettings, Connections
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.batch.work_area import ListedJob, choose_job, split_words
from pilotage.fabric.file_section import SettingsPart
from pilotage.fabric.node_script import PYTHONS
from requirements.nodes import lrms_vocabulary
from requirements.nodes.lrms_vocabulary import Vocabulary, is_balanced


class RemoteSchedd(SettingsPart):
    """A queue manager of HTCondor elsewhere, such as that of an HTCondor-CE, entered by token."""

    name: str = Field(pattern=r"^[A-Za-z0-9@._{}-]+$")  #: of an HTCondor-CE: its host
    collector: str | None = Field(
        default=None, pattern=r"^[^\s\"]+$"
    )  #: host:port; by default 9619 of the host in name
    token_file: Path  #: SciToken or WLCG token with the CE as audience; read anew for each call
    authorities: Path | None = None  #: CA certificates of the CE, a file or a directory; none: the host's

    @property
    def pool(self) -> str:
        """The address of its collector."""
        address = self.collector or self.name.rpartition("@")[2]
        return address if ":" in address else f"{address}:9619"

    @property
    def secret_files(self) -> tuple[Path, ...]:
        """The token."""
        return (self.token_file,)


class HTCondorSettings(CommandSettings):
    """Settings of HTCondor."""

    schedd: RemoteSchedd | None = None  #: none: the one of this host

    @model_validator(mode="after")
    def _has_one_way(self) -> Self:
        if self.schedd is not None and self.ssh is not None:
            raise ValueError("schedd, ssh: a remote queue manager is entered from this host, not over SSH")
        return self

    @model_validator(mode="after")
    def _has_nothing_forbidden(self) -> Self:
        read_lines(self.flags)
        return self

    def check_flags(self, flags: Iterable[str], *, queue: str = "") -> None:  # noqa: ARG002 - of any name
        """Raise a `ValueError` for lines that a queue may not state."""
        read_lines(tuple(flags), is_ours=False)

    @property
    def languages(self) -> tuple[Vocabulary, ...]:
        """The vocabulary of its requirements."""
        return (lrms_vocabulary.HTCONDOR,)

    @property
    def is_remote(self) -> bool:
        """Whether its jobs are given to another queue manager."""
        return self.schedd is not None

    def lets_jobs_read(self, _file: Path, /) -> bool:
        """No directory is shared with its jobs."""
        return False


_SIGNAL = 128  #: what a shell adds to the number of a signal
#: What its one queue is called: jobs ask for machines, not for queues. Those of a CE have names of the site.
QUEUE: Final = "htcondor"
#: Seconds that a job may be held before HTCondor removes it; somebody's own hold is left alone.
_HELD = 3600
#: Seconds that a job that ended stays in the queue, unless it is forgotten before.
_KEPT = 10 * 86_400
_ATTRIBUTES = (
    *("ClusterId", "ProcId", "PilotageStamp", "JobStatus", "HoldReason", "RemoveReason"),
    *("ExitBySignal", "ExitCode", "ExitSignal", "CompletionDate", "LastJobStatus", "LastHoldReason"),
)

_OURS = "PilotageStamp =!= undefined"
_REMOVED, _COMPLETED = 3, 4
#: Source: HTCondor, job ClassAd attributes, JobStatus; one that is being removed still runs.
_STATES = {
    1: State.WAITING,
    2: State.RUNNING,
    _REMOVED: State.RUNNING,
    5: State.WAITING,
    6: State.RUNNING,
    7: State.RUNNING,
}
_ERRORS = {
    htcondor_calls.AWAY: BatchSystemAway,
    htcondor_calls.REFUSED: SubmissionRefused,
    htcondor_calls.UNCERTAIN: SubmissionUncertain,
}
#: As it is now: a later release on the disk is none for this process.
_CALLS: Final = inspect.getsource(htcondor_calls)
_PROGRAM: Final = f"import sys; exec(sys.stdin.read({len(_CALLS)}))"
#: Reads nothing from standard input if the bindings cannot be loaded. One line: csh may be the login's shell.
_TRY: Final = f"import htcondor2; {_PROGRAM}"
#: Runs the first of several Pythons that can load the bindings; what then fails goes to no other one.
_CHOOSE: Final = (
    'for python in "$@"; do command -v "$python" >/dev/null || continue; "$python" -I -c "$0" && exit;'
    ' status=$?; "$python" -I -c "import htcondor2" </dev/null >/dev/null 2>&1 && exit $status; done;'
    ' echo "no Python with the bindings of HTCondor on $(uname -n); looked for $*" >&2; exit 127'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HTCondor(ListingSystem):
    """One queue manager, used as one account."""

    flags: tuple[str, ...] = ()  #: `-append` and a line of a submit description, of every submission
    schedd: RemoteSchedd | None = None  #: none: the one of the shell's host
    pythons: tuple[str, ...] = (sys.executable,)  #: that may have the bindings, on the shell's host

    def submit(self, job: BatchJob) -> str:
        """Put a job into the queue, with its script; its reference."""
        if self.schedd is None and job.queue != QUEUE:
            raise SubmissionRefused(f"{job.stamp}: there is no queue {job.queue}, only {QUEUE}")
        if not _QUEUE_NAME.fullmatch(job.queue):
            raise SubmissionRefused(f"{job.stamp}: {job.queue!r} is not a valid name of a queue")
        try:
            lines = join_requirements([*read_lines(self.flags), *read_lines(job.flags, is_ours=False)])
        except ValueError as error:
            raise SubmissionRefused(f"{job.stamp}: {error}") from None
        self.areas.put_script(job)
        text = describe(job, self.areas.path(job.stamp), lines, is_remote=self.schedd is not None)
        try:
            return str(self._call("submit", description=text, spool=self.schedd is not None))
        except NoAnswer as error:
            raise SubmissionUncertain(f"{job.stamp}: {error}") from error
        except (BatchSystemAway, SubmissionRefused, SubmissionUncertain) as error:
            raise type(error)(f"{job.stamp}: {error}") from error

    def output(self, handle: Handle) -> Output:
        """Output of the job while it runs; from a remote queue manager, only when it has ended."""
        if self.schedd is not None:
            row = choose_job(self._listed([handle.stamp]).get(handle.stamp, ()), handle)
            if row is not None and row.state in ENDED:
                self._call("retrieve", references=[row.reference])
        return self.areas.output(handle.stamp)

    def forget(self, handles: Sequence[Handle]) -> None:
        """Remove jobs that ended from the queue, and their work areas."""
        listed = self._listed([handle.stamp for handle in handles])
        if ended := [row.reference for rows in listed.values() for row in rows if row.state in ENDED]:
            self._end(ended)
        ListingSystem.forget(self, handles)

    def capacity(self) -> Mapping[str, Capacity]:
        """Capacity of the machines of the pool; unknown behind a remote queue manager."""
        if self.schedd is not None:
            self._call("ping")
            return {}
        return {QUEUE: _capacity_of(self._call("machines"))}

    def _listing(self) -> Iterator[ListedJob]:
        for ad in self._call("query", constraint=_OURS, attributes=_ATTRIBUTES):
            if ad.get("JobStatus") == _COMPLETED:
                yield _ended(ad)
            else:
                reason = ad.get("HoldReason") or ad.get("RemoveReason") or ""
                yield _row(ad, _STATES.get(ad.get("JobStatus", 0), State.UNKNOWN), message=str(reason))

    def _accounted(self, stamps: Collection[str]) -> Iterator[ListedJob]:
        """The history of jobs that left the queue; nothing where there is none."""
        for some in split_words(sorted(stamps)):
            constraint = f'stringListMember(PilotageStamp, "{",".join(some)}")'
            yield from map(
                _ended,
                self._call("history", constraint=constraint, attributes=_ATTRIBUTES, most=len(some)),
            )

    def _end(self, references: Sequence[str]) -> None:
        self._call("remove", references=references)

    def _call(self, name: str, **request: object) -> Any:
        """Make one call of the bindings; an error of it by what follows from it."""
        command = [*self.pythons, "-I", "-c", _PROGRAM]
        if len(self.pythons) > 1:
            command = ["sh", "-c", _CHOOSE, _TRY, *self.pythons]
        place = {} if self.schedd is None else {"collector": self.schedd.pool, "schedd": self.schedd.name}
        whole = {**request, **place, "call": name}
        done = self._shell.run(command, stdin=_CALLS + json.dumps(whole))
        try:
            [line] = set(done.stdout.splitlines())
            said = json.loads(line)
            if "answer" in said:
                return said["answer"]
            raise _ERRORS[said["kind"]](f"{said['error']}{_token_trouble(self.schedd)}")
        except (ValueError, KeyError, TypeError):
            raise NoAnswer(f"HTCondor: {name}: no answer, but {done.said}") from None


def login_variables(schedd: RemoteSchedd) -> Mapping[str, str]:
    """Configuration of the bindings for a remote queue manager, which they read when they are loaded."""
    variables = {
        "CONDOR_CONFIG": "ONLY_ENV",
        "_CONDOR_SEC_CLIENT_AUTHENTICATION_METHODS": "SCITOKENS",
        "_CONDOR_SCITOKENS_FILE": str(schedd.token_file),
    }
    if schedd.authorities is not None:
        kind = "CADIR" if schedd.authorities.is_dir() else "CAFILE"
        variables[f"_CONDOR_AUTH_SSL_CLIENT_{kind}"] = str(schedd.authorities)
    return variables


def _token_trouble(schedd: RemoteSchedd | None) -> str:
    """The problem of the token, if it has a visible one: HTCondor reports only that access was refused."""
    if schedd is None:
        return ""
    try:
        text = schedd.token_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        return f"; token_file: {error}"
    with suppress(ValueError, IndexError, AttributeError):
        part = text.split(".")[1]
        ends = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))).get("exp")
        if isinstance(ends, int | float) and ends < time.time():
            when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ends))
            return f"; the token in {schedd.token_file} expired at {when}: put a new one there"
    return ""


def describe(job: BatchJob, directory: str, lines: Sequence[str] = (), *, is_remote: bool = False) -> str:
    """The submit description of a job whose files lie in a directory, with further lines."""
    again, held = "(JobStatus == 1 && NumJobStarts > 0)", f"time() - EnteredCurrentStatus > {_HELD}"
    over = f"(JobStatus == 5 && HoldReasonCode =!= 1 && {held})"
    if (seconds := job.resources.wall_time) is not None:
        over += f" || (JobStatus == 2 && time() - JobCurrentStartDate > {seconds})"
    parts = (
        *("universe = vanilla", f"executable = {directory}/job", f"initialdir = {directory}"),
        *(f"output = {directory}/out", f"error = {directory}/err", "transfer_executable = true"),
        *("should_transfer_files = YES", "when_to_transfer_output = ON_EXIT", 'transfer_output_files = ""'),
        *("getenv = false", "notification = never", f"batch_name = {job.stamp}"),
        *(f"periodic_remove = {again} || {over}", f'My.PilotageStamp = "{job.stamp}"'),
        *(f'My.Pilotage{name} = "{value}"' for name, value in job.labels.items()),
        f"leave_in_queue = JobStatus == {_COMPLETED} && time() - EnteredCurrentStatus < {_KEPT}",
        *_resource_lines(job.resources),
        *(_remote_lines(job) if is_remote else ("stream_output = true", "stream_error = true")),
        *lines,
        "queue 1",
    )
    return "\n".join(parts) + "\n"


_QUEUE_NAME = re.compile(r"[\w.@:+/-]+", re.ASCII)
#: A line that sets a command or an attribute. Others, such as `include command : …`, are executed here.
_SETS = re.compile(r"(?P<attribute>\+|My\.)?(?P<name>[A-Za-z_]\w*)[ \t]*=[^\r\n\0]*(?<!\\)", re.IGNORECASE)
#: Commands of flags that others state, and attributes that are none of them: those of files of this host.
_COMMANDS = re.compile(
    r"requirements|rank|priority|nice_user|environment|require_gpus|cuda_version|keep_claim_idle"
    r"|(request|gpus)_\w+|accounting_group(_user)?|concurrency_limits(_expr)?|allowed_execute_duration",
    re.IGNORECASE,
)
_OF_FILES = re.compile(
    r"\w*(transfer|file|proxy|cred|oauth|spool|remap|image|plugin|log|destination)\w*"
    r"|submit_\w+|pilotage\w*|cmd|iwd|in|out|err|args|arguments|owner|user",
    re.IGNORECASE,
)


#: In lines of flags after `-append`.
FORBIDDEN: Final[Mapping[Kind, ForbiddenFlags]] = {
    "several_jobs": ForbiddenFlags(
        flags=r"^(?i:queue\b)",
        instead="leave it out; as many jobs are submitted as are needed",
    ),
    "held": ForbiddenFlags(
        flags=r"^(?i:(?:hold|noop_job)[ \t]*=[ \t]*(?:t|y|1)|(?:\+|My\.)JobStatus\b"
        r"|(?:\+|My\.)?(?:deferral_?time|cron_?(?:minute|hour|day_?of_?month|month|day_?of_?week))\b)",
        instead="leave it out; to stop pilots, drain or ban the queue",
    ),
    "renamed": ForbiddenFlags(
        flags=r"^(?i:(?:\+|My\.)PilotageStamp\b)",
        instead="leave it out; PilotageVO and the like say what a job is for",
    ),
}


def read_lines(flags: Sequence[str], *, is_ours: bool = True) -> list[str]:
    """The lines that flags append to a description; not `is_ours`: the resource tree may state them.

    Raises:
        ValueError: Flags are no pairs of `-append` and a line, or a line is not allowed.
    """
    if len(flags) % 2 or any(option != "-append" for option in flags[::2]):
        raise ValueError(
            f"flags of HTCondor are pairs of -append and a line of a submit description, not {list(flags)!r}"
        )
    lines = [line.strip() for line in flags[1::2]]
    check_submission(FORBIDDEN, lines)
    for line in lines:
        found = _SETS.fullmatch(line)
        if found is None:
            raise ValueError(f"flags: {line!r} does not set one value, as in 'name = value'")
        name = found["name"]
        is_safe = not _OF_FILES.fullmatch(name) if found["attribute"] else _COMMANDS.fullmatch(name)
        if not is_ours and (not is_safe or "$" in line):
            raise ValueError(
                f"flags: {line!r} may read files or variables of this host: only the flags of a"
                " system in its file may set this"
            )
    return lines


def join_requirements(lines: Sequence[str]) -> list[str]:
    """The lines with one for all `requirements`: of several, HTCondor takes the last.

    Raises a `ValueError` for one that would end the parentheses around it.
    """
    expressions = {
        line: line.partition("=")[2].strip()
        for line in lines
        if (found := _SETS.fullmatch(line)) and found["name"].lower() == "requirements"
    }
    if len(expressions) < 2:
        return list(lines)
    for line in expressions:
        if not is_balanced(line):
            raise ValueError(f"flags: {line!r}: parentheses or quotation marks are not closed")
    joined = " && ".join(f"({each})" for each in expressions.values() if each)
    return [*(line for line in lines if line not in expressions), f"requirements = {joined}"]


def _resource_lines(resources: JobResources) -> Iterator[str]:
    yield f"request_cpus = {resources.cores}"
    if resources.memory is not None:
        yield f"request_memory = {resources.memory}"  # MB
    if resources.gpus:
        yield f"request_gpus = {resources.gpus}"
    if resources.whole_node:
        yield "My.RequiresWholeMachine = true"


def _remote_lines(job: BatchJob) -> Iterator[str]:
    """The same for the routes of an HTCondor-CE to other batch systems, with its names."""
    yield f"My.xcount = {job.resources.cores}"
    if job.resources.memory is not None:
        yield f"My.maxMemory = {job.resources.memory}"  # MB
    if job.resources.wall_time is not None:
        yield f"My.maxWallTime = {-(-job.resources.wall_time // 60)}"  # minutes
    if job.resources.whole_node:
        yield "My.WantWholeNode = true"
    if job.queue != QUEUE:
        yield from (f'My.{name} = "{job.queue}"' for name in ("remote_queue", "queue"))


def exit_code(*, by_signal: bool, number: object) -> int | None:
    """The status that a shell would see."""
    if not isinstance(number, int):
        return None
    return number + _SIGNAL if by_signal else number


def _capacity_of(pool: Mapping[str, Sequence[Mapping[str, Any]]]) -> Capacity:
    """Cores and jobs of a pool; parts of a partitionable slot count with it."""
    whole = [slot for slot in pool["slots"] if slot.get("SlotType") != "Dynamic"]
    cores = sum(int(slot.get("TotalSlotCpus", slot.get("Cpus", 0))) for slot in whole)
    free = sum(int(slot.get("Cpus", 0)) for slot in whole if slot.get("State") == "Unclaimed")
    return Capacity(
        cores=cores,
        free_cores=min(free, cores),
        waiting=sum(int(each.get("TotalIdleJobs", 0)) for each in pool["queues"]),
        running=sum(int(each.get("TotalRunningJobs", 0)) for each in pool["queues"]),
    )


def _row(ad: Mapping[str, Any], state: State, *, message: str, exit_code: int | None = None) -> ListedJob:
    try:
        reference = f"{ad['ClusterId']}.{ad['ProcId']}"
        stamp = str(ad["PilotageStamp"])
    except KeyError as error:
        raise BatchSystemAway(f"HTCondor: a job without {error}: {ad!r:.80}") from None
    return ListedJob(stamp=stamp, reference=reference, state=state, message=message, exit_code=exit_code)


def _ended(ad: Mapping[str, Any]) -> ListedJob:
    """A job that ended, as the queue or the history has it; one that was completed was removed later."""
    if ad.get("JobStatus") == _REMOVED and not ad.get("CompletionDate"):
        return _row(ad, State.KILLED, message=_find_removal_reason(ad))
    by_signal = ad.get("ExitBySignal") is True
    number = ad.get("ExitSignal") if by_signal else ad.get("ExitCode")
    status = exit_code(by_signal=by_signal, number=number)
    state = State.DONE if status == 0 else State.FAILED
    return _row(ad, state, message="ended", exit_code=status)


#: Why `periodic_remove` of `describe` removed a job, by its status before.
_REMOVALS = {
    1: "evicted, or its node was lost: HTCondor would have started it again",
    2: "removed by HTCondor at its time limit",
}


def _find_removal_reason(ad: Mapping[str, Any]) -> str:
    reason = str(ad.get("RemoveReason") or "")
    if "PeriodicRemove expression" not in reason:
        return reason
    held = ad.get("HoldReason") or ad.get("LastHoldReason")
    return _REMOVALS.get(ad.get("LastJobStatus", 0)) or (f"held: {held}" if held else reason)


def _open(settings: HTCondorSettings, connections: Connections) -> HTCondor:
    if settings.schedd is not None:
        environment = {**login_variables(settings.schedd), **settings.environment}
        settings = settings.model_copy(update={"environment": environment})
    return HTCondor(
        areas=connections.areas(settings),
        flags=settings.flags,
        schedd=settings.schedd,
        pythons=(sys.executable,) if settings.ssh is None else PYTHONS,
    )


KIND: Final = BatchSystemKind(open=_open, settings=HTCondorSettings, only_queue=QUEUE)
