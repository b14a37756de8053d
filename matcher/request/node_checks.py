"""Checks of requirements at the nodes of a queue, on the queue's values and a pilot's facts together.

Pilots on equal nodes send equal facts, so results are cached until the configuration changes.
"""

from collections.abc import Collection, Hashable, Mapping
from enum import IntEnum

from sqlalchemy import Connection

from cs_config.cache import Cache
from cs_config.classes.queue_classes import find_class
from cs_config.options.operations import options_for
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from requirements import evaluator
from requirements.canonical import Requirements
from requirements.nodes import node_attributes, node_facts
from requirements.nodes.node_attributes import NodeAttributes
from requirements.nodes.node_facts import Facts
from requirements.record import Declarations
from requirements.values import Value, fold
from taskqueue.pools import mapping

#: Cached results.
_CACHED = 100_000


class NodeStanding(IntEnum):
    """Whether a node fulfils requirements, as far as its attributes are stated."""

    REFUSED = 0
    OPEN = 1  #: unstated attributes decide
    FULFILLED = 2  #: whatever the unstated attributes are


class NodeChecks:
    """Cached checks of requirements at nodes, for one version of the configuration."""

    def __init__(self) -> None:
        self._results: Cache[tuple[str, str, Hashable], NodeStanding] = Cache(_CACHED)
        self._names: Cache[str, frozenset[str]] = Cache(_CACHED)

    def find(
        self,
        conn: Connection,
        config: Configuration,
        address: QueueAddress,
        pool_ids: Mapping[str, Collection[str]],
        facts: Facts,
        *,
        least: NodeStanding = NodeStanding.FULFILLED,
    ) -> frozenset[str]:
        """The pools (given by VO) whose requirements stand so at a node of the queue with these facts."""
        found: set[str] = set()
        for vo, ids in pool_ids.items():
            if (here := find_class(config, vo, address)) is not None:
                declarations = options_for(config, vo).job_description.declarations
                declared = node_facts.keep_declared(facts, here.nodes)
                key = here.digest, node_facts.cache_key(declared)
                known = {each: self._results.find((each, *key), config.version) for each in ids}
                new = [each for each in known if known[each] is None]
                for each, requirements in mapping.read_requirements(conn, new).items():
                    standing = decide(requirements, here.values, here.nodes, declared, declarations)
                    known[each] = self._results.store((each, *key), standing, config.version)
                found.update(each for each, it in known.items() if it is not None and it >= least)
        return frozenset(found)

    def list_advertised(
        self,
        conn: Connection,
        config: Configuration,
        address: QueueAddress,
        pool_ids: Mapping[str, Collection[str]],
    ) -> frozenset[str]:
        """The advertised attributes of the queue that these pools (given by VO) require; folded names."""
        found: set[str] = set()
        for vo, ids in pool_ids.items():
            if not (advertised := config.node_attributes(address, vo).advertised):
                continue
            declarations = options_for(config, vo).job_description.declarations
            known = {each: self._names.find(each, config.version) for each in ids}
            new = [each for each in known if known[each] is None]
            for each, requirements in mapping.read_requirements(conn, new).items():
                names = frozenset(map(fold, evaluator.parameters(requirements, declarations)))
                known[each] = self._names.store(each, names, config.version)
            found.update(*(advertised & names for names in known.values() if names))
        return frozenset(found)


def decide(
    requirements: Requirements,
    values: Mapping[str, Value],
    nodes: NodeAttributes,
    facts: Facts,
    declarations: Declarations,
) -> NodeStanding:
    """Whether a node with these facts, at a queue with these values, fulfils requirements."""
    has = {name: fact for name, fact in facts.items() if fact is not None}
    resource = node_attributes.merge_facts(values, nodes, has)
    open_ = node_facts.list_unstated(nodes, facts)
    if not open_:
        fulfilled = evaluator.eligible(requirements, resource, declarations)
        return NodeStanding.FULFILLED if fulfilled else NodeStanding.REFUSED
    standing = evaluator.decide_at_queue(requirements, resource, declarations, open_)
    if standing.eligible:
        return NodeStanding.OPEN if standing.undecided else NodeStanding.FULFILLED
    return NodeStanding.REFUSED
