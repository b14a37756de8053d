"""Grid Engine (SGE, Univa, Altair, Open Cluster Scheduler), by its commands.

A job that ended is out of the listing at once; how it ended is in the marks that it left, else in the
accounting file. Its end is announced by a signal (`-notify`), which its wrapper passes on as TERM.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as Xml

from pilotage.fabric.batch.batch_system import BatchJob, Capacity, Handle, Output, Report, Resources, State
from pilotage.fabric.batch.errors import BatchSystemAway, SubmissionRefused, SubmissionUncertain
from pilotage.fabric.batch.shell import Completed, NoAnswer, Shell
from pilotage.fabric.batch.work_area import Marks, WorkAreas

#: Names of jobs must not begin with a digit; stamps may.
_PREFIX = "p."
#: Words with which a master that is away is told from one that refuses.
_AWAY = ("commlib error", "unable to contact qmaster", "unable to send message to qmaster")
#: How far back the accounting file is asked.
_DAYS = "7"
_ACCOUNTED = re.compile(r"^=+$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a site calls things; Grid Engine leaves it to its administrators."""

    parallel_environment: str = "smp"  #: that keeps the cores of a job on one host
    memory: str = "h_vmem"  #: per core
    wall_time: str = "h_rt"
    gpus: str = "gpu"
    whole_node: tuple[str, ...] = ("-l", "exclusive=true")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    reference: str
    state: State
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GridEngine:
    """One cell as one user of it."""

    areas: WorkAreas
    words: Words = Words()
    flags: tuple[str, ...] = ()  #: arguments of every submission

    def submit(self, job: BatchJob) -> str:
        """Put a job into its queue; `-w e`: what no queue could ever run is refused."""
        script = self.areas.prepare(job)
        command = [
            *(
                "qsub",
                "-terse",
                "-N",
                _PREFIX + job.stamp,
                "-q",
                job.queue,
                "-wd",
                self.areas.path(job.stamp),
            ),
            *("-o", "/dev/null", "-e", "/dev/null", "-r", "n", "-notify", "-S", "/bin/sh", "-w", "e"),
            *_asked(job.resources, self.words),
            *self.flags,
            *job.flags,
            script,
        ]
        try:
            done = self._shell.run(command)
        except NoAnswer as error:
            raise SubmissionUncertain(f"{job.stamp}: {error}") from error
        if done.status == 0 and (reference := done.stdout.strip()).isdecimal():
            return reference
        if done.status == 0 or _is_away(done):
            raise SubmissionUncertain(f"{job.stamp}: qsub: {done.said}")
        raise SubmissionRefused(f"{job.stamp}: qsub: {done.said}")

    def status(self, handles: Sequence[Handle]) -> Mapping[str, Report]:
        """How jobs stand: by the listing, else by what they left, else by the accounting file."""
        asked = {handle.stamp: handle for handle in handles}
        listed = {
            stamp: _the_one(rows, asked[stamp]) for stamp, rows in self._listed(asked.__contains__).items()
        }
        marks = self.areas.marks(stamp for stamp in asked if stamp not in listed)
        lost = {stamp for stamp in asked if stamp not in listed and not marks[stamp].ended}
        accounted = self._accounted(lost) if lost else {}
        return {
            stamp: _report(listed.get(stamp) or accounted.get(stamp), marks.get(stamp), handle)
            for stamp, handle in asked.items()
        }

    def find(self, stamps: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """The references of the jobs that bear one of the stamps."""
        listed = self._listed(stamps.__contains__)
        return {stamp: tuple(row.reference for row in rows) for stamp, rows in listed.items()}

    def stamps(self, prefix: str) -> frozenset[str]:
        """The stamps of our jobs that are listed: those that ended are not."""
        return frozenset(self._listed(lambda stamp: stamp.startswith(prefix)))

    def kill(self, handles: Sequence[Handle]) -> None:
        """End jobs wherever they are."""
        listed = self._listed([handle.stamp for handle in handles].__contains__)
        if listed:
            self.areas.mark_killed(listed)
            references = [row.reference for rows in listed.values() for row in rows]
            self._run(["qdel", *references], unless="does not exist")

    def output(self, handle: Handle) -> Output:
        """What the job wrote so far."""
        return self.areas.output(handle.stamp)

    def forget(self, handles: Sequence[Handle]) -> None:
        """Remove the work areas of jobs that ended."""
        self.areas.remove(handle.stamp for handle in handles)

    def capacity(self) -> Mapping[str, Capacity]:
        """What the cluster queues have."""
        jobs = self._jobs("*")
        counted = Counter((_queue_of(job), _text(job, "state")) for job in jobs)
        waiting = Counter(_text(job, "hard_req_queue") for job in jobs if "q" in _text(job, "state"))
        return {
            (name := _text(queue, "name")): Capacity(
                cores=int(_text(queue, "total")),
                free_cores=int(_text(queue, "available")),
                waiting=waiting[name],
                running=sum(number for (at, state), number in counted.items() if at == name and "r" in state),
            )
            for queue in _tree(self._run(["qstat", "-g", "c", "-xml"])).iter("cluster_queue_summary")
        }

    @property
    def _shell(self) -> Shell:
        return self.areas.shell

    def _listed(self, is_wanted: Callable[[str], bool]) -> Mapping[str, list[_Row]]:
        """The jobs whose stamps are wanted, each once however often it is listed."""
        found: dict[str, dict[str, _Row]] = {}
        for job in self._jobs():
            stamp = _text(job, "JB_name").removeprefix(_PREFIX)
            if is_wanted(stamp):
                letters, reference = _text(job, "state"), _text(job, "JB_job_number")
                row = _Row(reference=reference, state=_state(letters), message=letters)
                found.setdefault(stamp, {})[reference] = row
        return {stamp: list(rows.values()) for stamp, rows in found.items()}

    def _jobs(self, user: str | None = None) -> list[Xml.Element]:
        """Everybody's jobs, or our own."""
        whose = ["-u", user] if user else []
        return list(_tree(self._run(["qstat", *whose, "-r", "-xml"])).iter("job_list"))

    def _accounted(self, stamps: Collection[str]) -> Mapping[str, _Row]:
        """What the accounting file says of the last days."""
        done = self._shell.run(["qacct", "-d", _DAYS, "-j"])
        records = _ACCOUNTED.split(done.stdout if done.status == 0 else "")
        found = {}
        for said in map(_record, records):
            stamp = said["jobname"].removeprefix(_PREFIX)
            if stamp in stamps:
                ended_well = said["exit_status"] == said["failed"] == "0"
                message = f"exit_status {said['exit_status']}, failed {said['failed']}"
                state = State.DONE if ended_well else State.FAILED
                found[stamp] = _Row(reference=said["jobnumber"], state=state, message=message)
        return found

    def _run(self, command: Sequence[str], *, unless: str | None = None) -> str:
        done = self._shell.run(command)
        if done.status != 0 and (unless is None or unless not in done.stdout + done.stderr):
            raise BatchSystemAway(f"{command[0]}: {done.said}")
        return done.stdout


def _asked(resources: Resources, words: Words) -> list[str]:
    asked: list[str] = []
    if resources.cores > 1:
        asked += ["-pe", words.parallel_environment, str(resources.cores)]
    if resources.memory is not None:
        asked += ["-l", f"{words.memory}={-(-resources.memory // resources.cores)}M"]
    if resources.wall_time is not None:
        asked += ["-l", f"{words.wall_time}={resources.wall_time}"]
    if resources.gpus:
        asked += ["-l", f"{words.gpus}={resources.gpus}"]
    return [*asked, *words.whole_node] if resources.whole_node else asked


def _record(text: str) -> defaultdict[str, str]:
    """The lines `name value` of an accounting record."""
    pairs = (line.partition(" ") for line in text.splitlines())
    return defaultdict(str, {name: value.strip() for name, _, value in pairs})


def _tree(text: str) -> Xml.Element:
    try:
        return Xml.fromstring(text)  # noqa: S314 - written by the batch system's own command
    except Xml.ParseError as error:
        raise BatchSystemAway(f"qstat: the listing cannot be read: {error}") from error


def _text(element: Xml.Element, name: str) -> str:
    return (element.findtext(name) or "").strip()


def _queue_of(job: Xml.Element) -> str:
    """The cluster queue that a job runs in; empty while it waits."""
    return _text(job, "queue_name").partition("@")[0]


def _state(letters: str) -> State:
    """Source: Grid Engine, qstat(1): E error, q queued, else on a host."""
    if "E" in letters:
        return State.FAILED
    return State.WAITING if "q" in letters else State.RUNNING


def _the_one(rows: Sequence[_Row], handle: Handle) -> _Row:
    """Of several jobs of one stamp the one that is meant."""
    return min(rows, key=lambda row: row.reference != handle.reference)


def _report(row: _Row | None, marks: Marks | None, handle: Handle) -> Report:
    reference = row.reference if row else handle.reference
    if marks is not None and marks.ended:
        return Report(state=marks.state, reference=reference, exit_code=marks.exit_code)
    if row is not None:
        return Report(state=row.state, reference=reference, message=row.message)
    return Report(state=State.MISSING, reference=reference)


def _is_away(done: Completed) -> bool:
    return any(words in done.stderr for words in _AWAY)
