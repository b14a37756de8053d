"""From the task queues that each outlet may serve to posts: the ways by which pilots reach a job."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotage.fabric.director.demand import Work
from pilotage.fabric.director.outlets import Broker, Outlet
from pilotage.fabric.director.posts import Post

#: Flags with the pools whose pilots are sent with them.
Groups = Mapping[tuple[str, ...], tuple[str, ...]]
#: The broker, empty for none, and the flags.
Way = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the service says of an outlet."""

    outlet: Outlet
    lifetime: float | None  #: seconds of a slot
    groups: Groups
    task_queues: tuple[Mapping[str, Any], ...]

    def way(self, pool: str | None) -> Way:
        """How pilots for a pool are sent; jobs without one, and pools without flags, take any node."""
        flags = next((flags for flags, pools in self.groups.items() if pool in pools), ())
        return self.outlet.broker, flags

    def straight(self, vo: str) -> Mapping[Post, tuple[str, ...]]:
        """Posts of the queue with their pools; the one without flags is for jobs without pool, too."""
        if self.outlet.broker:
            return {}
        groups: Groups = {(): (), **self.groups}
        return {
            Post(vo=vo, queues=(self.outlet.queue,), flags=flags): pools for flags, pools in groups.items()
        }


def work(vo: str, looks: Sequence[Look], brokers: Mapping[str, Broker]) -> Iterator[Work]:
    """The task queues, each once, with all posts whose pilots serve it."""
    landings = {
        name: tuple(sorted(look.outlet.queue for look in looks if look.outlet.broker == name))
        for name, broker in brokers.items()
        if broker.entry is not None
    }
    jobs = _jobs(looks)
    served = _served(looks)
    own = {
        number: frozenset(post for way, queues in ways.items() for post in _posts(vo, way, queues, landings))
        for number, ways in served.items()
    }
    every = frozenset(post for posts in own.values() for post in posts if post.broker)
    for number, ways in sorted(served.items()):
        # Pilots for some of the queues that would do are as good as pilots for all of them.
        narrower = (
            post for post in every if ways.get((post.broker, post.flags), set()).issuperset(post.queues)
        )
        yield Work(jobs=jobs[number], posts=own[number].union(narrower))


def _jobs(looks: Iterable[Look]) -> Mapping[int, int]:
    """How many wait in each task queue: what is asked one after the other may have changed meanwhile."""
    jobs: dict[int, int] = {}
    for look in looks:
        for each in look.task_queues:
            number = int(each["task_queue"])
            jobs[number] = max(jobs.get(number, 0), int(each["waiting"]))
    return jobs


def _served(looks: Iterable[Look]) -> Mapping[int, Mapping[Way, set[str]]]:
    """By task queue the queues that may serve it, by the way there."""
    served: dict[int, dict[Way, set[str]]] = {}
    for look in looks:
        for each in look.task_queues:
            ways = served.setdefault(int(each["task_queue"]), {})
            ways.setdefault(look.way(each["submit_pool"]), set()).add(look.outlet.queue)
    return served


def _posts(
    vo: str, way: Way, queues: Collection[str], landings: Mapping[str, tuple[str, ...]]
) -> Iterator[Post]:
    """Where pilots are sent that these queues serve; a broker with one entry sends them to any of its own."""
    broker, flags = way
    if broker:
        among = landings.get(broker) or tuple(sorted(queues))
        yield Post(vo=vo, queues=among, flags=flags, broker=broker)
        return
    for queue in sorted(queues):
        yield Post(vo=vo, queues=(queue,), flags=flags)
