"""Targets of a director (queues and brokers), the stamps of its pilots, and back-off after failed pilots.

A stamp contains the director, the broker if any, and the flags of the submission, so that a restarted
director recognises its own pilots and their purpose by the stamps alone. Back-off is computed from the
service's list of pilots, so it survives a restart as well.
"""

import hashlib
import json
import random
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pilotage.fabric.batch.batch_system import JobResources
from pilotage.fabric.batch.reliable import Evidence, ReliableSystem
from pilotage.fabric.batch.settings import Flags
from pilotage.fabric.node_script import PilotScript
from requirements.values import fold

#: What a director may be called: its name is part of the name of every batch job.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,29}")
#: What a broker may be called, for the same reason.
BROKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,19}")
_ANY = "any"
_DIGITS = 10  #: of the digest of flags
_BYTES = 12  #: of chance in a stamp
_STAMP = re.compile(
    rf"(?P<director>{NAME.pattern})\.((?P<broker>{BROKER.pattern})\.)?"
    rf"(?P<kind>{_ANY}|[0-9a-f]{{{_DIGITS}}})\.[0-9a-f]{{{2 * _BYTES}}}"
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


def new_stamp(director: str, flags: tuple[str, ...], broker: str = "") -> str:
    """A stamp that nobody ever had."""
    way = f"{broker}.{flags_digest(flags)}" if broker else flags_digest(flags)
    return f"{stamp_prefix(director)}{way}.{secrets.token_hex(_BYTES)}"


def stamp_prefix(director: str) -> str:
    """What all stamps of a director begin with, and none of another."""
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
class Trial:
    """A pilot whose success or failure is known; it may still run."""

    sent_at: datetime
    known_at: datetime
    good: bool  #: it had a job; else it failed, or ended without one


def most_to_send(trials: Iterable[Trial], pause: Pause, now: datetime) -> int | None:
    """New pilots of a post at most; None: experience sets no limit.

    None are sent during a pause, which is the longer the more often things went wrong since the last good
    pilot was sent; then one, to see whether it is better.
    """
    known = list(trials)
    good = max((trial.sent_at for trial in known if trial.good), default=None)
    bad = [trial for trial in known if not trial.good and (good is None or trial.sent_at > good)]
    if not bad:
        return None
    times = _times((trial.known_at for trial in bad), apart=pause.first)
    length = min(pause.longest, pause.first * 2 ** min(times - 1, 20))
    return 0 if now < max(trial.known_at for trial in bad) + length else 1


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
    resources: JobResources = field(default_factory=JobResources)
    flags: tuple[str, ...] = ()  #: arguments of every submission, beside those that jobs ask for
    broker: str = ""  #: that may pick it; empty: pilots are sent straight there


class FileSection(BaseModel):
    """A section of a file; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SlotSettings(FileSection):
    """Resources that a pilot requests from the batch system."""

    cores: int = Field(default=1, ge=1)
    memory: int | None = Field(default=None, ge=1)  #: MB of a slot
    wall_time: int | None = Field(default=None, ge=60)  #: seconds of a slot
    gpus: int = Field(default=0, ge=0)
    whole_node: bool = False
    flags: Flags = ()

    def target(self, queue: str, system: str, batch_queue: str, *, broker: str = "") -> QueueTarget:
        """How pilots are submitted to a batch queue."""
        asked = self.model_dump(include={each.name for each in fields(JobResources)})
        return QueueTarget(
            queue=queue,
            system=system,
            batch_queue=batch_queue,
            resources=JobResources(**asked),
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
            raise ValueError("queues: two have the same batch queue, so a pilot could not tell where it is")
        return self


Seconds = Annotated[float, Field(gt=0, le=30 * 86_400)]


class DirectorOptions(FileSection):
    """Options of a director."""

    name: str = Field(pattern=f"^{NAME.pattern}$")  #: part of every stamp: two directors must not share it
    at_once: int = Field(default=100, ge=1)  #: pilots per queue and cycle at most
    soon: Seconds = 900  #: a running pilot that is free so soon counts as being there
    pause: Seconds = 120  #: after failed pilots; doubled up to the longest
    longest_pause: Seconds = 3600
    keep_output: Seconds = 6 * 3600  #: of pilots that failed
    #: What it takes to end a batch job that bears our name, but is no pilot that anybody knows to be alive.
    orphans: Evidence = Evidence(listings=5, seconds=1800)

    @property
    def back_off(self) -> Pause:
        """Pauses after failed pilots."""
        longest = timedelta(seconds=max(self.pause, self.longest_pause))
        return Pause(first=timedelta(seconds=self.pause), longest=longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorTargets:
    """All queues, brokers and batch systems of one director."""

    outlets: Mapping[str, QueueTarget]  #: by queue
    systems: Mapping[str, ReliableSystem]  #: by name
    habits: DirectorOptions
    script: Callable[[PilotScript], str] = field(repr=False)  #: makes the text that a batch system runs
    brokers: Mapping[str, Broker] = field(default_factory=dict)  #: by name

    def all_outlets(
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
        return [*self.outlets.values(), *picked]

    def door(self, post: TargetGroup) -> QueueTarget:
        """How the pilots of a post are submitted."""
        if not post.broker:
            return self.outlets[post.queues[0]]
        broker = self.brokers[post.broker]
        batch_queue = broker.entry or ",".join(broker.queues[queue] for queue in post.queues)
        return broker.target("", broker.system, batch_queue, broker=post.broker)

    def trial(self, post: TargetGroup, chance: random.Random) -> TargetGroup:
        """Where a pilot is sent to see whether it is better now: to one queue, so that it is known which."""
        if not post.broker or self.brokers[post.broker].entry is not None:
            return post
        return replace(post, queues=(chance.choice(post.queues),))

    def landings(self, post: TargetGroup) -> Mapping[str, str]:
        """By batch queue the queues of the tree among which a broker picks; none for other posts."""
        if not post.broker:
            return {}
        names = self.brokers[post.broker].queues
        return {names[queue]: queue for queue in post.queues}

    def system_of(self, stamp: str, queue: str) -> str | None:
        """The batch system that a pilot was given to; None: we have it no more."""
        sent = parse_stamp(stamp, self.habits.name)
        way = self.brokers.get(sent.broker) if sent and sent.broker else self.outlets.get(queue)
        return None if way is None else way.system
