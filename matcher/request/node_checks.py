"""Checks of requirements at the nodes of a queue, on the queue's values and a pilot's facts together.

Pilots on equal nodes send equal facts, so results are cached until the configuration changes. New facts are
checked as far as the VO has processor time for it: a check takes milliseconds at most, but a VO may have
thousands of pools, and a pilot state other facts each time.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from sqlalchemy import Connection

from cs_config.cache import Cache
from cs_config.classes.queue_classes import find_class
from cs_config.options.operations import options_for
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from requirements import evaluator, kept
from requirements.canonical import Requirements
from requirements.nodes import node_attributes, node_facts
from requirements.nodes.node_attributes import NodeAttributes
from requirements.nodes.node_facts import Facts
from requirements.record import Declarations
from requirements.values import Value, fold
from taskqueue.pools import mapping

log = logging.getLogger(__name__)

#: Cached results.
_CACHED = 100_000
#: VOs whose time is counted.
_VOS = 10_000
#: Seconds of processor time that the checks of a VO may take at once, and of each second in the long run.
BURST: Final = 0.25
SHARE: Final = 0.2
#: Seconds between two lines in the log about one VO.
_TELL_EVERY: Final = 60
_NO_TIME: Final = "checks of NodeFacts for %s take more than their share of processor time: %d pools wait"


class NodeStanding(IntEnum):
    """Whether a node fulfils requirements, as far as its attributes are stated."""

    REFUSED = 0
    OPEN = 1  #: unstated attributes decide
    FULFILLED = 2  #: whatever the unstated attributes are


@dataclass(slots=True)
class _Allowance:
    """Processor time that a VO may still use for checks."""

    left: float = BURST
    at: float = -math.inf  #: of the last refill, monotonic clock
    told_at: float = -math.inf  #: of the last line in the log

    def refill(self, now: float) -> None:
        """Add what has been gained since."""
        self.left = min(BURST, self.left + SHARE * (now - self.at))
        self.at = now


class NodeChecks:
    """Cached checks of requirements at nodes, for one version of the configuration.

    One thread at a time may use it.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        """Take a clock that goes on, and one of the processor time of a thread."""
        self._clock, self._used = clock, used
        self._results: Cache[tuple[str, str, bytes], NodeStanding] = Cache(_CACHED)
        self._names: Cache[str, frozenset[str]] = Cache(_CACHED)
        self._allowances: Cache[str, _Allowance] = Cache(_VOS)

    def find(
        self,
        conn: Connection,
        config: Configuration,
        address: QueueAddress,
        pool_ids: Mapping[str, Collection[str]],
        facts: Facts,
    ) -> Mapping[str, NodeStanding]:
        """How each pool (given by VO) stands at a node of the queue with these facts.

        Left out are pools that were never checked with such facts and that their VO has no time for now.
        """
        found: dict[str, NodeStanding] = {}
        for vo, ids in pool_ids.items():
            if (here := find_class(config, vo, address)) is None:
                found |= dict.fromkeys(ids, NodeStanding.REFUSED)
                continue
            declared = node_facts.keep_declared(facts, here.nodes)
            key = here.digest, node_facts.cache_key(declared)
            known = {each: self._results.find((each, *key), config.version) for each in ids}
            found |= {each: standing for each, standing in known.items() if standing is not None}
            with kept.count_for(vo):
                requirements = mapping.read_requirements(conn, known.keys() - found.keys())
            found |= dict.fromkeys(known.keys() - found.keys() - requirements.keys(), NodeStanding.REFUSED)
            for each in self._take(vo, requirements):
                declarations = options_for(config, vo).job_description.declarations
                with kept.count_for(vo):
                    standing = decide(requirements[each], here.values, here.nodes, declared, declarations)
                found[each] = self._results.store((each, *key), standing, config.version)
        return found

    def _take(self, vo: str, pool_ids: Collection[str]) -> Iterator[str]:
        """The pools that a VO has time for; it pays for each before the next one."""
        if not pool_ids:
            return
        allowance = self._allowances.get(vo, _Allowance)
        allowance.refill(self._clock())
        for number, each in enumerate(pool_ids):
            if allowance.left <= 0:
                if self._clock() - allowance.told_at >= _TELL_EVERY:
                    allowance.told_at = self._clock()
                    log.warning(_NO_TIME, vo, len(pool_ids) - number)
                return
            before = self._used()
            yield each
            allowance.left -= self._used() - before

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
