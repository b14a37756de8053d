"""How many pilots each post gets: pure, from what waits, what is on its way and what there is room for."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pilotage.fabric.director.covering import BEGIN, END, Flow
from pilotage.fabric.director.posts import Post

#: A VO at a queue, which may have limits and a rank of its own there.
Place = tuple[str, str]

#: Queues that are equally good get their shares of the work in so many turns.
_TURNS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Jobs that wait, and where a pilot could take them; they are counted once, not once for each post."""

    jobs: int
    posts: frozenset[Post]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a queue may have of our pilots.

    Source: DIRAC, MaxTotalJobs and MaxWaitingJobs of a queue.
    """

    total: int = 10  #: waiting and running
    waiting: int = 10

    def room(self, *, waiting: int, running: int) -> int:
        """Pilots that may be added."""
        return max(0, min(self.total - waiting - running, self.waiting - waiting))


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a queue takes this time of the pilots of a VO."""

    pilots: int
    rank: float | None = None  #: the highest first, those without one last


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that decides."""

    work: Sequence[Work]
    #: One that is not there takes none; all VOs together get no more of a queue than the one with most room.
    rooms: Mapping[Place, Room]
    there: Mapping[Post, int] = field(default_factory=dict)  #: pilots that will take a job without our doing
    most: Mapping[Post, int] = field(default_factory=dict)  #: new pilots of posts with bad experience


def decide(situation: Situation, chance: random.Random) -> Mapping[Post, int]:
    """New pilots by post: as few as serve the most work within the limits.

    Pilots that are there take what they can; then come the queues, the best rank first, those of one rank
    side by side in an order of chance.
    """
    flow = Flow()
    posts = _lay_out(flow, situation)
    flow.fill()
    for places in _ranked({place: room for place, room in situation.rooms.items() if room.pilots > 0}):
        for share in _shares(places, chance):
            for (vo, queue), pilots in share.items():
                flow.allow(("queue", vo, queue), ("queue", queue), pilots)
                flow.fill()
    return {post: sent for post in sorted(posts) if (sent := flow.through(post, ("new", post)))}


def _lay_out(flow: Flow, situation: Situation) -> frozenset[Post]:
    """All arcs but those that let new pilots through."""
    jobs: Counter[frozenset[Post]] = Counter()
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


def _ranked(rooms: Mapping[Place, Room]) -> Iterator[Mapping[Place, int]]:
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
