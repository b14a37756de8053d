"""The state of the model; what a request may be given, and why nothing."""

import copy
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from typing import Any

from tests.nightly.model import configuration, flags, jobs
from tests.nightly.model.configuration import Parameters, Tree
from tests.nightly.model.jobs import Attempt, Description, Job, Limit, Resource

#: §2 "Running limits" aside: a banned site gets jobs of this type only.
_TEST = "test"
#: Admission: conditions of queues on jobs, by their text in the tree. Undefined is not true.
ADMISSIONS = {
    'other.OwnerGroup != "alpha_prod"': lambda job: job["OwnerGroup"] != "alpha_prod",
    'other.JobType == "MC"': lambda job: job.get("JobType", "").lower() == "mc",
    "other.NumberOfProcessors >= 2": lambda job: job.get("NumberOfProcessors", 0) >= 2,
}


@dataclass
class World:
    """What the service should know."""

    tree: Tree
    jobs: list[Job] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    banned: set[str] = field(default_factory=set)
    advertised: dict[str, dict[str, Any]] = field(default_factory=dict)  #: by place
    delayed: dict[Limit, int] = field(default_factory=dict)  #: matches that each matching delay has admitted
    _known: list[tuple[Tree, dict[tuple[str, str], Parameters]]] = field(default_factory=list)

    # ------------------------------------------------------------------ configuration

    def edited(self, edit: Mapping[str, Any]) -> Tree:
        """The tree with an edit: values at paths, and paths that go."""
        tree = copy.deepcopy(self.tree)
        for path, value in edit.get("set", {}).items():
            *parents, name = path.split("/")
            node = tree
            for part in parents:
                node = node.setdefault(part, {})
            node[name] = copy.deepcopy(value)
        for path in edit.get("remove", []):
            *parents, name = path.split("/")
            node = tree
            for part in parents:
                node = node.get(part, {})
            node.pop(name, None)
        return tree

    def throttled(self, tree: Tree | None = None) -> set[str]:
        """The places that have a throttle."""
        tree = self.tree if tree is None else tree
        return {
            place
            for queue in configuration.queues(tree)
            for place, node in zip(jobs.places_of(queue), configuration.levels(tree, queue), strict=True)
            if "Throttle" in node
        }

    def change(self, tree: Tree) -> None:
        """Another configuration. A throttle that is new counts all jobs at its place as on their way."""
        for place in self.throttled(tree) - self.throttled():
            for attempt in self.attempts_at(place):
                attempt.acknowledged.discard(place)
        self.tree = tree

    def has(self, path: str) -> bool:
        """Whether the tree has something at a path."""
        node: Any = self.tree
        for part in path.split("/"):
            if part not in node:
                return False
            node = node[part]
        return True

    def value_at(self, path: str) -> Any:
        """What the tree has at a path."""
        return reduce(getitem, path.split("/"), self.tree)

    def values(self, queue: str, vo: str, tree: Tree | None = None) -> Parameters:
        """The effective parameters of a queue; kept for the trees in use."""
        tree = self.tree if tree is None else tree
        known = next((found for each, found in self._known if each is tree), None)
        if known is None:
            known = {}
            self._known = [*self._known[-1:], (tree, known)]
        if (queue, vo) not in known:
            known[queue, vo] = configuration.effective(tree, queue, vo)
        return known[queue, vo]

    def mapping(self, job: Job, tree: Tree | None = None) -> set[str]:
        """§1 "Mapping": the queues of a job's pool, by a configuration."""
        tree = self.tree if tree is None else tree
        return {
            queue
            for queue in configuration.queues(tree)
            if configuration.usable(tree, queue, job.vo)
            and configuration.eligible(job.requirements, self.values(queue, job.vo, tree), tree, job.vo)
        }

    def suitable_queues(
        self, description: Description, tree: Tree | None = None
    ) -> tuple[set[str], set[str]]:
        """Contract "Explain": the queues that a job may use at all, and those that fulfil its conditions."""
        tree, vo = self.tree if tree is None else tree, description["VO"]
        candidates = {queue for queue in configuration.queues(tree) if configuration.usable(tree, queue, vo)}
        return candidates, {queue for queue in candidates if self._suits(description, queue, tree)}

    def _suits(self, description: Description, queue: str, tree: Tree) -> bool:
        vo = description["VO"]
        values = self.values(queue, vo, tree)
        return (
            jobs.fits(description, jobs.offer_of_queue(values, queue))
            and configuration.eligible(description.get("Requirements"), values, tree, vo)
            and self.admits(values, description)
        )

    def flags_fault(
        self, requirements: Any, vo: str, queue: str, arguments: Sequence[str], *, sufficient: bool = False
    ) -> dict[str, Any] | None:
        """A node that fulfils the requirements, but not the flags, or the reverse; None: there is none."""
        values = self.values(queue, vo)
        for node in configuration.nodes_of(requirements, values, self.tree, vo):
            if flags.is_mappable(node):
                fits = configuration.eligible_at(node, requirements, values, self.tree, vo)
                taken = flags.fulfils(node, arguments)
                if (fits and not taken) or (sufficient and taken and not fits):
                    return node
        return None

    def refused(self, description: Description, queues: Collection[str]) -> dict[str, int]:
        """How many of the queues each requirement excludes, by its name: the keywords, and those of a record.

        A name of a record that is compared with a node attribute, or with another parameter, is left out.
        """
        vo, tags = description["VO"], configuration.as_list(description.get("Tags", []))
        required = description.get("Requirements")
        record = {
            name: (wanted, configuration.declaration(self.tree, vo, name))
            for name, wanted in (required.items() if isinstance(required, dict) else ())
        }
        found: Counter[str] = Counter(dict.fromkeys([*jobs.CONDITIONS, *record], 0))
        for queue in queues:
            values = self.values(queue, vo)
            offer = jobs.offer_of_queue(values, queue)
            for name, holds in jobs.CONDITIONS.items():  # of tags each for itself
                lacking = len(jobs.tags_lacking(description, offer)) if name == "Tags" and tags else 1
                found[name] += 0 if holds(description, offer) else lacking
            for name, (wanted, declared) in record.items():
                if isinstance(values.get(declared.get("resource", name).lower()), configuration.NodeValues):
                    found[name] -= 1000  # left out
                else:
                    found[name] += not configuration.fulfils(name, wanted, values, declared, surely=False)
        return {name: number for name, number in found.items() if number >= 0}

    @staticmethod
    def admits(values: Parameters, description: Description) -> bool:
        """§4 "The boolean checks of a queue", and its own Requirements: evaluated with the job."""
        condition = values.get("requirements")
        return condition is None or ADMISSIONS[condition](description)

    # ------------------------------------------------------------------ matching

    def waiting(self, vo: str) -> Iterator[Job]:
        return (job for job in self.jobs if job.status == "Waiting" and job.vo == vo and not job.in_flux)

    def fitting(self, resource: Resource) -> list[Job]:
        """The jobs that a request could get but for facts of its node, limits, throttles and bans."""
        vo = resource["VO"]
        queues = [q for q in self._queues_of(resource) if configuration.usable(self.tree, q, vo)]
        return [
            job
            for job in self.waiting(vo)
            if jobs.fits(job.description, resource) and any(self._may_run(job, queue) for queue in queues)
        ]

    def _queues_of(self, resource: Resource) -> list[str]:
        """§1 "What a pilot presents": its queue, else the queues at its place."""
        place = "/".join(resource[key] for key in ("Site", "GridCE", "Queue") if key in resource)
        return [queue for queue in configuration.queues(self.tree) if jobs.lies_in(queue, place)]

    def _may_run(self, job: Job, queue: str, facts: Mapping[str, Any] | None = None) -> bool:
        values = self.values(queue, job.vo)
        here = values if facts is None else configuration.with_facts(values, facts)
        return self.admits(values, job.description) and configuration.eligible(
            job.requirements, here, self.tree, job.vo, surely=facts is not None
        )

    def on_this_node(self, resource: Resource, found: list[Job]) -> list[Job]:
        """§4 (b): those whose requirements hold with the facts that the pilot measured."""
        facts = resource.get("NodeFacts", {})
        queues = self._queues_of(resource)
        return [job for job in found if any(self._may_run(job, queue, facts) for queue in queues)]

    def admitted(self, resource: Resource, found: list[Job], *, count: int) -> list[Job]:
        """Those that bans, throttles, limits and delays admit now, for a request of `count` jobs."""
        if resource["Site"] in self.banned:
            found = [job for job in found if job.attribute("JobType") == _TEST]
        if self.room(resource) <= 0:
            return []
        return [job for job in found if not self.full(job, resource, count=count)]

    def room(self, resource: Resource) -> float:
        """§3: the least room of the throttles at site, CE and queue; all must agree."""
        queue = self._queues_of(resource)[0]
        rooms = [float("inf")]
        for place, node in zip(jobs.places_of(queue), configuration.levels(self.tree, queue), strict=True):
            if "Throttle" in node:
                rooms.append(self._room_at(place, node["Throttle"]))
        return min(rooms)

    def _room_at(self, place: str, throttle: Mapping[str, Any]) -> float:
        advertised = self.advertised.get(place)
        if advertised is None:
            return float("inf") if throttle.get("Stale") == "open" else 0
        return jobs.room(throttle, advertised, self.reserved(place))

    def reserved(self, place: str) -> int:
        """§3 "Reservations": the matches that no advertisement of the place contains."""
        return sum(each.is_reserved and place not in each.acknowledged for each in self.attempts_at(place))

    def attempts_at(self, place: str) -> list[Attempt]:
        return [attempt for attempt in self.attempts if jobs.lies_in(attempt.queue, place)]

    def full(self, job: Job, resource: Resource, *, count: int) -> list[Limit]:
        """§2: the limits and delays that hold a job back there, with the cores that it would be given."""
        queue = self._queues_of(resource)[0]
        cores = jobs.given_cores(job.description, resource, alone=count == 1)
        concerned = [limit for limit in jobs.limits(self.tree, job.vo) if limit.concerns(job, queue)]
        return [
            limit
            for limit in concerned
            if (limit.amount is not None and self.used(limit) >= limit.amount)
            or (limit.cores is not None and self.used_cores(limit) + cores > limit.cores)
        ]

    def bounds_cores(self, vo: str, queue: str) -> bool:
        """Whether a limit there is on cores: jobs that are given together then get their fewest."""
        found = (each for each in jobs.limits(self.tree, vo) if jobs.lies_in(queue, each.place))
        return any(limit.cores is not None for limit in found)

    def used(self, limit: Limit) -> int:
        """Jobs that are matched, running or stalled, and killed ones until they have ended; or matches."""
        if limit.is_delay:
            return self.delayed.get(limit, 0)
        return len(self._running(limit))

    def used_cores(self, limit: Limit) -> int:
        """The cores of these jobs."""
        return sum(attempt.processors for attempt in self._running(limit))

    def _running(self, limit: Limit) -> list[Attempt]:
        return [each for each in self.attempts if each.is_open and limit.concerns(each.job, each.queue)]

    def match(self, job: Job, queue: str, *, lease: str, processors: int) -> Attempt:
        """§5 "Match": attempt e+1 opens."""
        attempt = Attempt(job, queue, len(job.attempts) + 1, lease, processors)
        for limit in jobs.limits(self.tree, job.vo):
            if limit.is_delay and limit.concerns(job, queue):
                self.delayed[limit] = self.delayed.get(limit, 0) + 1
        job.attempts.append(attempt)
        self.attempts.append(attempt)
        job.status = "Matched"
        return attempt

    # ------------------------------------------------------------------ advertisements

    def advertise(self, place: str, values: dict[str, Any], seen: list[Attempt]) -> None:
        """§3: it acknowledges the attempts that it lists, and those started before its watermark.

        One that an earlier advertisement listed is in that one's counts, which hold no more: a later
        watermark may have been counted before.
        """
        self.advertised[place] = values
        for attempt in self.attempts_at(place):
            if attempt.started or attempt in seen:
                attempt.acknowledged.add(place)
            else:
                attempt.acknowledged.discard(place)
