"""All queues of the tree in front of one VO, so that a question is asked once for all that are alike.

A set of queues is an integer, one bit a queue. What a part of a demand looks at has few distinct values over
thousands of queues: the evaluator is asked once for each, and the answer is remembered as long as the
configuration stays.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_
from typing import cast

from cs_config.options.operations import options_for
from cs_config.tree import glue
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions, queue_columns
from matcher.explain.job_conditions import JobCondition, JobDemand, RequirementCondition
from matcher.explain.queue_columns import Column, QueueColumns, QueueView
from matcher.explain.unmet_conditions import UnmetCondition, UnmetConditions
from requirements import evaluator
from requirements.bitset import list_positions, mask_from
from requirements.canonical import Requirements
from requirements.record.declarations import Declarations
from requirements.values import Value, fold

#: Answers that are remembered; beyond that we start anew.
_REMEMBERED = 20_000


class QueueSet:
    """The queues of the tree, in the order of their addresses, whether the VO may use them or not."""

    def __init__(
        self,
        queues: Sequence[QueueView],
        *,
        enabled: int,
        admitted: int,
        declarations: Declarations,
        segments: tuple[int, ...],
    ) -> None:
        self.queues = queues
        self.enabled = enabled
        self.admitted = admitted  #: those that let the VO in
        self.declarations = declarations
        self.segments = segments  #: of CPU time
        #: Those whose pilots could not ask for jobs, by a fault of their parameters.
        self.faulty = mask_from([number for number, queue in enumerate(queues) if queue.fault is not None])
        self._columns = QueueColumns(queues)
        self.failed = UnmetConditions(queues, self._columns, declarations)
        self._fulfilling: dict[object, int] = {}

    @property
    def candidates(self) -> int:
        """Those that the VO may use now."""
        return self.enabled & self.admitted & ~self.faulty

    @property
    def everything(self) -> int:
        """All of them."""
        return (1 << len(self.queues)) - 1

    def failures(self, demand: JobDemand) -> list[UnmetCondition]:
        """Every part of the demand that some queue fails."""
        return self.failures_among(job_conditions.list_conditions(demand))

    def failures_among(self, asked: Iterable[JobCondition]) -> list[UnmetCondition]:
        """Those of these parts that some queue fails."""
        return [failure for part in asked for failure in self.failed.find(part)]

    def eligible(self, demand: JobDemand) -> int:
        """The candidates that fail nothing."""
        return self.fulfilling(job_conditions.list_conditions(demand))

    def fulfilling(self, asked: Iterable[JobCondition]) -> int:
        """The candidates that fail none of these parts."""
        found = self.candidates
        for part in asked:
            found &= self._fulfilled(part)
        return found

    def _fulfilled(self, part: JobCondition) -> int:
        """The queues that do not fail a part; of requirements no reason is asked for, if none was before."""
        if not isinstance(part, RequirementCondition) or part in self.failed:
            return self.everything & ~reduce(or_, (each.queues for each in self.failed.find(part)), 0)
        found = self._fulfilling.get(part.key)
        if found is None:
            if len(self._fulfilling) >= _REMEMBERED:
                self._fulfilling.clear()
            masks = (mask for queue, mask in self._read_values(part) if self._fulfils(part, queue))
            found = self._fulfilling[part.key] = reduce(or_, masks, 0)
        return found

    def _fulfils(self, part: RequirementCondition, queue: int) -> bool:
        offer = self.queues[queue]
        return evaluator.eligible(part.asked, offer.values, self.declarations, offer.nodes)

    def _read_values(self, part: RequirementCondition) -> Column:
        return self._columns.group_by_values(self._names(part))

    def _names(self, part: RequirementCondition) -> tuple[str, ...]:
        return evaluator.parameters(part.asked, self.declarations)

    def first(self, queues: int) -> QueueView:
        """The first of a set that is not empty."""
        return self.queues[(queues & -queues).bit_length() - 1]

    def within(self, scope: str) -> int:
        """The queues at a scope, `Site`, `Site/CE` or `Site/CE/Queue`; none if nothing is called so."""
        place = tuple(scope.split("/"))
        start = bisect_left(self._places, place)
        end = bisect_left(self._places, (*place[:-1], place[-1] + "\0"), start)
        return ((1 << (end - start)) - 1) << start

    @cached_property
    def sites(self) -> Mapping[str, int]:
        """The sites that have queues, with those."""
        return {
            site: self.within(site) for site in dict.fromkeys(queue.address.site for queue in self.queues)
        }

    @cached_property
    def ces(self) -> tuple[str, ...]:
        """The CEs by their names, each once."""
        return tuple(dict.fromkeys(queue.address.ce for queue in self.queues))

    def silent(self, field: str, queues: int) -> bool:
        """Whether none of some queues says anything about this field of `Resource`."""
        unsaid = 0
        for queue, mask in self._columns.refused_by_resource((field,)):
            if getattr(self.queues[queue].offered, field) is None:
                unsaid |= mask
        return not queues & ~unsaid

    @cached_property
    def _places(self) -> list[tuple[str, ...]]:
        addresses = (queue.address for queue in self.queues)
        return [(address.site, address.ce, address.queue) for address in addresses]

    def distinct(self, name: str, queues: int) -> dict[Value, int]:
        """The values of a parameter among some queues, as first spelled, with those that have it."""
        found: dict[Value, int] = {}
        for value, mask in self._columns.distinct(name):
            if mask & queues:
                found[value] = found.get(value, 0) | mask & queues
        return found

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every name of a parameter that a candidate has."""
        found: dict[str, None] = {}
        for number in list_positions(self.candidates):
            queue = self.queues[number]
            found.update(dict.fromkeys((*queue.plain, *queue.nodes.names)))
        spelled = {fold(name): name for name in reversed(found)}
        glue_names = [each.name for each in glue.TABLE if fold(each.parameter) in spelled]
        return (*spelled.values(), *dict.fromkeys(glue_names))

    def undecided(self, demand: JobDemand) -> int:
        """The queues that some of the demand is left to the nodes of, among those that fail nothing."""
        found = 0
        for part in job_conditions.list_conditions(demand):
            if isinstance(part, RequirementCondition) and self._columns.with_nodes(self._names(part)):
                for queue, mask in self._read_values(part):
                    if self.residue(part.asked, queue) is not None:
                        found |= mask
        return found

    def residue(self, asked: Requirements, queue: int) -> Requirements | None:
        """What the nodes of a queue decide of requirements; None: nothing."""
        offer = self.queues[queue]
        return evaluator.decide_at_queue(asked, offer.values, self.declarations, offer.nodes).residue


def all_queues(config: Configuration, vo: str) -> QueueSet:
    """The whole tree in front of a VO, remembered with the configuration."""
    key = (__name__, fold(vo))
    found = config.derived.get(key)
    if found is None:
        found = config.derived[key] = some_queues(config, vo, config.addresses)
    return cast(QueueSet, found)


def some_queues(config: Configuration, vo: str, addresses: Sequence[QueueAddress]) -> QueueSet:
    """Some queues in front of a VO."""
    options = options_for(config, vo)
    addresses = sorted(addresses)
    return QueueSet(
        queue_columns.queue_views(config, vo, addresses),
        enabled=mask_from([n for n, address in enumerate(addresses) if config.enabled(address, vo)]),
        admitted=mask_from([n for n, address in enumerate(addresses) if config.admits(address, vo)]),
        declarations=options.job_description.declarations,
        segments=options.job_scheduling.cpu_segments,
    )
