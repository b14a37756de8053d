"""Groups of pilots of a queue by submit flags: pilots with equal flags serve the same pools.

Flags request a suitable node from the batch system. Pilots with different flags are never mixed, because a
node may lack what it was not requested for.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from cs_config.cache import Cache
from cs_config.classes.queue_classes import QueueClass, find_class
from cs_config.options.operations import options_for
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from requirements import evaluator
from requirements.nodes.flags import NodeFlags, compile_flags
from taskqueue.pools import mapping
from taskqueue.pools.mapping import MappedPool

Flags = tuple[str, ...]
#: Cached flags.
_CACHED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotGroup:
    """Pilots that are submitted to one queue with the same flags."""

    flags: Flags  #: arguments of the submit command; empty: any node
    pools: tuple[str, ...]  #: sorted


class PilotGroups:
    """Flags of pools, cached for one version of the configuration."""

    def __init__(self) -> None:
        #: By queue class and pool.
        self._known: Cache[tuple[str, str], NodeFlags] = Cache(_CACHED)

    def find_groups(
        self, conn: Connection, config: Configuration, mapped: Mapping[QueueAddress, Collection[MappedPool]]
    ) -> Mapping[QueueAddress, tuple[PilotGroup, ...]]:
        """The groups of each queue's pools, those without flags first."""
        # Computed once per queue class and pool.
        undecided = {
            (here.digest, each.pool_id): (here, each.vo)
            for address, of_queue in mapped.items()
            for each in of_queue
            if each.undecided and (here := find_class(config, each.vo, address)) is not None
        }
        known = self._find(conn, config, undecided)
        return {address: _group(config, address, of_queue, known) for address, of_queue in mapped.items()}

    def find_sufficient(
        self,
        conn: Connection,
        config: Configuration,
        address: QueueAddress,
        pool_ids: Mapping[str, Collection[str]],
    ) -> Mapping[str, Flags]:
        """The pools (given by VO) whose flags say all that they leave to the nodes of a queue."""
        undecided = {
            (here.digest, each): (here, vo)
            for vo, ids in pool_ids.items()
            if (here := find_class(config, vo, address)) is not None
            for each in ids
        }
        known = self._find(conn, config, undecided)
        return {
            pool_id: found.arguments
            for (_, pool_id), found in known.items()
            if found is not None and found.sufficient
        }

    def _find(
        self,
        conn: Connection,
        config: Configuration,
        undecided: Mapping[tuple[str, str], tuple[QueueClass, str]],
    ) -> Mapping[tuple[str, str], NodeFlags | None]:
        """The flags of pools, by queue class and pool, from each class with the VO; None: no such pool."""
        known = {key: self._known.find(key, config.version) for key in undecided}
        requirements = mapping.read_requirements(
            conn, {pool_id for (_, pool_id), found in known.items() if found is None}
        )
        for key, (here, vo) in undecided.items():
            if known[key] is None and key[1] in requirements:
                declarations = options_for(config, vo).job_description.declarations
                decision = evaluator.decide_at_queue(
                    requirements[key[1]], here.values, declarations, here.nodes
                )
                found = compile_flags(decision, here.forwarding)
                known[key] = self._known.store(key, found, config.version)
        return known


def _group(
    config: Configuration,
    address: QueueAddress,
    mapped: Iterable[MappedPool],
    known: Mapping[tuple[str, str], NodeFlags | None],
) -> tuple[PilotGroup, ...]:
    groups: defaultdict[Flags, list[str]] = defaultdict(list)
    for each in mapped:
        here = find_class(config, each.vo, address) if each.undecided else None
        found = None if here is None else known.get((here.digest, each.pool_id))
        groups[found.arguments if found else ()].append(each.pool_id)
    return tuple(PilotGroup(flags=group, pools=tuple(sorted(groups[group]))) for group in sorted(groups))
