"""Groups of pilots of a queue by submit flags: pilots with equal flags serve the same pools.

Flags request a suitable node from the batch system. Pilots with different flags are never mixed, because a
node may lack what it was not requested for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from cs_config.classes.queue_classes import QueueClass, find_class
from cs_config.options.operations import options_for
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher import stored_requirements
from requirements import evaluator
from requirements.canonical import Requirements
from requirements.nodes.flags import flags
from requirements.record.declarations import Declarations
from taskqueue.pools import pools
from taskqueue.pools.listing import MappedPool

Flags = tuple[str, ...]
#: Cached flags; the cache is cleared when full.
_CACHED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotGroup:
    """Pilots that are submitted to one queue with the same flags."""

    flags: Flags  #: arguments of the submit command; empty: any node
    pools: tuple[str, ...]  #: sorted


class PilotGroups:
    """Flags of pools, cached for one version of the configuration."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._known: dict[tuple[str, str], Flags] = {}

    def find_groups(
        self,
        conn: Connection,
        config: Configuration,
        mapped: Mapping[QueueAddress, Iterable[MappedPool]],
    ) -> Mapping[QueueAddress, tuple[PilotGroup, ...]]:
        """The groups of each queue's pools, those without flags first."""
        if self._version != config.version or len(self._known) > _CACHED:
            self._version, self._known = config.version, {}
        found = {address: tuple(of_queue) for address, of_queue in mapped.items()}
        self._read(conn, config, found)
        return {
            address: _group_by_flags(self._flags(config, address, each)) for address, each in found.items()
        }

    def _read(
        self,
        conn: Connection,
        config: Configuration,
        mapped: Mapping[QueueAddress, Iterable[MappedPool]],
    ) -> None:
        """Compute missing flags, once per queue class and pool."""
        new = {
            (here.digest, each.pool_id): (here, each)
            for address, of_queue in mapped.items()
            for each in of_queue
            if each.undecided
            and (here := find_class(config, each.vo, address)) is not None
            and (here.digest, each.pool_id) not in self._known
        }
        texts = pools.read_originals(conn, {pool_id for _, pool_id in new})
        for key, (here, each) in new.items():
            if each.pool_id in texts:
                declarations = options_for(config, each.vo).job_description.declarations
                self._known[key] = _flags(
                    stored_requirements.parse_stored(texts[each.pool_id]), here, declarations
                )

    def _flags(
        self, config: Configuration, address: QueueAddress, mapped: Iterable[MappedPool]
    ) -> Iterable[tuple[Flags, str]]:
        for each in mapped:
            here = find_class(config, each.vo, address) if each.undecided else None
            yield () if here is None else self._known.get((here.digest, each.pool_id), ()), each.pool_id


def _flags(requirements: Requirements, here: QueueClass, declarations: Declarations) -> Flags:
    residue = evaluator.decide_at_queue(requirements, here.values, declarations, here.nodes).residue
    return flags(residue, here.nodes, declarations, here.forwarding)


def _group_by_flags(flagged: Iterable[tuple[Flags, str]]) -> tuple[PilotGroup, ...]:
    groups: dict[Flags, list[str]] = {}
    for group, pool_id in flagged:
        groups.setdefault(group, []).append(pool_id)
    return tuple(PilotGroup(flags=group, pools=tuple(sorted(groups[group]))) for group in sorted(groups))
