"""Demand for pilots from the matcher: waiting jobs of a VO that pilots of each queue could run.

The service computes it, since only its matcher implements the rules.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotage.fabric.client import Client
from pilotage.fabric.director.demand import DemandedWork, QueueLimits
from pilotage.fabric.director.targets import Broker, DirectorTargets, QueueTarget, TargetGroup
from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot

#: Flags with the pools whose pilots are sent with them.
Groups = Mapping[tuple[str, ...], tuple[str, ...]]
#: The broker, empty for none, and the flags.
Way = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetWork:
    """Waiting jobs for one queue."""

    outlet: QueueTarget
    lifetime: float | None  #: seconds of a slot
    groups: Groups
    task_queues: tuple[Mapping[str, Any], ...]

    def way(self, pool: str | None) -> Way:
        """How pilots for a pool are sent; jobs without one, and pools without flags, take any node."""
        flags = next((flags for flags, pools in self.groups.items() if pool in pools), ())
        return self.outlet.broker, flags

    def straight(self, vo: str) -> Mapping[TargetGroup, tuple[str, ...]]:
        """Posts of the queue with their pools; the one without flags is for jobs without pool, too."""
        if self.outlet.broker:
            return {}
        groups: Groups = {(): (), **self.groups}
        return {
            TargetGroup(vo=vo, queues=(self.outlet.queue,), flags=flags): pools
            for flags, pools in groups.items()
        }


def collect_work(
    vo: str, looks: Sequence[TargetWork], brokers: Mapping[str, Broker]
) -> Iterator[DemandedWork]:
    """The task queues, each once, with all posts whose pilots serve it."""
    landings = {
        name: tuple(sorted(look.outlet.queue for look in looks if look.outlet.broker == name))
        for name, broker in brokers.items()
        if broker.entry is not None
    }
    jobs = _jobs(looks)
    served = _queues_by_task_queue(looks)
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
        yield DemandedWork(jobs=jobs[number], posts=own[number].union(narrower))


def _jobs(looks: Iterable[TargetWork]) -> Mapping[int, int]:
    """How many wait in each task queue: what is asked one after the other may have changed meanwhile."""
    jobs: dict[int, int] = {}
    for look in looks:
        for each in look.task_queues:
            number = int(each["task_queue"])
            jobs[number] = max(jobs.get(number, 0), int(each["waiting"]))
    return jobs


def _queues_by_task_queue(looks: Iterable[TargetWork]) -> Mapping[int, Mapping[Way, set[str]]]:
    """By task queue the queues that may serve it, by the way there."""
    served: dict[int, dict[Way, set[str]]] = {}
    for look in looks:
        for each in look.task_queues:
            ways = served.setdefault(int(each["task_queue"]), {})
            ways.setdefault(look.way(each["submit_pool"]), set()).add(look.outlet.queue)
    return served


def _posts(
    vo: str, way: Way, queues: Collection[str], landings: Mapping[str, tuple[str, ...]]
) -> Iterator[TargetGroup]:
    """Where pilots are sent that these queues serve; a broker with one entry sends them to any of its own."""
    broker, flags = way
    if broker:
        among = landings.get(broker) or tuple(sorted(queues))
        yield TargetGroup(vo=vo, queues=among, flags=flags, broker=broker)
        return
    for queue in sorted(queues):
        yield TargetGroup(vo=vo, queues=(queue,), flags=flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class VoDemand:
    """Waiting jobs of a VO for all queues of a director."""

    vo: str
    work: tuple[DemandedWork, ...]
    pools: Mapping[
        TargetGroup, tuple[str, ...]
    ]  #: of every post that may get pilots; a broker's ask themselves
    limits: Mapping[str, QueueLimits]  #: by queue
    ranks: Mapping[str, float | None]  #: by queue; only numbers, an expression is for single jobs
    lifetimes: Mapping[TargetGroup, float | None]  #: seconds of a slot, the shortest of those that it may be
    unknown: tuple[str, ...]  #: queues that the configuration does not know


def fetch_demand(
    client: Client, vo: str, sites: DirectorTargets, *, without: Collection[tuple[str, str, str]] = ()
) -> VoDemand:
    """Waiting jobs of a VO: pools by queue and flags in one call, then the work for each outlet.

    `without` are VO, broker and queue that a broker is not to pick now.
    """
    outlets = sites.all_outlets(vo, without=without)
    answer = client.pilot_groups(sorted({outlet.queue for outlet in outlets}))
    told = {queue: client.queue(queue, vo) for queue in answer["flags"]}
    parameters = {queue: _values(said) for queue, said in told.items()}
    looks = [
        _fetch_work(client, vo, outlet, parameters[outlet.queue], answer["flags"][outlet.queue])
        for outlet in outlets
        if outlet.queue in told and told[outlet.queue]["usable"]
    ]
    work = tuple(collect_work(vo, looks, sites.brokers))
    pools = {group: pools for look in looks for group, pools in look.straight(vo).items()}
    pools |= {group: () for each in work for group in each.posts if group.broker}
    return VoDemand(
        vo=vo,
        work=work,
        pools=pools,
        limits={queue: _limits(values) for queue, values in parameters.items()},
        ranks={queue: _number(values, "rank") for queue, values in parameters.items()},
        lifetimes=_lifetimes(looks, pools),
        unknown=tuple(str(each["queue"]) for each in answer["unknown"]),
    )


def _fetch_work(
    client: Client,
    vo: str,
    outlet: QueueTarget,
    parameters: Mapping[str, object],
    groups: Iterable[Mapping[str, Any]],
) -> TargetWork:
    made = expected_offer(outlet, JobFilters(vo=vo), parameters)
    return TargetWork(
        outlet=outlet,
        lifetime=made.lifetime,
        groups={tuple(each["flags"]): tuple(each["pools"]) for each in groups},
        task_queues=tuple(client.matching_task_queues(build_request(made, outlet, parameters))),
    )


def _lifetimes(
    looks: Iterable[TargetWork], posts: Iterable[TargetGroup]
) -> Mapping[TargetGroup, float | None]:
    of_outlet = {(look.outlet.broker, look.outlet.queue): look.lifetime for look in looks}
    return {
        post: min(
            (seconds for queue in post.queues if (seconds := of_outlet[post.broker, queue]) is not None),
            default=None,
        )
        for post in posts
    }


def expected_offer(outlet: QueueTarget, wishes: JobFilters, parameters: Mapping[str, object]) -> offer.Offer:
    """What a pilot in this outlet will offer, by the pilot's own rules."""
    site, ce, queue = outlet.queue.split("/")
    asked = outlet.resources
    slot = Slot(
        lifetime=asked.wall_time,
        max_ram=asked.memory,
        processors=asked.cores if asked.cores > 1 else None,
        gpus=asked.gpus or None,
    )
    return offer.make_offer(QueuePlace(site, ce, queue), slot, wishes, dict(parameters))


def build_request(
    made: offer.Offer, outlet: QueueTarget, parameters: Mapping[str, object]
) -> dict[str, object]:
    """The request of one that has no node yet: what would be measured there nobody knows."""
    said = made.at(0)
    said.pop("NodeFacts", None)
    if outlet.resources.memory is None and _number(parameters, "maxram") is None:
        said.pop("MaxRAM", None)  # it is this host's
    return said


def _values(said: Mapping[str, Any]) -> Mapping[str, object]:
    return {str(name): each["value"] for name, each in said["parameters"].items()}


def _limits(parameters: Mapping[str, object]) -> QueueLimits:
    usual = QueueLimits()
    total, waiting = _number(parameters, "maxtotaljobs"), _number(parameters, "maxwaitingjobs")
    return QueueLimits(
        total=usual.total if total is None else int(total),
        waiting=usual.waiting if waiting is None else int(waiting),
    )


def _number(parameters: Mapping[str, object], name: str) -> float | None:
    """A number by its name in lower case; None: it is not there, or no number."""
    value = {each.lower(): said for each, said in parameters.items()}.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
