"""Bitmap index over the queue classes of a VO, and the classes that requirements match.

A class has a slot, its bit in every set. Requirements are split into parts that are evaluated independently;
the result of each part is a cached set, and most pools share their parts. A class matches either surely, or
only at some of its nodes.

Source of the selection of nodes: RFC #7's helper for eligible nodes.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import count
from operator import or_
from typing import Any, Final

from cs_config.cache import Cache, derived
from cs_config.classes.queue_classes import QueueClass, queue_classes
from cs_config.options.operations import options_for
from cs_config.tree import glue, inheritance
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from requirements import evaluator
from requirements.bitset import list_positions, mask_from
from requirements.canonical import Requirements
from requirements.classad.evaluation import Operands
from requirements.classad.expression import parse_expression
from requirements.errors import InvalidRequest, Problem, did_you_mean
from requirements.record import Declarations, Record, parse_record
from requirements.values import Value, exact, fold

#: Largest number of cached part results, and of cached questions.
_CACHE_SIZE = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibleSets:
    """The queue classes of which some node may fulfil requirements, as sets of slots."""

    eligible: int
    undecided: int = 0  #: subset of `eligible`: classes of which only some nodes may


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementPart:
    """One part of the requirements, evaluated independently, for queues whose nodes are all alike."""

    key: Hashable  #: equal for equal conditions
    names: tuple[str, ...]  #: folded; the only attributes of a queue that the part depends on
    holds: Callable[[Mapping[str, Value]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementQuestion:
    """Requirements, split into parts."""

    whole: Requirements
    names: frozenset[str]  #: folded
    parts: tuple[RequirementPart, ...]


class QueueClassIndex:
    """A compact index over queue classes."""

    def __init__(
        self,
        classes: Sequence[QueueClass],
        declarations: Declarations,
        slots: Mapping[str, int] | None = None,
        before: "QueueClassIndex | None" = None,
    ) -> None:
        """Index the classes of a VO, reusing results of an index of another version where they still hold.

        `slots`: by digest; slots of classes that the VO no longer has are not reused.
        """
        self.declarations = declarations
        digests = [each.digest for each in classes]
        taken = slots if slots is not None else _assign_slots(before.slots if before else {}, digests)
        given = _assign_slots(number_classes(taken, digests), digests)
        self.slots: Mapping[str, int] = given
        self.classes: Mapping[int, QueueClass] = {given[each.digest]: each for each in classes}
        self.everything = mask_from(self.classes)
        self._columns: dict[tuple[str, ...], list[tuple[QueueClass, int]]] = {}
        self._results: Cache[Hashable, tuple[RequirementPart, int]] = Cache(_CACHE_SIZE)
        self._questions: Cache[str, RequirementQuestion] = Cache(_CACHE_SIZE)
        #: Whether questions of the earlier index are valid for this one.
        self.follows = (
            before is not None and before.declarations == declarations and before.present == self.present
        )
        if before is not None and self.follows:
            self._reuse_results(before)

    @cached_property
    def present(self) -> frozenset[str]:
        """Every name, folded, that some class has."""
        return frozenset(self._spellings).union(self._node_values)

    def read_question(self, pool_id: str) -> RequirementQuestion | None:
        """The cached question of a pool."""
        return self._questions.find(pool_id)

    def question_of(self, pool_id: str, requirements: Requirements) -> RequirementQuestion:
        """The question of a pool's requirements, cached under the pool's id."""
        return self._questions.get(pool_id, lambda: self.question(requirements))

    def question(self, requirements: Requirements) -> RequirementQuestion:
        """Split requirements into parts; valid for every index with the same names and declarations."""
        names = evaluator.parameters(requirements, self.declarations)
        parts = (
            [self._entry(each) for each in evaluator.parts(requirements) if isinstance(each, Record)]
            if isinstance(requirements, Record)
            else [self._operands(each) for each in evaluator.operands(requirements, self.present)]
        )
        return RequirementQuestion(whole=requirements, names=frozenset(map(fold, names)), parts=tuple(parts))

    def resolve(self, question: RequirementQuestion) -> EligibleSets:
        """The classes that fulfil the requirements."""
        of_nodes = 0
        if self._node_values:
            of_nodes = reduce(or_, (self._node_values.get(name, 0) for name in question.names), 0)
        # Requirements that cannot be read match no class.
        eligible = self.everything & ~of_nodes if question.parts else 0
        for part in question.parts:
            if not eligible:
                break
            eligible &= self._fulfilling(part)
        return self._with_nodes(question, eligible, of_nodes) if of_nodes else EligibleSets(eligible=eligible)

    def _with_nodes(self, question: RequirementQuestion, eligible: int, of_nodes: int) -> EligibleSets:
        """Add the classes whose nodes differ in the attributes used.

        Their parts cannot be evaluated independently.
        """
        undecided = 0
        for first, alike in self._column(question.names):
            if alike & of_nodes:
                found = evaluator.decide_at_queue(
                    question.whole, first.values, self.declarations, first.nodes
                )
                eligible |= alike if found.eligible else 0
                undecided |= alike if found.residue is not None else 0
        return EligibleSets(eligible=eligible, undecided=undecided)

    def _fulfilling(self, part: RequirementPart) -> int:
        known = self._results.find(part.key)
        if known is None:
            column = self._column(part.names)
            found = reduce(or_, (alike for first, alike in column if part.holds(first.values)), 0)
            known = self._results.store(part.key, (part, found))
        return known[1]

    def _reuse_results(self, before: "QueueClassIndex") -> None:
        new = [(slot, each) for slot, each in self.classes.items() if before.slots.get(each.digest) != slot]
        same = self.everything & ~mask_from([slot for slot, _ in new])
        for key, (part, found) in before._results.items():  # noqa: SLF001  # its own class
            holding = mask_from([slot for slot, each in new if part.holds(each.values)])
            self._results.store(key, (part, found & same | holding))
        self._questions = before._questions  # noqa: SLF001

    def _entry(self, entry: Record) -> RequirementPart:
        declarations = self.declarations
        return RequirementPart(
            key=("record", repr(entry.values)),
            names=tuple(map(fold, evaluator.parameters(entry, declarations))),
            holds=lambda values: evaluator.eligible(entry, values, declarations),
        )

    @staticmethod
    def _operands(operands: Operands) -> RequirementPart:
        return RequirementPart(
            key=("expression", operands.key),
            names=tuple(map(fold, operands.names)),
            holds=lambda values: next(operands.failing(values), None) is None,
        )

    def _column(self, names: Iterable[str]) -> list[tuple[QueueClass, int]]:
        """Map combinations of values of these names to the first class with them, and to the mask of all."""
        key = tuple(sorted(self.present.intersection(names)))
        if key not in self._columns:
            alike: dict[Hashable, list[int]] = {}
            for slot, each in self.classes.items():
                alike.setdefault(tuple(self._value_key(each, name) for name in key), []).append(slot)
            self._columns[key] = [(self.classes[slots[0]], mask_from(slots)) for slots in alike.values()]
        return self._columns[key]

    def _value_key(self, each: QueueClass, name: str) -> Hashable:
        """The value of a name in a class, or the options of its nodes if they differ."""
        if each.nodes and name in each.nodes:
            options = each.nodes.options(name)
            return "nodes", None if options is None else tuple(map(exact, options))
        values = (each.values.get(spelled) for spelled in self._spellings.get(name, ()))
        return exact(next((value for value in values if value is not None), None))

    @cached_property
    def _spellings(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in sorted(set[str]().union(*(each.values for each in self.classes.values()))):
            found.setdefault(fold(name), []).append(name)
        return found

    @cached_property
    def _node_values(self) -> Mapping[str, int]:
        found: dict[str, list[int]] = {}
        for slot, each in self.classes.items():
            for name in each.nodes.names:
                found.setdefault(fold(name), []).append(slot)
        return {name: mask_from(slots) for name, slots in found.items()}


def number_classes(taken: Mapping[str, int], digests: Iterable[str]) -> dict[str, int]:
    """Keep the slots of classes and assign the lowest free ones to new classes, in order of digest."""
    used = set(taken.values())
    free = (slot for slot in count() if slot not in used)
    return {**taken, **dict(zip(sorted(set(digests) - taken.keys()), free))}  # noqa: B905  (free is endless)


def _assign_slots(slots: Mapping[str, int], digests: Iterable[str]) -> dict[str, int]:
    return {digest: slots[digest] for digest in digests if digest in slots}


@derived
def index_for_vo(config: Configuration, vo: str) -> QueueClassIndex:
    """The queue classes that a VO may use now, cached with the configuration."""
    return QueueClassIndex(queue_classes(config, vo), options_for(config, vo).job_description.declarations)


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibleClass:
    """Queues that may match a job."""

    queue_class: QueueClass
    undecided: bool  #: depends on the node

    @property
    def queues(self) -> tuple[QueueAddress, ...]:
        """The queues of the class."""
        return self.queue_class.queues


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibleClasses(Collection[EligibleClass]):
    """The queue classes that requirements match, created on iteration because there may be thousands."""

    index: QueueClassIndex
    sets: EligibleSets

    def __len__(self) -> int:
        return self.sets.eligible.bit_count()

    def __iter__(self) -> Iterator[EligibleClass]:
        for slot in list_positions(self.sets.eligible):
            yield EligibleClass(
                queue_class=self.index.classes[slot], undecided=bool(self.sets.undecided >> slot & 1)
            )

    def __contains__(self, each: object) -> bool:
        return any(each == other for other in self)


def eligible_classes(config: Configuration, vo: str, requirements: Requirements) -> EligibleClasses:
    """The queue classes that the VO may use now where some node may fulfil the requirements."""
    index = index_for_vo(config, vo)
    return EligibleClasses(index=index, sets=index.resolve(index.question(requirements)))


#: A record of required values, or the text of an expression.
Selection = Mapping[str, object] | str
#: Site → CE → queue → its effective parameters; above queues a level less for each.
NodeTree = dict[str, Any]
#: Types of nodes, with the number of levels of the tree from the site down to them.
NODE_TYPES: Final = {"Site": 1, "CE": 2, "Queue": 3}


def eligible_queues(config: Configuration, vo: str, requirements: Requirements) -> frozenset[QueueAddress]:
    """The queues that the VO may use now where some node may fulfil the requirements."""
    return frozenset(queue for each in eligible_classes(config, vo, requirements) for queue in each.queues)


def get_eligible_nodes(
    config: Configuration,
    *,
    vo: str,
    node: str = "Queue",
    ce: Selection | None = None,
    queue: Selection | None = None,
    sites: Collection[str] | None = None,
) -> NodeTree:
    """Select nodes that a VO may use by effective parameters of queues and of their CEs; both must match.

    A selection is a record of required values, or an expression. A `Site` or `CE` is selected if one of its
    queues is, and has its own effective parameters. `sites` restricts the selection to some sites.

    Raises InvalidInput for values that cannot be compared, and for an unknown type of node.
    """
    if node not in NODE_TYPES:
        message = f"{node!r:.80} is not a type of node, allowed are {', '.join(NODE_TYPES)}"
        raise InvalidRequest(
            [Problem(path="node", message=message, suggestion=did_you_mean(node, list(NODE_TYPES)))]
        )
    declarations = options_for(config, vo).job_description.declarations
    of_ce = _parse_selection(ce, declarations, "ce")
    of_queue = _parse_selection(queue, declarations, "queue")
    queues = frozenset(config.addresses) if of_queue is None else eligible_queues(config, vo, of_queue)
    tree: NodeTree = {}
    for address in sorted(queues):
        if sites is not None and address.site not in sites:
            continue
        if config.usable(address, vo) and _ce_fits(config, address, vo, of_ce, declarations):
            *above, name = (address.site, address.ce, address.queue)[: NODE_TYPES[node]]
            here = tree
            for each in above:
                here = here.setdefault(each, {})
            if name not in here:
                here[name] = _node_values(config, address, vo, NODE_TYPES[node])
    return tree


def _parse_selection(given: Selection | None, declarations: Declarations, path: str) -> Requirements | None:
    if not given:
        return None
    if isinstance(given, str):
        return parse_expression(given, path)
    return parse_record(given, declarations, path)


def _node_values(config: Configuration, queue: QueueAddress, vo: str, depth: int) -> dict[str, Value]:
    """The effective parameters of a queue, or of the CE or site above it."""
    if depth == NODE_TYPES["Queue"]:
        return dict(config.values(queue, vo))
    parameters = inheritance.effective_parameters(config.levels[queue][:depth], fold(vo))
    return dict(inheritance.parameter_values(parameters))


def _ce_fits(
    config: Configuration,
    address: QueueAddress,
    vo: str,
    selection: Requirements | None,
    declarations: Declarations,
) -> bool:
    if selection is None:
        return True
    parameters = inheritance.effective_parameters(config.levels[address][:2], fold(vo))
    nodes = inheritance.list_attributes(parameters.values())
    alike = nodes.without_these(inheritance.parameter_values(parameters))
    return evaluator.eligible(selection, glue.build_ad(alike), declarations, nodes)
