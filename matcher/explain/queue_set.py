"""All queues of the tree as one VO gets them, for evaluating conditions on all of them at once.

A set of queues is an integer with one bit per queue. A condition is evaluated once for each distinct
combination of the values that it reads, and the result is cached with the configuration.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_
from typing import Final

from cs_config.cache import Cache, derived
from cs_config.classes.queue_columns import EligibleSets, QueueColumns
from cs_config.options.operations import options_for
from cs_config.options.options import VoOptions
from cs_config.options.place_limits import ALL_SITES
from cs_config.tree import glue
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions, queue_views, work_budget
from matcher.explain.job_conditions import ClassCondition, JobCondition, JobDemand, RequirementCondition
from matcher.explain.queue_views import QueueView
from matcher.explain.unmet_conditions import UnmetCondition, UnmetConditions
from requirements import evaluator
from requirements.bitset import list_positions, mask_from
from requirements.canonical import Requirements
from requirements.nodes.resolution import QueueDecision
from requirements.values import Value, exact, fold

#: Cached results of conditions, and sets of addresses: number, and bytes of each for a VO.
_CACHED = 20_000
MOST_BYTES: Final = 16 << 20
_CACHED_PARTS = 1_000
#: Names that every queue has implicitly.
_DERIVED = frozenset({*glue.SOURCES, *map(fold, glue.OF_ADDRESS)})


class QueueSet(QueueColumns[QueueView]):
    """Queues in the order of their addresses, including those that the VO may not use."""

    def __init__(
        self,
        queues: Sequence[QueueView],
        *,
        enabled: int,
        admitted: int,
        options: VoOptions,
    ) -> None:
        super().__init__(
            dict(enumerate(queues)),
            options.job_description.declarations,
            stated=lambda queue: queue.plain,
            implied=_DERIVED,
            cached=_CACHED_PARTS,
        )
        self.queues = queues
        self.enabled = enabled
        self.admitted = admitted  #: queues open to the VO
        self.options = options  #: of the VO
        #: Queues whose pilots cannot request jobs, because of contradictory parameters.
        self.faulty = mask_from([number for number, queue in enumerate(queues) if queue.fault is not None])
        self.candidates = enabled & admitted & ~self.faulty  #: queues that the VO may use now
        self.failed = UnmetConditions(self)
        self._resolved: Cache[Hashable, EligibleSets] = Cache(
            _CACHED, measure=self._measure_sets, most=MOST_BYTES
        )
        self._addresses: Cache[int, frozenset[QueueAddress]] = Cache(
            _CACHED, measure=lambda mask, found: self._measure_sets(mask) + 60 * len(found), most=MOST_BYTES
        )

    def _measure_sets(self, key: Hashable, _: object = None) -> int:
        """Bytes of a few sets of queues, with their key."""
        return 500 + 2 * len(str(key)) + len(self.queues) // 2

    def failures(self, demand: JobDemand) -> list[UnmetCondition]:
        """Every condition of the demand that some queue fails."""
        return self.failures_among(job_conditions.list_conditions(demand))

    def failures_among(self, asked: Iterable[JobCondition]) -> list[UnmetCondition]:
        """The conditions among these that some queue fails."""
        return [failure for part in asked for failure in self.failed.find(part)]

    def eligible(self, demand: JobDemand) -> int:
        """The candidates that fulfil all conditions of the demand."""
        return self.fulfilling(job_conditions.list_conditions(demand))

    def fulfilling(self, asked: Iterable[JobCondition]) -> int:
        """The candidates that fulfil all of these conditions."""
        found = self.candidates
        for part in asked:
            found &= self._fulfilled(part)
        return found

    def measure_work(self, asked: Iterable[JobCondition]) -> int:
        """The work for those of these conditions whose results are not cached, as of `work_budget`."""
        work = 0
        for part in asked:
            if part not in self.failed and self._resolved.find(part.key) is None:
                size = work_budget.CLASS if isinstance(part, ClassCondition) else len(str(part.key))
                work += size * (1 + self.failed.measure(part) // work_budget.QUEUES)
        return work

    def _fulfilled(self, part: JobCondition) -> int:
        """The queues that fulfil a condition. Reasons for failures of requirements are not computed here."""
        if not isinstance(part, RequirementCondition) or part in self.failed:
            return self.everything & ~reduce(or_, (each.queues for each in self.failed.find(part)), 0)
        return self._resolve(part).eligible

    def _resolve(self, part: RequirementCondition) -> EligibleSets:
        found = self._resolved.find(part.key)
        return found or self._resolved.store(part.key, self.resolve(self.question(part.asked)))

    def members(self, queues: int) -> list[QueueView]:
        """The queues of a set."""
        return [self.items[number] for number in list_positions(queues)]

    def addresses(self, queues: int) -> frozenset[QueueAddress]:
        """The addresses of a set, cached: many jobs are eligible for the same queues."""
        return self._addresses.get(queues, lambda: frozenset(queue.address for queue in self.members(queues)))

    def within(self, scope: str) -> int:
        """The queues of a scope, `Site`, `Site/CE`, `Site/CE/Queue` or ALL_SITES; 0: it does not exist."""
        if scope == ALL_SITES:
            return self.everything
        place = tuple(scope.split("/"))
        start = bisect_left(self._places, place)
        end = bisect_left(self._places, (*place[:-1], place[-1] + "\0"), start)
        return ((1 << (end - start)) - 1) << start

    @cached_property
    def sites(self) -> Mapping[str, int]:
        """Sites that have queues, with these."""
        return {site: self.within(site) for site in sorted({queue.address.site for queue in self.queues})}

    @cached_property
    def ces(self) -> tuple[str, ...]:
        """The names of all CEs, each once."""
        return tuple(dict.fromkeys(queue.address.ce for queue in self.queues))

    @cached_property
    def ce_places(self) -> Mapping[str, frozenset[str]]:
        """The places of CEs, `Site/CE`, by the folded names of these."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for queue in self.queues:
            found[fold(queue.address.ce)].add(f"{queue.address.site}/{queue.address.ce}")
        return {ce: frozenset(places) for ce, places in found.items()}

    def is_unstated(self, field: str, queues: int) -> bool:
        """Whether none of these queues states a value for this field of `Resource`."""
        stated = self.column(
            ("stated", field), lambda queue: () if getattr(queue.offered, field) is None else (True,)
        )
        return not queues & ~stated.free

    @cached_property
    def _places(self) -> list[tuple[str, ...]]:
        addresses = (queue.address for queue in self.queues)
        return [(address.site, address.ce, address.queue) for address in addresses]

    def distinct(self, name: str, queues: int) -> list[tuple[Value, int]]:
        """The values of a parameter among some queues, with the queues that have each."""
        found: dict[Hashable, tuple[Value, int]] = {}
        for value, mask in self.list_values(name):
            if mask & queues:
                first, seen = found.get(exact(value), (value, 0))
                found[exact(value)] = first, seen | mask & queues
        return list(found.values())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every parameter name that a candidate has."""
        found: dict[str, None] = {}
        for queue in self.members(self.candidates):
            found.update(dict.fromkeys((*queue.plain, *queue.nodes.names)))
        spelled = {fold(name): name for name in reversed(found)}
        glue_names = [each.name for each in glue.TABLE if fold(each.parameter) in spelled]
        derived = () if glue.SOURCES["cputime"].isdisjoint(spelled) else ("CPUTime",)
        return (*{**spelled, **{fold(name): name for name in (*glue_names, *derived)}}.values(),)

    def undecided(self, demand: JobDemand) -> int:
        """The queues where part of the demand can be decided only at the node."""
        found = 0
        for part in job_conditions.list_conditions(demand):
            if isinstance(part, RequirementCondition):
                found |= self._resolve(part).undecided
        return found

    def decide(self, asked: Requirements, queue: QueueView) -> QueueDecision:
        """The decision about requirements at a queue, before its nodes are known."""
        return evaluator.decide_at_queue(asked, queue.values, self.declarations, queue.nodes)


@derived
def all_queues(config: Configuration, vo: str) -> QueueSet:
    """The whole tree as a VO gets it, cached with the configuration."""
    return some_queues(config, vo, config.addresses)


def some_queues(config: Configuration, vo: str, addresses: Sequence[QueueAddress]) -> QueueSet:
    """Some queues as a VO gets them."""
    addresses = sorted(addresses)
    return QueueSet(
        queue_views.build_views(config, vo, addresses),
        enabled=mask_from([n for n, address in enumerate(addresses) if config.enabled(address, vo)]),
        admitted=mask_from([n for n, address in enumerate(addresses) if config.admits(address, vo)]),
        options=options_for(config, vo),
    )
