"""Whether a node has what was left to it: whole requirements, of its queue and its own facts together.

Pilots of like nodes say the same, so an answer is remembered until the configuration changes.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping

from sqlalchemy import Connection

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from cs_config.operations import operations
from cs_config.queue_classes import QueueClass, class_of
from matcher import node_facts, stored_requirements
from matcher.node_facts import Facts
from requirements import evaluator, nodes
from requirements.canonical import Requirements
from requirements.declarations import Declarations
from taskqueue import pools

#: Answers that are remembered; beyond that we start anew.
_REMEMBERED = 100_000


class NodeChecks:
    """The answers for one version of the configuration."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._known: dict[tuple[str, str, Hashable], bool] = {}

    def fulfilled(
        self,
        conn: Connection,
        config: Configuration,
        address: QueueAddress,
        pool_ids: Mapping[str, Collection[str]],
        facts: Facts,
    ) -> frozenset[str]:
        """Those of the pools (by VO) whose requirements are true at a node of the queue with these facts."""
        if self._version != config.version or len(self._known) > _REMEMBERED:
            self._version, self._known = config.version, {}
        return frozenset(
            pool_id
            for vo, ids in pool_ids.items()
            if (here := class_of(config, vo, address)) is not None
            for pool_id in self._of_class(conn, here, ids, facts, _declarations(config, vo))
        )

    def _of_class(
        self,
        conn: Connection,
        here: QueueClass,
        pool_ids: Collection[str],
        facts: Facts,
        declarations: Declarations,
    ) -> Iterator[str]:
        said = node_facts.that_count(facts, here.nodes)
        key = node_facts.key(said)
        new = [pool_id for pool_id in pool_ids if (pool_id, here.digest, key) not in self._known]
        for pool_id, text in pools.originals(conn, new).items():
            self._known[pool_id, here.digest, key] = _is_true(
                stored_requirements.read(text), here, said, declarations
            )
        yield from (pool_id for pool_id in pool_ids if self._known.get((pool_id, here.digest, key)))


def _is_true(requirements: Requirements, here: QueueClass, facts: Facts, declarations: Declarations) -> bool:
    """Whatever else the node may have: what it does not state stays unknown."""
    has = {name: fact for name, fact in facts.items() if fact is not None}
    resource = nodes.together(here.values, here.nodes, has)
    open_ = node_facts.not_stated(here.nodes, facts)
    if not open_:
        return evaluator.eligible(requirements, resource, declarations)
    standing = evaluator.standing(requirements, resource, declarations, open_)
    return standing.eligible and standing.residue is None


def _declarations(config: Configuration, vo: str) -> Declarations:
    return operations(config, vo).job_description.declarations
