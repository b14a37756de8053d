"""All queues of the tree in front of one VO, so that a question is asked once for all that are alike.

A set of queues is an integer, one bit a queue. What a part of a demand looks at has few distinct values over
thousands of queues: the evaluator is asked once for each, and the answer is remembered as long as the
configuration stays.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import cast

from cs_config import glue
from cs_config.address import QueueAddress
from cs_config.admission import Miss
from cs_config.configuration import Configuration
from cs_config.operations import operations
from matcher import parts, queue_views
from matcher.bitmaps import bits
from matcher.columns import Column, Columns, mask_of
from matcher.parts import Application, Condition, Demand, Part, Requirement
from matcher.queue_views import QueueView
from requirements import evaluation, evaluator
from requirements.canonical import Requirements
from requirements.declarations import Declarations
from requirements.evaluator import Reason
from requirements.values import Value, fold, shown

#: For the queues that are alike, why they fail.
_Reasons = Sequence[tuple[Sequence[Reason], int]]
#: Answers that are remembered; beyond that we start anew.
_REMEMBERED = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Queues that fail one part of a demand."""

    part: Part
    requirement: str
    wanted: str  #: what is asked, for a person
    queues: int


class Survey:
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
        self._columns = Columns(queues)
        self._failures: dict[object, tuple[Failure, ...]] = {}
        self._fulfilling: dict[object, int] = {}
        self._last_reasons: tuple[object, _Reasons] = (None, ())

    @property
    def candidates(self) -> int:
        """Those that the VO may use now."""
        return self.enabled & self.admitted

    @property
    def everything(self) -> int:
        """All of them."""
        return (1 << len(self.queues)) - 1

    def failures(self, demand: Demand) -> list[Failure]:
        """Every part of the demand that some queue fails."""
        return self.failures_among(parts.parts(demand))

    def failures_among(self, asked: Iterable[Part]) -> list[Failure]:
        """Those of these parts that some queue fails."""
        return [failure for part in asked for failure in self.failures_of(part)]

    def eligible(self, demand: Demand) -> int:
        """The candidates that fail nothing."""
        found = self.candidates
        for part in parts.parts(demand):
            found &= self._fulfilled(part)
        return found

    def _fulfilled(self, part: Part) -> int:
        """The queues that do not fail a part; of requirements no reason is asked for."""
        if not isinstance(part, Requirement):
            return self.everything & ~reduce(or_, (each.queues for each in self.failures_of(part)), 0)
        found = self._fulfilling.get(part.key)
        if found is None:
            if len(self._fulfilling) >= _REMEMBERED:
                self._fulfilling.clear()
            masks = (mask for queue, mask in self._looked_at(part) if self._fulfils(part, queue))
            found = self._fulfilling[part.key] = reduce(or_, masks, 0)
        return found

    def _fulfils(self, part: Requirement, queue: int) -> bool:
        offer = self.queues[queue]
        return evaluator.eligible(part.asked, offer.values, self.declarations, offer.nodes)

    def _looked_at(self, part: Requirement) -> Column:
        return self._columns.by_values(evaluator.parameters(part.asked, self.declarations))

    def failures_of(self, part: Part) -> tuple[Failure, ...]:
        """The queues that fail a part; several answers for an expression of several operands."""
        found = self._failures.get(part.key)
        if found is None:
            if len(self._failures) >= _REMEMBERED:
                self._failures.clear()
            found = self._failures_of(part)
            self._failures[part.key] = found
        return found

    def _failures_of(self, part: Part) -> tuple[Failure, ...]:
        if isinstance(part, Condition):
            return self._condition(part)
        return self._application(part) if isinstance(part, Application) else self._requirement(part)

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
        for queue, mask in self._columns.by_resource((field,)):
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
        for number in bits(self.candidates):
            queue = self.queues[number]
            found.update(dict.fromkeys((*queue.plain, *queue.nodes.names)))
        spelled = {fold(name): name for name in reversed(found)}
        glue_names = [each.name for each in glue.TABLE if fold(each.parameter) in spelled]
        return (*spelled.values(), *dict.fromkeys(glue_names))

    def seen(self, failure: Failure) -> Iterator[tuple[str | None, int]]:
        """What the queues that fail have instead (None: nothing of that name), and which of them."""
        part = failure.part
        if isinstance(part, Condition):
            for queue, mask in self._columns.by_resource(part.kind.looks):
                if mask & failure.queues:
                    yield queue_views.shows(part.kind, self.queues[queue]), mask
            return
        if isinstance(part, Application):
            misses = self._misses(part)
            told = (failure.requirement, failure.wanted)
            yield from ((miss.has or None, mask) for miss, mask in misses if (miss.name, miss.wanted) == told)
            return
        yield from self._seen_by_values(part, failure)

    def _seen_by_values(self, part: Requirement, failure: Failure) -> Iterator[tuple[str | None, int]]:
        for reasons, mask in self._reasons(part):
            if mask & failure.queues:
                yield from ((reason.has, mask) for reason in reasons if reason.wanted == failure.wanted)

    def told(self, failure: Failure, queue: QueueView, has: str | None) -> str | None:
        """What a queue that fails has instead, for a person: what has expired is not just absent."""
        if not queue.expired or not isinstance(failure.part, Requirement):
            return has
        for name in evaluator.parameters(failure.part.asked, self.declarations):
            if (value := queue.expired.get(fold(name))) is not None:
                said = f"expired, it was {shown(value)}"
                has = said if has is None else "; ".join(_saying(has.split("; "), name, said))
        return has

    def _condition(self, part: Condition) -> tuple[Failure, ...]:
        column = self._columns.by_resource(part.kind.looks)
        queues = 0
        for _, mask in self._refusing(part, column):
            queues |= mask
        if not queues:
            return ()
        wanted = part.kind.wanted(part.isolated)
        return (Failure(part=part, requirement=part.kind.requirement, wanted=wanted, queues=queues),)

    def _refusing(self, part: Condition, column: Column) -> Column:
        """The part of a column that refuses; in one of capacities that is its beginning."""
        if part.kind not in parts.CAPACITIES:
            return [each for each in column if parts.refused(part, self.queues[each[0]].resource)]
        enough = bisect_left(
            column, 1, key=lambda each: int(not parts.refused(part, self.queues[each[0]].resource))
        )
        return column[:enough]

    def _requirement(self, part: Requirement) -> tuple[Failure, ...]:
        found: defaultdict[tuple[str, str], int] = defaultdict(int)
        for reasons, mask in self._reasons(part):
            for reason in reasons:
                found[reason.requirement, reason.wanted] |= mask
        return tuple(
            Failure(part=part, requirement=requirement, wanted=wanted, queues=queues)
            for (requirement, wanted), queues in found.items()
        )

    def _application(self, part: Application) -> tuple[Failure, ...]:
        found: defaultdict[tuple[str, str], int] = defaultdict(int)
        for miss, mask in self._misses(part):
            found[miss.name, miss.wanted] |= mask
        return tuple(
            Failure(part=part, requirement=name, wanted=wanted, queues=queues)
            for (name, wanted), queues in found.items()
        )

    def _misses(self, part: Application) -> Iterator[tuple[Miss, int]]:
        """What queues ask of the job in vain, with the queues that ask it alike."""
        for queue, mask in self._columns.by_admission():
            admission = self.queues[queue].admission
            for miss in () if admission is None else admission.misses(part.job):
                yield miss, mask

    def _reasons(self, part: Requirement) -> _Reasons:
        """Asked for again with every failure of a part: those of the last part are kept, no more."""
        key, found = self._last_reasons
        if key != part.key:
            found = [(self._failing(part, queue), mask) for queue, mask in self._looked_at(part)]
            self._last_reasons = (part.key, found)
        return found

    def _failing(self, part: Requirement, queue: int) -> Sequence[Reason]:
        offer = self.queues[queue]
        return evaluator.failing(part.asked, offer.values, self.declarations, offer.nodes)

    def undecided(self, demand: Demand) -> int:
        """The queues that some of the demand is left to the nodes of, among those that fail nothing."""
        if not self._have_nodes:
            return 0
        found = 0
        for part in parts.parts(demand):
            if isinstance(part, Requirement):
                for queue, mask in self._looked_at(part):
                    if self.residue(part.asked, queue) is not None:
                        found |= mask
        return found

    def residue(self, asked: Requirements, queue: int) -> Requirements | None:
        """What the nodes of a queue decide of requirements; None: nothing."""
        offer = self.queues[queue]
        return evaluator.standing(asked, offer.values, self.declarations, offer.nodes).residue

    @cached_property
    def _have_nodes(self) -> bool:
        """Whether any of the queues has node attributes."""
        return any(queue.nodes for queue in self.queues)


def of_vo(config: Configuration, vo: str) -> Survey:
    """The whole tree in front of a VO, remembered with the configuration."""
    key = (__name__, fold(vo))
    found = config.derived.get(key)
    if found is None:
        found = config.derived[key] = of_queues(config, vo, config.addresses)
    return cast(Survey, found)


def of_queues(config: Configuration, vo: str, addresses: Sequence[QueueAddress]) -> Survey:
    """Some queues in front of a VO."""
    options = operations(config, vo)
    addresses = sorted(addresses)
    return Survey(
        queue_views.of(config, vo, addresses),
        enabled=mask_of([n for n, address in enumerate(addresses) if config.enabled(address, vo)]),
        admitted=mask_of([n for n, address in enumerate(addresses) if config.admits(address, vo)]),
        declarations=options.job_description.declarations,
        segments=options.job_scheduling.cpu_segments,
    )


def _saying(all_said: Iterable[str], name: str, said: str) -> Iterator[str]:
    """What a queue says of the names in an expression, with `said` for one of them that is absent."""
    return (f"{name} {said}" if each == f"{name} {evaluation.ABSENT}" else each for each in all_said)
