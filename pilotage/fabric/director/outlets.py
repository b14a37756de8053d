"""Where a director sends its pilots: queues of the resource tree with the batch queues behind them."""

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from pilotage.fabric.batch.batch_system import Resources
from pilotage.fabric.batch.idealizer import Evidence, Idealized
from pilotage.fabric.director.experience import Pause
from pilotage.fabric.director.posts import Post, sent_as


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """A queue of the resource tree, and how it is reached."""

    queue: str  #: `Site/CE/Queue`
    system: str  #: name of its batch system
    batch_queue: str  #: what the queue is called there
    resources: Resources = field(default_factory=Resources)
    flags: tuple[str, ...] = ()  #: arguments of every submission, beside those that jobs ask for
    broker: str = ""  #: that may pick it; empty: pilots are sent straight there


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A batch system that picks the queue itself, among those that it is given. Source: DIRAC, gLite WMS."""

    name: str
    system: str
    queues: Mapping[str, str]  #: `Site/CE/Queue` where pilots may land → what it is called there
    entry: str | None = None  #: the batch queue that takes them all; None: a list of those that would do
    resources: Resources = field(default_factory=Resources)
    flags: tuple[str, ...] = ()
    vos: frozenset[str] = frozenset()  #: none: all of the director

    def outlets(self) -> Iterator[Outlet]:
        """Each queue where its pilots may land."""
        for queue, batch_queue in self.queues.items():
            yield self._outlet(queue, batch_queue)

    def door(self, queues: tuple[str, ...]) -> Outlet:
        """How pilots are handed over that may land in these queues."""
        return self._outlet("", self.entry or ",".join(self.queues[queue] for queue in queues))

    def _outlet(self, queue: str, batch_queue: str) -> Outlet:
        return Outlet(
            queue=queue,
            system=self.system,
            batch_queue=batch_queue,
            resources=self.resources,
            flags=self.flags,
            broker=self.name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A pilot that is about to be submitted."""

    stamp: str
    vo: str
    outlet: Outlet
    pools: tuple[str, ...]  #: SubmitPools that it is sent for; none: what its queue serves
    landings: Mapping[str, str] = field(default_factory=dict)  #: by batch queue, where a broker picks
    secret: str = field(repr=False)  #: for which it gets its token, once


#: Makes the text that the batch system runs.
PilotScript = Callable[[Intent], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How a director goes about it."""

    name: str  #: part of every stamp: two directors must not share it
    at_once: int = 100  #: pilots per queue and cycle at most
    pause: Pause = field(default_factory=Pause)
    soon: timedelta = timedelta(minutes=15)  #: a running pilot that is free so soon counts as being there
    memory: timedelta = timedelta(days=1)  #: how long pilots that ended are looked at
    keep_output: timedelta = timedelta(hours=6)  #: of pilots that failed
    grace: timedelta = timedelta(minutes=2)  #: that a batch job may go on after its pilot said that it ends
    #: What it takes to end a batch job that bears our name, but is no pilot that anybody knows to be alive.
    orphans: Evidence = field(default_factory=lambda: Evidence(listings=5, seconds=1800))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """All outlets, brokers and batch systems of one director."""

    outlets: Mapping[str, Outlet]  #: by queue
    systems: Mapping[str, Idealized]  #: by name
    habits: Habits
    script: PilotScript = field(repr=False)
    brokers: Mapping[str, Broker] = field(default_factory=dict)  #: by name

    def all_outlets(
        self, vo: str | None = None, *, without: Collection[tuple[str, str, str]] = ()
    ) -> list[Outlet]:
        """Every way for pilots to a queue, straight or through a broker; of a VO those that it may use.

        Args:
            vo: None: of all.
            without: VO, broker and queue that a broker is not to pick now, if it can be told.
        """
        brokers = [each for each in self.brokers.values() if vo is None or not each.vos or vo in each.vos]
        picked = [
            outlet
            for each in brokers
            for outlet in each.outlets()
            if each.entry is not None or (vo, each.name, outlet.queue) not in without
        ]
        return [*self.outlets.values(), *picked]

    def door(self, post: Post) -> Outlet:
        """How the pilots of a post are submitted."""
        if post.broker:
            return self.brokers[post.broker].door(post.queues)
        return self.outlets[post.queues[0]]

    def trial(self, post: Post, chance: random.Random) -> Post:
        """Where a pilot is sent to see whether it is better now: to one queue, so that it is known which."""
        if not post.broker or self.brokers[post.broker].entry is not None:
            return post
        return replace(post, queues=(chance.choice(post.queues),))

    def landings(self, post: Post) -> Mapping[str, str]:
        """By batch queue the queues of the tree among which a broker picks; none for other posts."""
        if not post.broker:
            return {}
        names = self.brokers[post.broker].queues
        return {names[queue]: queue for queue in post.queues}

    def system_of(self, stamp: str, queue: str) -> str | None:
        """The batch system that a pilot was given to; None: we have it no more."""
        sent = sent_as(stamp, self.habits.name)
        way = self.brokers.get(sent.broker) if sent and sent.broker else self.outlets.get(queue)
        return None if way is None else way.system
