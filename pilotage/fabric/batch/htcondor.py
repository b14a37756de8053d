"""HTCondor, through its commands and the event logs of its jobs.

HTCondor transfers a job's script to the node and its output back, so nodes need not share our directory. The
state of a job that has left the queue is read from its event log by HTCondor's own library, else from the
history. HTCondor restarts a job that was evicted; ours are removed instead. Source: HTCondor, job event log.
"""

import json
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import htcondor2

from pilotage.fabric.batch.batch_system import (
    BatchJob,
    BatchSystemAway,
    Capacity,
    JobResources,
    State,
    SubmissionRefused,
)
from pilotage.fabric.batch.command_line import CommandLineSystem
from pilotage.fabric.batch.settings import BatchSystemKind, Connections, SystemSettings
from pilotage.fabric.batch.shell import Completed
from pilotage.fabric.batch.work_area import ListedJob, split_words

_SIGNAL = 128  #: what a shell adds to the number of a signal


def read_event_log(text: str, stamp: str) -> ListedJob | None:
    """The end of the job whose log this is; None: it is not in it. Of several ends the last one holds."""
    with tempfile.NamedTemporaryFile(mode="w", suffix=".log") as file:
        file.write(text + "\n")
        file.flush()
        with htcondor2.JobEventLog(file.name) as log:
            ends = [end for event in log.events(0) if (end := _end(event, stamp)) is not None]
    return ends[-1] if ends else None


def _end(event: "htcondor2.JobEvent", stamp: str) -> ListedJob | None:
    reference = f"{event.cluster}.{event.proc}"
    if event.type is htcondor2.JobEventType.JOB_ABORTED:
        reason = str(event.get("Reason", ""))
        return ListedJob(stamp=stamp, reference=reference, state=State.KILLED, message=reason)
    if event.type is not htcondor2.JobEventType.JOB_TERMINATED:
        return None
    by_signal = not event.get("TerminatedNormally", False)
    number = event.get("TerminatedBySignal" if by_signal else "ReturnValue")
    status = exit_code(by_signal=by_signal, number=number)
    state, message = State.DONE if status == 0 else State.FAILED, "known by its event log"
    return ListedJob(stamp=stamp, reference=reference, state=state, message=message, exit_code=status)


def exit_code(*, by_signal: bool, number: object) -> int | None:
    """The status that a shell would see."""
    if not isinstance(number, int):
        return None
    return number + _SIGNAL if by_signal else number


#: What its one queue is called: jobs ask for machines, not for queues.
QUEUE: Final = "htcondor"
#: Words with which a submission is refused for good.
_REFUSED = (
    "ERROR: on Line",
    "Parse error",
    "no 'queue' commands",
    "denied",
    "not allowed",
    "Invalid",
    "invalid",
)
#: Words with which a question was not answered, whatever the exit status.
_NO_ANSWER = (
    *("Failed to connect", "Can't find address", "Failed to commit", "Unable to contact", "timed out"),
    *("Failed to fetch", "Error:", "ERROR:"),
)
#: What is said of jobs that cannot be removed because they are not there.
_NOT_THERE = ("not found", "already marked for removal")
#: Seconds that a job may be held before HTCondor removes it; somebody's own hold is left alone.
_HELD = 3600
#: Records of the history that are looked at.
_HISTORY = 50_000
_ATTRIBUTES = (
    *("ClusterId", "ProcId", "PilotageStamp", "JobStatus", "HoldReason", "RemoveReason"),
    *("ExitBySignal", "ExitCode", "ExitSignal"),
)
_LISTING = (
    *("condor_q", "-json", "-attributes", ",".join(_ATTRIBUTES)),
    *("-constraint", "PilotageStamp =!= undefined"),
)
#: The first and the last job of a submission; ours is of one.
_TAKEN = re.compile(r"^(\d+\.\d+) - \1$", re.MULTILINE)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HTCondor(CommandLineSystem):
    """One queue manager, used as one account."""

    def _submission(self, job: BatchJob) -> list[str]:
        if job.queue != QUEUE:
            raise SubmissionRefused(f"{job.stamp}: there is no queue {job.queue}, only {QUEUE}")
        self.areas.put_script(job)
        description = self.areas.put(job.stamp, "submit", describe(job, self.areas.path(job.stamp)))
        return ["condor_submit", "-terse", *self.flags, *job.flags, description]

    def _reference(self, said: str) -> str | None:
        found = _TAKEN.search(said)
        return found[1] if found else None

    def _is_refused(self, done: Completed) -> bool:
        return any(words in done.stdout + done.stderr for words in _REFUSED)

    def _listing(self) -> Iterator[ListedJob]:
        for ad in self._ads(_LISTING):
            if ad.get("JobStatus") == _COMPLETED:
                yield _ended(ad)
            else:
                reason = ad.get("HoldReason") or ad.get("RemoveReason") or ""
                yield _row(ad, _STATES.get(ad.get("JobStatus", 0), State.UNKNOWN), message=str(reason))

    def _accounted(self, stamps: Collection[str]) -> Iterator[ListedJob]:
        """What event logs tell, and the history of those whose log tells nothing."""
        logs = self.areas.texts(stamps, "events")
        ends = {
            stamp: end for stamp, text in logs.items() if (end := read_event_log(text, stamp)) is not None
        }
        yield from ends.values()
        for some in split_words(sorted(set(stamps) - ends.keys())):
            yield from map(_ended, self._history(some))

    def _history(self, stamps: Sequence[str]) -> list[Mapping[str, Any]]:
        """The records of jobs that left the queue; nothing where there is no history."""
        done = self._shell.run(
            [
                *("condor_history", "-json", "-attributes", ",".join(_ATTRIBUTES)),
                *("-constraint", f'stringListMember(PilotageStamp, "{",".join(stamps)}")'),
                *("-limit", str(len(stamps)), "-scanlimit", str(_HISTORY)),
            ]
        )
        return _parse_ads("condor_history", done) if done.status == 0 else []

    def _end(self, references: Sequence[str]) -> None:
        done = self._shell.run(["condor_rm", *references])
        if done.status != 0 and not any(words in done.stdout + done.stderr for words in _NOT_THERE):
            raise BatchSystemAway(f"condor_rm: {done.said}")

    def capacity(self) -> Mapping[str, Capacity]:
        """What the machines of the pool have; parts of a partitionable slot count with it."""
        slots = self._ads(("condor_status", "-json", "-attributes", "SlotType,State,Cpus,TotalSlotCpus"))
        whole = [slot for slot in slots if slot.get("SlotType") != "Dynamic"]
        managers = self._ads(
            ("condor_status", "-schedd", "-json", "-attributes", "TotalIdleJobs,TotalRunningJobs")
        )
        cores = sum(int(slot.get("TotalSlotCpus", slot.get("Cpus", 0))) for slot in whole)
        free = sum(int(slot.get("Cpus", 0)) for slot in whole if slot.get("State") == "Unclaimed")
        capacity = Capacity(
            cores=cores,
            free_cores=min(free, cores),
            waiting=sum(int(each.get("TotalIdleJobs", 0)) for each in managers),
            running=sum(int(each.get("TotalRunningJobs", 0)) for each in managers),
        )
        return {QUEUE: capacity}

    def _ads(self, command: Sequence[str]) -> list[Mapping[str, Any]]:
        done = self._shell.run(command)
        if done.status != 0 or any(words in done.stderr for words in _NO_ANSWER):
            raise BatchSystemAway(f"{command[0]}: {done.said}")
        return _parse_ads(command[0], done)


def describe(job: BatchJob, directory: str) -> str:
    """The submit description of a job whose files lie in a directory."""
    again, held = "(JobStatus == 1 && NumJobStarts > 0)", f"time() - EnteredCurrentStatus > {_HELD}"
    over = f"(JobStatus == 5 && HoldReasonCode =!= 1 && {held})"
    if (seconds := job.resources.wall_time) is not None:
        over += f" || (JobStatus == 2 && time() - JobCurrentStartDate > {seconds})"
    lines = (
        *("universe = vanilla", f"executable = {directory}/job", f"initialdir = {directory}"),
        *(f"output = {directory}/out", f"error = {directory}/err", f"log = {directory}/events"),
        *("stream_output = true", "stream_error = true", "transfer_executable = true"),
        *("should_transfer_files = YES", "when_to_transfer_output = ON_EXIT", 'transfer_output_files = ""'),
        *("getenv = false", "notification = never", f"batch_name = {job.stamp}"),
        *(f"periodic_remove = {again} || {over}", f'My.PilotageStamp = "{job.stamp}"'),
        *_resource_lines(job.resources),
        "queue 1",
    )
    return "\n".join(lines) + "\n"


def _resource_lines(resources: JobResources) -> Iterator[str]:
    yield f"request_cpus = {resources.cores}"
    if resources.memory is not None:
        yield f"request_memory = {resources.memory}"  # MB
    if resources.gpus:
        yield f"request_gpus = {resources.gpus}"
    if resources.whole_node:
        yield "My.RequiresWholeMachine = true"


def _row(ad: Mapping[str, Any], state: State, *, message: str, exit_code: int | None = None) -> ListedJob:
    try:
        reference = f"{ad['ClusterId']}.{ad['ProcId']}"
        stamp = str(ad["PilotageStamp"])
    except KeyError as error:
        raise BatchSystemAway(f"condor_q: a job without {error}: {ad!r:.80}") from None
    return ListedJob(stamp=stamp, reference=reference, state=state, message=message, exit_code=exit_code)


def _ended(ad: Mapping[str, Any]) -> ListedJob:
    """A job that ended, as the queue or the history has it."""
    if ad.get("JobStatus") == _REMOVED:
        return _row(ad, State.KILLED, message=str(ad.get("RemoveReason", "")))
    by_signal = bool(ad.get("ExitBySignal"))
    number = ad.get("ExitSignal") if by_signal else ad.get("ExitCode")
    status = exit_code(by_signal=by_signal, number=number)
    state = State.DONE if status == 0 else State.FAILED
    return _row(ad, state, message="known by the queue or its history", exit_code=status)


def _parse_ads(command: str, done: Completed) -> list[Mapping[str, Any]]:
    """The ads in an answer; without any it is empty."""
    if not done.stdout.strip():
        return []
    try:
        ads = json.loads(done.stdout)
    except ValueError as error:
        raise BatchSystemAway(f"{command}: the answer cannot be read: {error}") from error
    if not isinstance(ads, list) or not all(isinstance(ad, dict) for ad in ads):
        raise BatchSystemAway(f"{command}: the answer is no list of ads: {done.stdout[:80]!r}")
    return ads


def _open(settings: SystemSettings, connections: Connections) -> HTCondor:
    return HTCondor(areas=connections.areas(settings), flags=settings.flags)


KIND: Final = BatchSystemKind(open=_open)
