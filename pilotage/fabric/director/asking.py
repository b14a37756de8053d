"""What a VO's jobs want of our queues: asked of the service, whose matcher alone knows the rules."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pilotage.fabric.client import Client
from pilotage.fabric.director import ways
from pilotage.fabric.director.demand import Limits, Work
from pilotage.fabric.director.outlets import Outlet, Sites
from pilotage.fabric.director.posts import Post
from pilotage.fabric.director.ways import Look
from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.settings import Place, Slot, Wishes


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the service says of a VO at our queues."""

    vo: str
    work: tuple[Work, ...]
    pools: Mapping[Post, tuple[str, ...]]  #: of every post that may get pilots; a broker's ask themselves
    limits: Mapping[str, Limits]  #: by queue
    ranks: Mapping[str, float | None]  #: by queue; only numbers, an expression is for single jobs
    lifetimes: Mapping[Post, float | None]  #: seconds of a slot, the shortest of those that it may be
    unknown: tuple[str, ...]  #: queues that the configuration does not know


class Asking:
    """One VO's side of the service."""

    def __init__(self, client: Client, vo: str) -> None:
        self._client = client
        self._vo = vo

    def ask(self, sites: Sites, *, without: Collection[tuple[str, str, str]] = ()) -> Wanted:
        """What waits for pilots of the VO: pools by queue and flags in one call, then each outlet's work.

        Args:
            sites: All outlets.
            without: VO, broker and queue that a broker is not to pick now.
        """
        outlets = sites.all_outlets(self._vo, without=without)
        answer = self._client.pilot_groups(sorted({outlet.queue for outlet in outlets}))
        told = {queue: self._client.queue(queue, self._vo) for queue in answer["flags"]}
        parameters = {queue: _values(said) for queue, said in told.items()}
        looks = [
            self._look(outlet, parameters[outlet.queue], answer["flags"][outlet.queue])
            for outlet in outlets
            if outlet.queue in told and told[outlet.queue]["usable"]
        ]
        work = tuple(ways.work(self._vo, looks, sites.brokers))
        pools = {post: pools for look in looks for post, pools in look.straight(self._vo).items()}
        pools |= {post: () for each in work for post in each.posts if post.broker}
        return Wanted(
            vo=self._vo,
            work=work,
            pools=pools,
            limits={queue: _limits(values) for queue, values in parameters.items()},
            ranks={queue: _number(values, "rank") for queue, values in parameters.items()},
            lifetimes=_lifetimes(looks, pools),
            unknown=tuple(str(each["queue"]) for each in answer["unknown"]),
        )

    def _look(
        self, outlet: Outlet, parameters: Mapping[str, object], groups: Iterable[Mapping[str, Any]]
    ) -> Look:
        made = offered(outlet, Wishes(vo=self._vo), parameters)
        return Look(
            outlet=outlet,
            lifetime=made.lifetime,
            groups={tuple(each["flags"]): tuple(each["pools"]) for each in groups},
            task_queues=tuple(self._client.matching_task_queues(request(made, outlet, parameters))),
        )


def _lifetimes(looks: Iterable[Look], posts: Iterable[Post]) -> Mapping[Post, float | None]:
    of_outlet = {(look.outlet.broker, look.outlet.queue): look.lifetime for look in looks}
    return {
        post: min(
            (seconds for queue in post.queues if (seconds := of_outlet[post.broker, queue]) is not None),
            default=None,
        )
        for post in posts
    }


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
