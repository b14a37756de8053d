"""What a VO's jobs want of our queues: asked of the service, whose matcher alone knows the rules."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pilotage.fabric.client import Client
from pilotage.fabric.director.demand import Limits, Work
from pilotage.fabric.director.outlets import Outlet
from pilotage.fabric.director.posts import Post
from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.settings import Place, Slot, Wishes


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the service says of a VO at our queues."""

    work: tuple[Work, ...]
    pools: Mapping[Post, tuple[str, ...]]  #: of every post that may get pilots
    limits: Mapping[str, Limits]  #: by queue
    ranks: Mapping[str, float | None]  #: by queue; only numbers, an expression is for single jobs
    lifetimes: Mapping[str, float | None]  #: seconds of a slot, by queue
    unknown: tuple[str, ...]  #: queues that the configuration does not know


class Asking:
    """One VO's side of the service."""

    def __init__(self, client: Client, vo: str) -> None:
        self._client = client
        self._vo = vo

    def ask(self, outlets: Collection[Outlet]) -> Wanted:
        """What waits for pilots of the VO: pools by queue and flags in one call, then each queue's work."""
        answer = self._client.pilot_groups([outlet.queue for outlet in outlets])
        known = [outlet for outlet in outlets if outlet.queue in answer["flags"]]
        told = {outlet.queue: self._client.queue(outlet.queue, self._vo) for outlet in known}
        open_ones = [outlet for outlet in known if told[outlet.queue]["usable"]]
        parameters = {queue: _values(said) for queue, said in told.items()}
        groups = {outlet.queue: self._posts(outlet, answer["flags"][outlet.queue]) for outlet in open_ones}
        wishes = Wishes(vo=self._vo)
        offers = {each.queue: offered(each, wishes, parameters[each.queue]) for each in open_ones}
        requests = {
            each.queue: request(offers[each.queue], each, parameters[each.queue]) for each in open_ones
        }
        return Wanted(
            work=tuple(self._work(requests, groups)),
            pools={post: pools for of_queue in groups.values() for post, pools in of_queue.items()},
            limits={queue: _limits(values) for queue, values in parameters.items()},
            ranks={queue: _number(values, "rank") for queue, values in parameters.items()},
            lifetimes={queue: made.lifetime for queue, made in offers.items()},
            unknown=tuple(str(each["queue"]) for each in answer["unknown"]),
        )

    def _posts(self, outlet: Outlet, groups: Iterable[Mapping[str, Any]]) -> Mapping[Post, tuple[str, ...]]:
        """Posts of a queue with their pools; the one without flags is for jobs without pool, too."""
        plain = Post(vo=self._vo, queue=outlet.queue)
        said = {
            Post(vo=self._vo, queue=outlet.queue, flags=tuple(each["flags"])): tuple(each["pools"])
            for each in groups
        }
        return {plain: (), **said}

    def _work(
        self,
        requests: Mapping[str, Mapping[str, object]],
        groups: Mapping[str, Mapping[Post, tuple[str, ...]]],
    ) -> Iterator[Work]:
        """The task queues, each once with all posts that serve it."""
        jobs: dict[int, int] = {}
        posts: dict[int, set[Post]] = {}
        for queue, request in requests.items():
            for each in self._client.matching_task_queues(request):
                number = int(each["task_queue"])
                jobs[number] = max(jobs.get(number, 0), int(each["waiting"]))
                posts.setdefault(number, set()).add(_post_for(each["submit_pool"], groups[queue]))
        for number, served in sorted(posts.items()):
            yield Work(jobs=jobs[number], posts=frozenset(served))


def _post_for(pool: str | None, posts: Mapping[Post, tuple[str, ...]]) -> Post:
    """Where pilots for a pool are sent; jobs without one, and pools without flags, take any node."""
    for post, pools in posts.items():
        if pool is not None and pool in pools:
            return post
    return min(posts, key=lambda post: post.flags)


def offered(outlet: Outlet, wishes: Wishes, parameters: Mapping[str, object]) -> offer.Offer:
    """What a pilot in this outlet will offer, by the pilot's own rules."""
    site, ce, queue = outlet.queue.split("/")
    asked = outlet.resources
    slot = Slot(
        lifetime=asked.wall_time,
        max_ram=asked.memory,
        processors=asked.cores if asked.cores > 1 else None,
        gpus=asked.gpus or None,
    )
    return offer.make(Place(site, ce, queue), slot, wishes, dict(parameters))


def request(made: offer.Offer, outlet: Outlet, parameters: Mapping[str, object]) -> dict[str, object]:
    """The request of one that has no node yet: what would be measured there nobody knows."""
    said = made.at(0)
    said.pop("NodeFacts", None)
    if outlet.resources.memory is None and _number(parameters, "maxram") is None:
        said.pop("MaxRAM", None)  # it is this host's
    return said


def _values(said: Mapping[str, Any]) -> Mapping[str, object]:
    return {str(name): each["value"] for name, each in said["parameters"].items()}


def _limits(parameters: Mapping[str, object]) -> Limits:
    usual = Limits()
    total, waiting = _number(parameters, "maxtotaljobs"), _number(parameters, "maxwaitingjobs")
    return Limits(
        total=usual.total if total is None else int(total),
        waiting=usual.waiting if waiting is None else int(waiting),
    )


def _number(parameters: Mapping[str, object], name: str) -> float | None:
    """A number by its name in lower case; None: it is not there, or no number."""
    value = {each.lower(): said for each, said in parameters.items()}.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
