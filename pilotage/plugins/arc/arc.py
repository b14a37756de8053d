"""ARC CE through the REST interface of A-REX: job descriptions, job states, and queue information.

A job has its stamp as name. A-REX repeats the state of a job in its batch system (waiting or running) as of
its last poll, on most CEs a minute ago. There is no shared directory: a job's files are uploaded after its
description, and it does not start before. What it writes can be read, and is kept if the description says so.
A-REX itself gives up a job whose submission was interrupted in between. Source: EMI, Activity Description
Language (ADL) 1.0; OGF, GLUE 2.0, ComputingShare and ComputingManager.
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from xml.etree import ElementTree as Xml

from pilotage.fabric.batch.batch_system import (
    ENDED,
    BatchJob,
    BatchSystemAway,
    Capacity,
    Handle,
    JobReport,
    JobResources,
    Output,
    State,
    SubmissionRefused,
    SubmissionUncertain,
    Survey,
)
from pilotage.fabric.batch.settings import BatchSystemKind, Connections, Flags, SystemSettings
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.batch.work_area import (
    ListedJob,
    StatusMarks,
    choose_job,
    index_by_stamp,
    job_report,
    wrapper,
)
from pilotage.plugins.arc.rest import ArcRest, ComputingElement, Item, connect
from requirements.errors import format_count
from requirements.nodes import lrms_vocabulary
from requirements.nodes.lrms_vocabulary import Vocabulary

_NAMESPACE = "http://www.eu-emi.eu/es/2010/12/adl"
_MEGABYTE = 1 << 20
_ENVIRONMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]*")
#: What the job needs before it starts, its program first.
INPUTS = ("wrapper", "job")
#: What is kept of it when it has ended.
OUTPUTS = ("out", "err", "exit")


def describe(job: BatchJob, environments: Sequence[str]) -> bytes:
    """A job as ADL: data only, whatever its values are; `SubmissionRefused` where ADL has no word for them.

    Runtime environments have their options after them; the job's flags are further ones.
    """
    root = Xml.Element("ActivityDescription", xmlns=_NAMESPACE)
    _add(_add(root, "ActivityIdentification"), "Name", job.stamp)
    _add(_add(_add(root, "Application"), "Executable"), "Path", INPUTS[0])
    resources = _add(root, "Resources")
    for each in (*environments, *job.flags):
        _environment(resources, each, job.stamp)
    _ask(resources, job.resources, job.stamp)
    _add(resources, "QueueName", job.queue)
    staging = _add(root, "DataStaging")
    for name in (*INPUTS, *job.inputs):
        file = _add(staging, "InputFile")
        _add(file, "Name", name)
        if name in INPUTS:
            _add(file, "IsExecutable", "true")
    for name in (*OUTPUTS, *job.outputs):
        _add(_add(staging, "OutputFile"), "Name", name)
    text: bytes = Xml.tostring(root, encoding="utf-8")
    return text


def _ask(resources: Xml.Element, asked: JobResources, stamp: str) -> None:
    if asked.gpus:
        raise SubmissionRefused(
            f"{stamp}: requires {format_count(asked.gpus, 'GPU')}; ARC has no word for it: name a "
            "runtime environment of the CE in the flags, such as 'ENV/GPU 1', or a queue that has them"
        )
    if asked.memory is not None:
        each = math.ceil(asked.memory / asked.cores)
        _add(resources, "IndividualPhysicalMemory", str(each * _MEGABYTE))
    if asked.wall_time is not None:
        _add(resources, "WallTime", str(asked.wall_time))
    slots = _add(resources, "SlotRequirement")
    _add(slots, "NumberOfSlots", str(asked.cores))
    _add(slots, "SlotsPerHost", str(asked.cores))
    if asked.whole_node:
        _add(slots, "ExclusiveExecution", "true")


def _environment(resources: Xml.Element, flag: str, stamp: str) -> None:
    name, *options = flag.split() or [""]
    if not _ENVIRONMENT.fullmatch(name) or not all(each.isprintable() for each in options):
        raise SubmissionRefused(
            f"{stamp}: {flag!r} is no runtime environment; flags of an ARC CE are such, with their options:"
            " 'ENV/GPU 1'"
        )
    environment = _add(resources, "RuntimeEnvironment")
    _add(environment, "Name", name)
    for each in options:
        _add(environment, "Option", each)


def _add(parent: Xml.Element, name: str, text: str | None = None) -> Xml.Element:
    child = Xml.SubElement(parent, name)
    child.text = text
    return child


_PATH = ("Domains", "AdminDomain", "Services", "ComputingService")


def capacity_of(document: Item) -> Mapping[str, Capacity]:
    """The queues by name.

    GLUE counts the cores of the whole CE, free ones for each queue; a queue that does not take jobs has none.
    A document without queues is not made yet, or not whole: `BatchSystemAway`.
    """
    service: Any = document
    for name in _PATH:
        service = service.get(name) if isinstance(service, dict) else None
    if not isinstance(service, dict):
        raise BatchSystemAway(f"the CE does not state what it has, no {'/'.join(_PATH)}")
    cores = sum(_number(each, "TotalSlots") for each in _as_list(service.get("ComputingManager")))
    shares: defaultdict[str, list[Item]] = defaultdict(list)
    for share in _as_list(service.get("ComputingShare")):
        shares[str(share.get("MappingQueue") or share.get("Name"))].append(share)
    return {queue: _queue_capacity(queue, its, cores) for queue, its in shares.items()}


def _queue_capacity(queue: str, shares: Sequence[Item], cores: int) -> Capacity:
    """Of the share with the name of the queue, which has all its jobs; else of those of VOs together."""
    of_queue = [share for share in shares if share.get("Name") == queue] or shares
    in_use = [share for share in of_queue if share.get("ServingState") == "production"]
    return Capacity(
        cores=cores * bool(in_use),
        free_cores=min(max((_number(share, "FreeSlots") for share in in_use), default=0), cores),
        waiting=sum(_number(each, "WaitingJobs") + _number(each, "PreLRMSWaitingJobs") for each in of_queue),
        running=sum(_number(each, "RunningJobs") for each in of_queue),
    )


def _as_list(found: object) -> Iterator[Item]:
    """A list of one object, or of those in a list."""
    for each in found if isinstance(found, list) else [found]:
        if isinstance(each, dict):
            yield each


def _number(item: Item, name: str) -> int:
    said = str(item.get(name, ""))
    return int(said) if said.isdecimal() else 0


#: Source: NorduGrid, ARC CE REST interface 1.0, job states; those that are wiped are gone.
_STATES = {
    "ACCEPTING": State.WAITING,
    "ACCEPTED": State.WAITING,
    "PREPARING": State.WAITING,
    "PREPARED": State.WAITING,
    "SUBMITTING": State.WAITING,
    "QUEUING": State.WAITING,
    "HELD": State.WAITING,
    "RUNNING": State.RUNNING,
    "EXITINGLRMS": State.RUNNING,
    "OTHER": State.RUNNING,
    "EXECUTED": State.RUNNING,
    "FINISHING": State.RUNNING,
    "KILLING": State.RUNNING,
    "FINISHED": State.DONE,
    "FAILED": State.FAILED,
    "KILLED": State.KILLED,
    "None": State.UNKNOWN,  # between two others
}
_WIPED = "WIPED"
#: Some releases call a job that was ended by its owner a failed one, and say so here.
_CANCELLED = "canceled by external request"
#: How a reason begins that is A-REX's own trouble; others are about the description.
_TROUBLE = ("Failed", "No more jobs", "No non-draining")
#: What is fetched of an output at most.
_LAST = 10_000_000  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Arc:
    """One ARC CE, used as one account."""

    rest: ArcRest
    environments: tuple[str, ...] = ()  #: runtime environments of every job, each with its options
    #: By reference, since neither ever changes: the stamps of jobs, and how those ended that are over.
    _stamps: dict[str, str] = field(default_factory=dict)
    _ends: dict[str, ListedJob] = field(default_factory=dict)

    def submit(self, job: BatchJob) -> str:
        """Hand in a job, then its files; its reference."""
        reference = self._create(job)
        self._stamps[reference] = job.stamp
        texts = zip(INPUTS, (wrapper("."), job.script), strict=True)
        try:
            for name, content in {**job.inputs, **{name: text.encode() for name, text in texts}}.items():
                self.rest.write(reference, name, content)
        except BatchSystemAway as error:
            raise SubmissionUncertain(f"{job.stamp}: its files may be missing: {error}") from error
        return reference

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        """The states of jobs by the listing; each that runs by it is queried, since it may still wait."""
        return self._reports(handles, self._rows())

    def survey(self, handles: Sequence[Handle], prefix: str) -> Survey:
        """The states of jobs, and the stamps of our listed jobs that have not ended."""
        rows = self._rows()
        alive = (row.stamp for row in rows if row.stamp.startswith(prefix) and row.state not in ENDED)
        return Survey(reports=self._reports(handles, rows), stamps=frozenset(alive))

    def _reports(self, handles: Sequence[Handle], found: Sequence[ListedJob]) -> Mapping[str, JobReport]:
        asked = {handle.stamp: handle for handle in handles}
        listed = index_by_stamp(row for row in found if row.stamp in asked)
        chosen = {stamp: choose_job(listed.get(stamp, ()), handle) for stamp, handle in asked.items()}
        rows = {row.reference: row for row in chosen.values() if row is not None}
        rows.update(self._in_batch([row for row in rows.values() if row.state is State.RUNNING]))
        rows.update({row.reference: self._ended(row) for row in rows.values() if row.state in ENDED})
        return {stamp: _report(row and rows[row.reference], asked[stamp]) for stamp, row in chosen.items()}

    def find(self, stamps: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """The references of the listed jobs that bear one of the stamps."""
        return {stamp: tuple(row.reference for row in rows) for stamp, rows in self._listed(stamps).items()}

    def kill(self, handles: Sequence[Handle]) -> None:
        """End jobs wherever they are."""
        self._each("kill", [row for row in self._of(handles) if row.state not in ENDED])

    def output(self, handle: Handle) -> Output:
        """Output of the job so far."""
        stdout, stderr = (self.read_file(handle, name, last=_LAST) for name in ("out", "err"))
        return Output(stdout=stdout, stderr=stderr)

    def read_file(self, handle: Handle, name: str, *, last: int) -> bytes:
        """Read the last bytes of a file of a job; empty if there is none."""
        reference = handle.reference
        if reference is None or self._stamps.get(reference) != handle.stamp:
            row = choose_job(self._of([handle]), handle)
            reference = None if row is None else row.reference
        return b"" if reference is None else self.rest.read(reference, name, last=last)

    def forget(self, handles: Sequence[Handle]) -> None:
        """Remove jobs that ended with their files; one that has not is left."""
        self._each("clean", [row for row in self._of(handles) if row.state in ENDED])

    def capacity(self) -> Mapping[str, Capacity]:
        """Capacity of the queues, as the CE reports it."""
        return capacity_of(self.rest.information())

    def _create(self, job: BatchJob) -> str:
        description = describe(job, self.environments)
        try:
            item = self.rest.create(description)
        except NoAnswer as error:
            raise SubmissionUncertain(f"{job.stamp}: {error}") from error
        if item.get("status-code") == "201" and item.get("id"):
            return str(item["id"])
        reason = str(item.get("reason") or item)
        if reason.startswith(_TROUBLE):
            raise BatchSystemAway(f"{job.stamp}: not taken now: {reason}")
        raise SubmissionRefused(f"{job.stamp}: {reason}")

    def _of(self, handles: Sequence[Handle]) -> list[ListedJob]:
        """The jobs with the stamps of handles: the references may be those of others."""
        listed = self._listed([handle.stamp for handle in handles])
        return [row for rows in listed.values() for row in rows]

    def _listed(self, stamps: Collection[str]) -> Mapping[str, list[ListedJob]]:
        wanted = frozenset(stamps)
        return index_by_stamp(row for row in self._rows() if row.stamp in wanted)

    def _rows(self) -> list[ListedJob]:
        """Our jobs, in one question for all; of those never seen before the names are asked for, too."""
        words = self._words()
        self._learn(words)
        self._forget(words)
        return [
            ListedJob(stamp=stamp, reference=each, state=_STATES.get(word, State.RUNNING), message=word)
            for each, word in words.items()
            if (stamp := self._stamps.get(each))
        ]

    def _words(self) -> Mapping[str, str]:
        """The states of our jobs. A listing misses a job whose files A-REX is just moving about.

        So two are asked for, and what one of them lacks, or was known before, by its reference.
        """
        words = {str(item.get("id")): str(item.get("state")) for item in self.rest.jobs(_STATES)}
        known = {*self._stamps, *(str(item.get("id")) for item in self.rest.jobs())}
        unsure = sorted(known - words.keys())
        told = self.rest.each("status", unsure) if unsure else {}
        there = {each: item for each, item in told.items() if item.get("status-code") == "200"}
        words.update({each: str(item.get("state")) for each, item in there.items()})
        return {each: word for each, word in words.items() if word != _WIPED}

    def _learn(self, references: Collection[str]) -> None:
        """The names of jobs that are new to us. Of the youngest A-REX has them in its notes only."""
        new = [each for each in references if each not in self._stamps]
        told = self.rest.each("info", new) if new else {}
        for reference in new:
            name = _name(told[reference]) or _setting(self.rest.note(reference, "local"), "jobname")
            if name:
                self._stamps[reference] = name

    def _forget(self, listed: Collection[str]) -> None:
        for known in (self._stamps, self._ends):
            for each in [each for each in known if each not in listed]:
                del known[each]

    def _in_batch(self, rows: Sequence[ListedJob]) -> Mapping[str, ListedJob]:
        """The jobs that run by the listing and wait by their own status, with its text."""
        told = self.rest.each("status", [row.reference for row in rows]) if rows else {}
        words = {row.reference: str(told[row.reference].get("state")) for row in rows}
        return {
            row.reference: replace(row, state=State.WAITING, message=word)
            for row in rows
            if _STATES.get(word := words[row.reference]) is State.WAITING
        }

    def _ended(self, row: ListedJob) -> ListedJob:
        """A job that is over, with the reason and the status of its script."""
        if row.state is State.DONE:
            return replace(row, exit_code=0)
        if row.reference not in self._ends:
            why = self.rest.note(row.reference, "failed").strip()
            said = self.rest.read(row.reference, "exit", last=10).strip()
            self._ends[row.reference] = replace(
                row,
                state=State.KILLED if _CANCELLED in why else row.state,
                exit_code=int(said) if said.isdigit() else None,
                message=why or row.message,
            )
        return self._ends[row.reference]

    def _each(self, action: str, rows: Iterable[ListedJob]) -> None:
        references = [row.reference for row in rows]
        told = self.rest.each(action, references) if references else {}
        for reference, item in told.items():
            if item.get("status-code") not in ("202", "404"):
                raise BatchSystemAway(f"{reference}: {action}: {item.get('reason')}")


def _report(row: ListedJob | None, handle: Handle) -> JobReport:
    return job_report(row, StatusMarks(exit_code=row.exit_code if row else None), handle)


def _name(item: Item) -> str | None:
    document = item.get("info_document")
    activity = document.get("ComputingActivity") if isinstance(document, dict) else None
    name = activity.get("Name") if isinstance(activity, dict) else None
    return name if isinstance(name, str) else None


def _setting(note: str, name: str) -> str | None:
    found = [line.partition("=")[2] for line in note.splitlines() if line.startswith(f"{name}=")]
    return found[0] if found else None


class ArcSettings(SystemSettings):
    """Settings of an ARC CE."""

    ce: ComputingElement
    flags: Flags = ()  #: runtime environments of every job

    @property
    def languages(self) -> tuple[Vocabulary, ...]:
        """The vocabulary of its runtime environments."""
        return (lrms_vocabulary.ARC,)

    @property
    def is_remote(self) -> bool:
        """Its jobs are given to the CE."""
        return True


def _open(settings: ArcSettings, connections: Connections) -> Arc:
    rest = ArcRest(settings.ce.url, settings.ce, connect=connections.wrap_http(connect))
    connections.stack.callback(rest.close)
    return Arc(rest=rest, environments=settings.flags)


KIND: Final = BatchSystemKind(open=_open, settings=ArcSettings, carries_files=True)
