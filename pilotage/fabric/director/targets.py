"""Targets of a director (queues and brokers), their slots, the stamps of pilots, and back-off after failures.

A stamp contains the director, the broker if any, and the flags of the submission, so that a restarted
director recognises its own pilots and their purpose by the stamps alone. Back-off is computed from the
service's list of pilots, so it survives a restart as well.
"""

import hashlib
import json
import random
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from pilotage.fabric.batch.batch_system import Evidence, JobResources, ReliableSystem
from pilotage.fabric.batch.settings import Flags
from pilotage.fabric.file_section import FileSection, Seconds
from pilotage.fabric.node_script import PilotScript
from pilotage.fabric.pilot import offer
from requirements.nodes.lrms_vocabulary import Vocabulary
from requirements.values import fold

#: What a director may be called: its name is part of the name of every batch job.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,29}")
#: What a broker may be called, for the same reason.
BROKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,19}")
_ANY = "any"
_DIGITS = 10  #: of the digest of flags
_SERVICE = 8  #: digits of the digest of the service's address
_BYTES = 8  #: of chance in a stamp
_STAMP = re.compile(
    rf"(?P<director>{NAME.pattern})\.((?P<broker>{BROKER.pattern})\.)?"
    rf"(?P<kind>{_ANY}|[0-9a-f]{{{_DIGITS}}})\.[0-9a-f]{{{_SERVICE + 2 * _BYTES}}}"
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TargetGroup:
    """Pilots of one VO with the same target and flags: interchangeable."""

    vo: str
    queues: tuple[str, ...]  #: `Site/CE/Queue` in their order: the one, or those among which a broker picks
    flags: tuple[str, ...] = ()  #: arguments of the submit command, each one whole; none: any node will do
    broker: str = ""  #: through which they are sent; empty: straight to their queue

    @property
    def where(self) -> str:
        """The queues in a word or two."""
        return ", ".join(self.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedAs:
    """Information in a stamp about the submission of its pilot."""

    kind: str  #: `flags_digest` of its flags
    broker: str = ""


def new_stamp(director: str, flags: tuple[str, ...], broker: str = "", *, service: str = "") -> str:
    """A stamp that nobody ever had; `service` is the address of the service, as in the director's file."""
    way = f"{broker}.{flags_digest(flags)}" if broker else flags_digest(flags)
    return f"{stamp_prefix(director)}{way}.{_service_digest(service)}{secrets.token_hex(_BYTES)}"


def is_of_service(stamp: str, service: str) -> bool:
    """Whether a stamp was made for this service: a director of another one may have the same name."""
    return stamp.rpartition(".")[2].startswith(_service_digest(service))


def _service_digest(service: str) -> str:
    return hashlib.sha256(service.rstrip("/").encode()).hexdigest()[:_SERVICE]


def stamp_prefix(director: str) -> str:
    """Common prefix of all stamps of a director, different from that of any other."""
    return f"{director}."


def parse_stamp(stamp: str, director: str) -> SubmittedAs | None:
    """How a pilot was sent; None: it is not this director's, or no pilot's."""
    said = _STAMP.fullmatch(stamp)
    if said is None or said["director"] != director:
        return None
    return SubmittedAs(kind=said["kind"], broker=said["broker"] or "")


def flags_digest(flags: tuple[str, ...]) -> str:
    """Flags in a word: equal ones have the same, others another."""
    if not flags:
        return _ANY
    return hashlib.sha256(json.dumps(flags).encode()).hexdigest()[:_DIGITS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Duration of the back-off after failed pilots."""

    first: timedelta = timedelta(minutes=2)
    longest: timedelta = timedelta(hours=1)  #: it doubles up to this


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePause:
    """A pause of a queue."""

    until: datetime
    reason: str  #: why the last bad pilot ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A pilot as an experience of its queue; it may still run, or not have started."""

    sent_at: datetime
    known_at: datetime
    good: bool | None  #: jobs could run there; None: not known yet; else it failed or got none
    empty: bool = False  #: it ended normally, without a job
    waits: bool = False  #: it has got no job yet, and has not ended
    reason: str = ""  #: why it ended, in a line


#: Of the pilots whose outcome is known, so many that were sent last count.
_LATELY = 20
#: Pilots of a trial at least: of two, one may find another node than the bad one.
_TRIAL = 2


def find_pause(trials: Iterable[Trial], pause: Pause, now: datetime) -> datetime | None:
    """The end of the pause of a queue that is paused now; None: it is not.

    A queue pauses when less than half of the pilots that were sent lately are good. A pause is the longer the
    more often things went wrong since the last good result, whenever that pilot was sent.
    """
    lately = _list_decided(trials)
    if _is_good(lately):
        return None
    bad = [trial for trial in lately if not trial.good]
    last_good = max((trial.known_at for trial in lately if trial.good), default=None)
    since = [trial.known_at for trial in bad if last_good is None or trial.sent_at > last_good]
    if not since:
        return None
    times = _times(since, apart=pause.first)
    until = max(since) + min(pause.longest, pause.first * 2 ** min(times - 1, 20))
    return until if now < until else None


def read_last_reason(trials: Iterable[Trial]) -> str:
    """Why the last bad pilot ended."""
    bad = [trial for trial in trials if trial.good is False]
    return max(bad, key=lambda trial: trial.known_at).reason if bad else ""


def most_to_send(trials: Iterable[Trial], pause: Pause, now: datetime) -> int | None:
    """New pilots of a group at most; None: experience sets no limit.

    None are sent during a pause. Else, as long as less than half of the pilots are good, at most as many are
    on trial as were good lately, and at least two.
    """
    known = list(trials)
    lately = _list_decided(known)
    if _is_good(lately):
        return None
    if find_pause(known, pause, now) is not None:
        return 0
    last_bad = max(trial.known_at for trial in lately if not trial.good)
    on_trial = sum(trial.good is None and trial.sent_at >= last_bad for trial in known)
    return max(0, max(_TRIAL, sum(trial.good is True for trial in lately)) - on_trial)


def _list_decided(trials: Iterable[Trial]) -> list[Trial]:
    """The pilots with an outcome that were sent last.

    A pilot without a job that was sent before another one got its job is no bad experience: it was one too
    many.
    """
    known = list(trials)
    busy = [trial.known_at for trial in known if trial.good is not False and not trial.waits]
    last_busy = max(busy, default=datetime.min.replace(tzinfo=UTC))
    decided = [
        trial
        for trial in known
        if trial.good or (trial.good is False and not (trial.empty and trial.sent_at <= last_busy))
    ]
    return sorted(decided, key=lambda trial: trial.sent_at)[-_LATELY:]


def _is_good(lately: Sequence[Trial]) -> bool:
    return 2 * sum(trial.good is True for trial in lately) >= len(lately)


def _times(moments: Iterable[datetime], *, apart: timedelta) -> int:
    """How often something happened; what happens together happens once."""
    counted: list[datetime] = []
    for moment in sorted(moments):
        if not counted or moment - counted[-1] >= apart:
            counted.append(moment)
    return len(counted)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTarget:
    """A queue of the resource tree, and how to submit to it."""

    queue: str  #: `Site/CE/Queue`
    system: str  #: name of its batch system
    batch_queue: str  #: what the queue is called there
    resources: JobResources = field(default_factory=JobResources)  #: stated in the file, else defaults
    stated: frozenset[str] = frozenset()  #: names of the resources that the file states
    flags: tuple[str, ...] = ()  #: arguments of every submission, beside those that jobs ask for
    broker: str = ""  #: that may pick it; empty: pilots are sent straight there


#: Resources of a slot, with the parameters that state them, the first that a queue has.
_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "cores": ("NumberOfProcessors",),
    "memory": ("MaxRAM", "MaxRAMPerCore"),
    "wall_time": ("maxWallClockTime", "CPUTime", "maxCPUTime"),
    "gpus": ("GPUs", "NumberOfGPUs"),
}


def find_slot(target: QueueTarget, parameters: Mapping[str, object]) -> JobResources:
    """The slot of a pilot from the batch system: as stated in the file, else the parameters of the queue.

    So a slot has what its pilot will offer, since pilots offer the parameters of their queue.
    """
    found = {name: value for name, value in _allowed(parameters).items() if name not in target.stated}
    is_whole = target.resources.whole_node
    if "whole_node" not in target.stated:
        is_whole = read_parameter(parameters, "WholeNode") is True and "cores" not in target.stated
    return replace(target.resources, whole_node=is_whole, **found)


def list_differences(target: QueueTarget, parameters: Mapping[str, object]) -> Mapping[str, tuple[int, int]]:
    """The resources of which the file states less than the queue has, with both amounts."""
    allowed = _allowed(parameters)
    stated = {name: getattr(target.resources, name) for name in allowed if name in target.stated}
    found = {
        name: (amount, allowed[name])
        for name, amount in stated.items()
        if amount is not None and amount < allowed[name]
    }
    if read_parameter(parameters, "WholeNode") is True and not find_slot(target, parameters).whole_node:
        found["whole_node"] = (0, 1)
    return found


def find_contradictions(target: QueueTarget, parameters: Mapping[str, object]) -> str:
    """Requests for a slot in the file that exceed what its queue has; empty: none."""
    wrong = []
    allowed = _allowed(parameters)
    for name, keys in _PARAMETERS.items():
        amount, limit = getattr(target.resources, name), allowed.get(name)
        # A limit of CPU time alone is none of wall time: the file may state more.
        if name == "wall_time" and _number(parameters, keys[0]) is None:
            continue
        if name in target.stated and amount is not None and limit is not None and amount > limit:
            parameter = next(key for key in keys if _number(parameters, key) is not None)
            wrong.append(f"{name}: {amount}, but the queue has {limit} ({parameter})")
    if target.resources.whole_node and read_parameter(parameters, "WholeNode") is False:
        wrong.append("whole_node: true, but the queue has false (WholeNode)")
    return "; ".join(wrong)


def _allowed(parameters: Mapping[str, object]) -> dict[str, int]:
    known = {name.lower(): value for name, value in parameters.items()}
    wall_time = _number(parameters, "maxWallClockTime")
    cores = _number(parameters, "NumberOfProcessors")
    found = {
        "cores": cores,
        "memory": offer.read_ram(known, cores or 1),
        "wall_time": offer.read_cpu_limit(known) if wall_time is None else wall_time,
        "gpus": _number(parameters, "GPUs") or _number(parameters, "NumberOfGPUs"),
    }
    return {name: number for name, number in found.items() if number is not None}


def _number(parameters: Mapping[str, object], key: str) -> int | None:
    number = read_number(parameters, key)
    return None if number is None or number < 1 else int(number)


def read_number(parameters: Mapping[str, object], name: str) -> float | None:
    """A parameter that is a number; None: it is not there, or none."""
    value = read_parameter(parameters, name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def read_parameter(parameters: Mapping[str, object], *names: str) -> object:
    """The first of these parameters that a queue has, in whatever case its name is; None: it has none."""
    known = {fold(name): value for name, value in parameters.items()}
    return next((value for name in names if (value := known.get(fold(name))) not in (None, "")), None)


class SlotSettings(FileSection):
    """Resources that a pilot requests from the batch system; without one, the parameter of its queue."""

    cores: int = Field(default=1, ge=1)
    memory: int | None = Field(default=None, ge=1)  #: MB of a slot
    wall_time: int | None = Field(default=None, ge=60)  #: seconds of a slot
    gpus: int = Field(default=0, ge=0)
    whole_node: bool = False
    flags: Flags = ()

    def target(self, queue: str, system: str, batch_queue: str, *, broker: str = "") -> QueueTarget:
        """How pilots are submitted to a batch queue."""
        names = {each.name for each in fields(JobResources)}
        return QueueTarget(
            queue=queue,
            system=system,
            batch_queue=batch_queue,
            resources=JobResources(**self.model_dump(include=names)),
            stated=frozenset(names & self.model_fields_set),
            flags=self.flags,
            broker=broker,
        )


Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:@+-]+(/[A-Za-z0-9._:@+-]+){2}$")]
BatchQueue = Annotated[str, Field(pattern=r"^[^\s,]+$", max_length=200)]


class Broker(SlotSettings):
    """A batch system that chooses the queue itself, among the given ones. Source: DIRAC, gLite WMS."""

    system: str
    queues: dict[Address, BatchQueue] = Field(
        min_length=1
    )  #: where pilots may start → what it is called there
    entry: BatchQueue | None = None  #: takes all pilots; none: a list of those that would do
    vos: Annotated[frozenset[str], AfterValidator(lambda vos: frozenset(map(fold, vos)))] = (
        frozenset()
    )  #: that it is for; none: all of the director

    @model_validator(mode="after")
    def _tells_queues_apart(self) -> Self:
        if len(set(self.queues.values())) < len(self.queues):
            raise ValueError("queues: two have the same batch queue, so a pilot could not find its queue")
        return self


class DirectorOptions(FileSection):
    """Options of a director."""

    FORMER: ClassVar[Mapping[str, str]] = {
        "at_once": "max_pilots_per_cycle",
        "soon": "short_job",
        "task": "system_timeout",
    }

    name: str = Field(pattern=f"^{NAME.pattern}$")  #: part of every stamp: two directors must not share it
    max_pilots_per_cycle: int = Field(default=100, ge=1)  #: for each queue
    short_job: Seconds = 900  #: a pilot whose jobs took at most this long counts as one that is free soon
    longest_wait: Annotated[float, Field(gt=0, le=3 * 86_400)] = 2 * 86_400  #: in a batch queue
    system_timeout: Seconds = 60  #: for what a batch system is to do in one cycle
    pause: Seconds = 120  #: after failed pilots; doubled up to the longest
    longest_pause: Seconds = 3600
    keep_output: Seconds = 6 * 3600  #: of pilots that failed
    #: What it takes to end a batch job that bears our name, but is no pilot that anybody knows to be alive.
    orphans: Evidence = Evidence(listings=5, seconds=1800)
    #: For how many cycles, and how long, a waiting pilot was one too many before it is withdrawn.
    surplus: Evidence = Evidence(listings=3, seconds=120)

    @property
    def back_off(self) -> Pause:
        """Pauses after failed pilots."""
        longest = timedelta(seconds=max(self.pause, self.longest_pause))
        return Pause(first=timedelta(seconds=self.pause), longest=longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorTargets:
    """All queues, brokers and batch systems of one director."""

    queues: Mapping[str, QueueTarget]  #: by queue
    systems: Mapping[str, ReliableSystem]  #: by name
    options: DirectorOptions
    script: Callable[[PilotScript], str] = field(repr=False)  #: makes the text that a batch system runs
    brokers: Mapping[str, Broker] = field(default_factory=dict)  #: by name
    service: str = ""  #: address of the service
    places: int | None = None  #: for pilots of all queues together; None: as many as the queues allow
    #: By batch system, the vocabularies of the flags that it takes; left out: those of all submit commands.
    languages: Mapping[str, Sequence[Vocabulary]] = field(default_factory=dict)

    def all_targets(
        self, vo: str | None = None, *, without: Collection[tuple[str, str, str]] = ()
    ) -> list[QueueTarget]:
        """Every way for pilots to a queue, straight or through a broker; of a VO those that it may use.

        `without` are VO, broker and queue that a broker is not to pick now if it gets a list of queues.
        """
        picked = [
            each.target(queue, each.system, batch_queue, broker=name)
            for name, each in self.brokers.items()
            if vo is None or not each.vos or vo in each.vos
            for queue, batch_queue in each.queues.items()
            if each.entry is not None or (vo, name, queue) not in without
        ]
        return [*self.queues.values(), *picked]

    def find_target(self, group: TargetGroup) -> QueueTarget:
        """How the pilots of a group are submitted."""
        if not group.broker:
            return self.queues[group.queues[0]]
        broker = self.brokers[group.broker]
        batch_queue = broker.entry or ",".join(broker.queues[queue] for queue in group.queues)
        return broker.target("", broker.system, batch_queue, broker=group.broker)

    def entry_of(self, target: QueueTarget) -> str:
        """The batch queue that pilots for a target are given to: its own, or that of its broker for all."""
        broker = self.brokers.get(target.broker)
        return (broker.entry if broker else None) or target.batch_queue

    def choose_trial(self, group: TargetGroup, chance: random.Random) -> TargetGroup:
        """Where a pilot is sent to see whether it is better now: to one queue, so that it is clear which."""
        if not group.broker or self.brokers[group.broker].entry is not None:
            return group
        return replace(group, queues=(chance.choice(group.queues),))

    def batch_queues_of(self, group: TargetGroup) -> Mapping[str, str]:
        """The queues of the tree among which a broker picks, by batch queue; none for other groups."""
        if not group.broker:
            return {}
        names = self.brokers[group.broker].queues
        return {names[queue]: queue for queue in group.queues}

    def system_of(self, stamp: str, queue: str) -> str | None:
        """The batch system that a pilot was given to; None: it is not in the file any more."""
        sent = parse_stamp(stamp, self.options.name)
        way = self.brokers.get(sent.broker) if sent and sent.broker else self.queues.get(queue)
        return None if way is None else way.system
