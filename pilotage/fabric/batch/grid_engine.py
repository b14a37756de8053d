"""Grid Engine (SGE, Univa, Altair, Open Cluster Scheduler), through its commands.

A job leaves the listing as soon as it ends; how it ended is read from its marks, else from the accounting
file. Its end is announced by a signal (`-notify`), which its wrapper passes on as TERM.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as Xml

from pilotage.fabric.batch import command_line
from pilotage.fabric.batch.batch_system import BatchJob, BatchSystemAway, Capacity, JobResources, State
from pilotage.fabric.batch.command_line import CommandLineSystem
from pilotage.fabric.batch.dialect.dialect import JoinedOption
from pilotage.fabric.batch.shell import Completed
from pilotage.fabric.batch.work_area import ListedJob

#: Names of jobs must not begin with a digit; stamps may.
_PREFIX = "p."
#: Words with which a master that is away is told from one that refuses.
_AWAY = ("commlib error", "unable to contact qmaster", "unable to send message to qmaster")
#: How far back the accounting file is asked.
_DAYS = "7"
_REQUESTS = JoinedOption(option="-l")
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
class GridEngine(CommandLineSystem):
    """One cell as one user of it."""

    words: Words = Words()

    def _submission(self, job: BatchJob) -> list[str]:
        """`-w e`: what no queue could ever run is refused."""
        script = self.areas.prepare(job)
        return [
            *("qsub", "-terse", "-N", _PREFIX + job.stamp, "-q", job.queue),
            *("-wd", self.areas.path(job.stamp), "-o", "/dev/null", "-e", "/dev/null"),
            *("-r", "n", "-notify", "-S", "/bin/sh", "-w", "e"),
            *_joined((*_resource_requests(job.resources, self.words), *self.flags, *job.flags)),
            script,
        ]

    def _reference(self, said: str) -> str | None:
        return reference if (reference := said.strip()).isdecimal() else None

    def _is_away(self, done: Completed) -> bool:
        return any(words in done.stderr for words in _AWAY)

    def _listing(self) -> Iterator[ListedJob]:
        for job in self._jobs():
            yield ListedJob(
                stamp=_text(job, "JB_name").removeprefix(_PREFIX),
                reference=_text(job, "JB_job_number"),
                state=_state(letters := _text(job, "state")),
                message=letters,
            )

    def _lives(self, row: ListedJob) -> bool:  # noqa: ARG002 - whichever
        """What is listed has not left: also a job in error stays until it is deleted."""
        return True

    def _accounted(self, stamps: Collection[str]) -> Iterator[ListedJob]:
        """What the accounting file says of the last days."""
        done = self._shell.run(["qacct", "-d", _DAYS, "-j"])
        for said in map(_record, _ACCOUNTED.split(done.stdout if done.status == 0 else "")):
            if (stamp := said["jobname"].removeprefix(_PREFIX)) in stamps:
                ended_well = said["exit_status"] == said["failed"] == "0"
                yield ListedJob(
                    stamp=stamp,
                    reference=said["jobnumber"],
                    state=State.DONE if ended_well else State.FAILED,
                    message=f"exit_status {said['exit_status']}, failed {said['failed']}",
                )

    def _end(self, references: Sequence[str]) -> None:
        self._run(["qdel", *references], unless=["does not exist"])

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

    def _jobs(self, user: str | None = None) -> list[Xml.Element]:
        """Everybody's jobs, or our own."""
        whose = ["-u", user] if user else []
        return list(_tree(self._run(["qstat", *whose, "-r", "-xml"])).iter("job_list"))


def _joined(words: Sequence[str]) -> Sequence[str]:
    """Requests in one, but where some are soft: of these the place matters."""
    return words if "-soft" in words else command_line.join_option(words, _REQUESTS)


def _resource_requests(resources: JobResources, words: Words) -> list[str]:
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
