"""Number of pilots to send to each target: a maximum flow from waiting jobs to queues with room. Pure.

Capacity may be added step by step: existing flow is rerouted where that lets more through, and flow that has
reached the end stays. Existing pilots are therefore used before new ones are sent, and better queues before
worse ones. Source: Ford and Fulkerson; Edmonds and Karp.
"""

import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pilotage.fabric.director.targets import TargetGroup

Node = Hashable
BEGIN: Node = "begin"
END: Node = "end"


class FlowNetwork:
    """A flow network with whole numbers on its arcs, from `BEGIN` to `END`."""

    def __init__(self) -> None:
        self._free: dict[Node, dict[Node, int]] = defaultdict(dict)

    def allow(self, source: Node, target: Node, more: int) -> None:
        """Let an arc carry more; there is none in the other direction."""
        self._free[source][target] = self._free[source].get(target, 0) + more
        self._free[target].setdefault(source, 0)

    def through(self, source: Node, target: Node) -> int:
        """What an arc carries."""
        return self._free[target].get(source, 0)

    def fill(self) -> None:
        """Let through as much as can be."""
        while path := self._path():
            most = min(self._free[source][target] for source, target in path)
            for source, target in path:
                self._free[source][target] -= most
                self._free[target][source] += most

    def _path(self) -> list[tuple[Node, Node]]:
        """The arcs of a shortest way on which something can still be moved; empty: there is none."""
        before: dict[Node, Node] = {}
        queue = deque([BEGIN])
        while queue and END not in before:
            here = queue.popleft()
            for there, free in self._free[here].items():
                if free > 0 and there not in before and there != BEGIN:
                    before[there] = here
                    queue.append(there)
        return _arcs(before)


def _arcs(before: Mapping[Node, Node]) -> list[tuple[Node, Node]]:
    if END not in before:
        return []
    way = [END]
    while way[-1] != BEGIN:
        way.append(before[way[-1]])
    return list(pairwise(reversed(way)))


#: A VO at a queue, which may have limits and a rank of its own there.
Place = tuple[str, str]

#: Queues that are equally good get their shares of the work in so many turns.
_TURNS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandedWork:
    """Waiting jobs with the targets whose pilots could run them; each job is counted once."""

    jobs: int
    posts: frozenset[TargetGroup]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """What a queue may have of our pilots.

    Source: DIRAC, MaxTotalJobs and MaxWaitingJobs of a queue.
    """

    total: int = 10  #: waiting and running
    waiting: int = 10

    def room(self, *, waiting: int, running: int) -> int:
        """Pilots that may be added."""
        return max(0, min(self.total - waiting - running, self.waiting - waiting))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRoom:
    """Room of a queue for pilots of a VO in this cycle."""

    pilots: int
    rank: float | None = None  #: the highest first, those without one last


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSituation:
    """All input of the decision."""

    work: Sequence[DemandedWork]
    #: One that is not there takes none; all VOs together get no more of a queue than the one with most room.
    rooms: Mapping[Place, QueueRoom]
    there: Mapping[TargetGroup, int] = field(
        default_factory=dict
    )  #: pilots that will take a job without our doing
    most: Mapping[TargetGroup, int] = field(default_factory=dict)  #: new pilots of posts with bad experience


def decide_pilots(situation: DemandSituation, chance: random.Random) -> Mapping[TargetGroup, int]:
    """New pilots by post: as few as serve the most work within the limits.

    Pilots that are there take what they can; then come the queues, the best rank first, those of one rank
    side by side in an order of chance.
    """
    flow = FlowNetwork()
    posts = _lay_out(flow, situation)
    flow.fill()
    for places in _ranked({place: room for place, room in situation.rooms.items() if room.pilots > 0}):
        for share in _shares(places, chance):
            for (vo, queue), pilots in share.items():
                flow.allow(("queue", vo, queue), ("queue", queue), pilots)
                flow.fill()
    return {post: sent for post in sorted(posts) if (sent := flow.through(post, ("new", post)))}


def _lay_out(flow: FlowNetwork, situation: DemandSituation) -> frozenset[TargetGroup]:
    """All arcs but those that let new pilots through."""
    jobs: Counter[frozenset[TargetGroup]] = Counter()
    for work in situation.work:
        jobs[work.posts] += work.jobs
    posts = frozenset(post for served in jobs for post in served)
    for served, number in sorted(jobs.items(), key=lambda each: sorted(each[0])):
        flow.allow(BEGIN, served, number)
        # Those first that leave most to a broker.
        for post in sorted(served, key=lambda each: (-len(each.queues), each)):
            flow.allow(served, post, number)
    everything = jobs.total()
    for post in sorted(posts):
        flow.allow(post, END, situation.there.get(post, 0))
        flow.allow(post, ("new", post), min(everything, situation.most.get(post, everything)))
        for queue in post.queues:
            flow.allow(("new", post), ("queue", post.vo, queue), everything)
    for queue in {queue for _, queue in situation.rooms}:
        most = max(room.pilots for (_, name), room in situation.rooms.items() if name == queue)
        flow.allow(("queue", queue), END, most)
    return posts


def _ranked(rooms: Mapping[Place, QueueRoom]) -> Iterator[Mapping[Place, int]]:
    """Places with their room, those of one rank together."""
    ranks = {room.rank for room in rooms.values()}
    for rank in sorted(ranks, key=lambda each: -math.inf if each is None else each, reverse=True):
        yield {name: room.pilots for name, room in sorted(rooms.items()) if room.rank == rank}


def _shares(places: Mapping[Place, int], chance: random.Random) -> Iterable[Mapping[Place, int]]:
    """Turns, in each of which every place gets a part of its room."""
    left = dict(places)
    step = {name: math.ceil(room / _TURNS) for name, room in places.items()}
    while left:
        names = sorted(left)
        chance.shuffle(names)
        share = {name: min(step[name], left[name]) for name in names}
        yield share
        left = {name: room - share[name] for name, room in left.items() if room > share[name]}
