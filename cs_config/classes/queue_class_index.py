"""Bitmap index over the queue classes of a VO, and the classes that requirements match.

There is one index for each VO and version of the configuration: it is the cache of what pools match.

Source of the selection of nodes: RFC #7's helper for eligible nodes.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from cs_config.cache import Cache, derived
from cs_config.classes.queue_classes import QueueClass, queue_classes
from cs_config.classes.queue_columns import EligibleSets, QueueColumns
from cs_config.options.operations import options_for
from cs_config.tree import cpu_time, glue, inheritance
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from requirements import evaluator, kept
from requirements.bitset import list_positions
from requirements.canonical import Requirements
from requirements.classad.expression import parse_expression
from requirements.errors import InvalidRequest, Problem, did_you_mean
from requirements.record import Declarations, Record, compared_parameter, mismatch, parse_record
from requirements.values import Value, fold

#: Cached results of parts, and of pools: one takes up to two kilobytes.
_CACHE_SIZE: Final = 50_000
_CPU_TIME: Final = "cputime"


class QueueClassIndex(QueueColumns[QueueClass]):
    """A compact index over the queue classes of a VO, with the classes of each pool; thread-safe."""

    def __init__(self, classes: Sequence[QueueClass], declarations: Declarations, *, vo: str) -> None:
        super().__init__(
            dict(enumerate(classes)), declarations, stated=lambda each: each.values, cached=_CACHE_SIZE
        )
        self._vo = vo
        self._pools: Cache[str, EligibleSets] = Cache(_CACHE_SIZE)
        self._being_resolved: dict[str, Lock] = {}

    @property
    def classes(self) -> Mapping[int, QueueClass]:
        """The classes by position, their bit in every set."""
        return self.items

    def find_pool(self, pool_id: str) -> EligibleSets | None:
        """The cached queue classes of a pool."""
        return self._pools.find(pool_id)

    def resolve_pool(self, pool_id: str, requirements: Requirements) -> EligibleSets:
        """The queue classes of a pool, cached under its id, which is the identity of its requirements.

        Never computed twice at the same time for one id; other pools do not wait.
        """
        if (known := self.find_pool(pool_id)) is not None:
            return known
        try:
            with kept.count_for(self._vo), self._being_resolved.setdefault(pool_id, Lock()):
                return self._pools.get(pool_id, lambda: self.resolve(self.question(requirements)))
        finally:
            self._being_resolved.pop(pool_id, None)


@derived
def index_for_vo(config: Configuration, vo: str) -> QueueClassIndex:
    """The queue classes that a VO may use now, cached with the configuration.

    By digest, as slots are given to new classes: then most neighbours have neighbouring slots.
    """
    classes = sorted(queue_classes(config, vo), key=lambda each: each.digest)
    return QueueClassIndex(classes, options_for(config, vo).job_description.declarations, vo=vo)


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


def classes_of_pool(
    config: Configuration, vo: str, pool_id: str, requirements: Requirements
) -> EligibleClasses:
    """The `eligible_classes` of a pool, cached with the configuration."""
    index = index_for_vo(config, vo)
    return EligibleClasses(index=index, sets=index.resolve_pool(pool_id, requirements))


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

    A selection is a record of required values, or an expression. In a record for queues `CPUTime` is
    compared with what pilots offer there. A `Site` or `CE` is selected if one of its queues is, and has its
    own effective parameters. `sites` restricts the selection to some sites.

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
    queues = frozenset(config.addresses) if of_queue is None else _select_queues(config, vo, of_queue)
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


def _select_queues(config: Configuration, vo: str, asked: Requirements) -> frozenset[QueueAddress]:
    """The queues that fulfil the requirements; a record's CPU time is compared with what pilots offer there.

    So does the matching with the CPU time of a job. A queue that limits no time has no value to compare.
    """
    found = eligible_queues(config, vo, asked)
    if not isinstance(asked, Record):
        return found
    declarations = options_for(config, vo).job_description.declarations
    wanted = {
        name: value
        for name, value in asked.values
        if fold(compared_parameter(name, declarations.get(name))) == _CPU_TIME
    }
    if not wanted or any(
        mismatch(value, cpu_time.DEFAULT, declarations.get(name)) for name, value in wanted.items()
    ):
        return found
    others = Record(values=tuple(each for each in asked.values if each[0] not in wanted))
    fitting: Iterable[QueueClass] = (
        (each.queue_class for each in eligible_classes(config, vo, others))
        if others.values
        else queue_classes(config, vo)
    )
    return found.union(*(each.queues for each in fitting if _limits_no_time(each)))


def _limits_no_time(queues: QueueClass) -> bool:
    known = {fold(name): value for name, value in queues.values.items()}
    return _CPU_TIME not in queues.nodes and cpu_time.compute(known) is None


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
