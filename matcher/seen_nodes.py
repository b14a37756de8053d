"""What the nodes of queues lack, as their pilots of the last hours had it.

A queue leaves much to its nodes: tags that pilots measure, kinds of processors and devices. A job that needs
some of it may run there as far as the queue states; where none of its last pilots had it, further ones would
be sent for nothing. So such a job wants no pilots from there until new ones had it, or for a while none came:
then it is tried again.

Each VO's pilots count apart: what those of another one state keeps no pilots from a queue, and sends none.
Where a site has words for what a class needs, its pilots are sent to certain nodes, of which those of other
classes show nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from sqlalchemy import Connection

from cs_config.cache import Cache
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.class_flags import ClassFlags
from matcher.conditions import BY_NAME, COLUMNS, Condition
from matcher.request.queue_offer import LEFT_TO_NODES
from requirements.column_index import SingleItem
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource
from taskqueue.pilots import hardware
from taskqueue.pilots.hardware import HardwareShape, ShapeAtQueue

#: So long a pilot shows what the nodes of its queue have. After it directors try the queue again: their usual
#: limit is ten pilots, as many as a queue gets in that time whose pilots all fail.
KEPT: Final = timedelta(hours=4)
#: Pilots that show something: of two, one may find another node than the bad one.
_LEAST: Final = 2
#: Conditions that only nodes decide; of their power, pilots may still measure more.
_CONDITIONS: Final = tuple(BY_NAME[name] for name in sorted(LEFT_TO_NODES - {"cpu_work"}))
#: Fields of a node that the conditions read.
_READ: Final = tuple({name: None for each in _CONDITIONS for name in (*each.reads, each.capacity) if name})
#: Whether a class needs anything of nodes, by its digest.
_needs: Cache[str, bool] = Cache(100_000)
_QueueOfVo: TypeAlias = tuple[str, QueueAddress]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLack:
    """What the pilots of its VO at a queue lacked lately that a class needs."""

    lacking: tuple[str, ...]  #: of the one that lacked least, as people see it
    pilots: int
    since: datetime  #: when the first of them asked for jobs
    until: datetime  #: when the queue is tried again, if no pilot comes from there before


class SeenNodes:
    """The nodes of the queues of some sites, read once."""

    def __init__(
        self, conn: Connection, config: Configuration, sites: Collection[str], now: datetime
    ) -> None:
        self._flags = ClassFlags(config)
        since = now - KEPT
        found = hardware.read_by_queue(conn, sites, since=since) if sites else {}
        self._shapes: Mapping[_QueueOfVo, Sequence[ShapeAtQueue]] = {
            queue: seen for queue, seen in found.items() if sum(each.pilots for each in seen) >= _LEAST
        }
        self._nodes: dict[tuple[_QueueOfVo, Resource], frozenset[Resource]] = {}
        self._fits: dict[tuple[str, frozenset[Resource]], bool] = {}

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def may_run(self, address: QueueAddress, offered: Resource, asked: RequirementClass) -> bool:
        """Whether a pilot of its VO had there what a class needs, or too little is known of its nodes.

        `offered` is the offer of the queue, of which its nodes decide what is left open.
        """
        queue = asked.vo, address
        if queue not in self._shapes or not _needs.get(asked.digest, lambda: _has_needs(asked)):
            return True
        key = queue, _read_fields(offered)
        if key not in self._nodes:
            self._nodes[key] = self._list_nodes(*key)
        nodes = self._nodes[key]
        known = asked.digest, nodes
        if known not in self._fits:
            self._fits[known] = any(not _list_refusing(asked, each) for each in nodes)
        return self._fits[known] or bool(self._flags.find(address, asked))

    def find_lack(self, address: QueueAddress, offered: Resource, asked: RequirementClass) -> NodeLack | None:
        """What all of the pilots lacked; None: the class may run there."""
        if self.may_run(address, offered, asked):
            return None
        queue = asked.vo, address
        nodes = self._nodes[queue, _read_fields(offered)]
        nearest = min((_list_refusing(asked, each) for each in nodes), key=len)
        seen = self._shapes[queue]
        return NodeLack(
            lacking=tuple(each.describe(asked) for each in nearest),
            pilots=sum(each.pilots for each in seen),
            since=min(each.first for each in seen),
            until=max(each.last for each in seen) + KEPT,
        )

    def _list_nodes(self, queue: _QueueOfVo, offered: Resource) -> frozenset[Resource]:
        return frozenset(_place(each.shape, offered) for each in self._shapes[queue])


def _has_needs(asked: RequirementClass) -> bool:
    return any(True for each in _CONDITIONS for demand in each.demands for _ in demand.list_values(asked))


def _read_fields(offered: Resource) -> Resource:
    """What of an offer the conditions read, so that queues with equal ones share what is computed."""
    return Resource(cpu_time=0, **{name: getattr(offered, name) for name in _READ})


def _place(shape: HardwareShape | None, offered: Resource) -> Resource:
    """The offer of a queue at a node; what is not known of the node is left open."""
    if shape is None:
        return offered
    measured = {name: getattr(shape, name) for name in _READ if hasattr(shape, name)}
    found = {name: value for name, value in measured.items() if getattr(offered, name) is None}
    tags = offered.literal_tags
    if shape.node_tags is None or tags is None:
        return replace(offered, **found)
    here = (each for each in shape.node_tags if each.startswith(offered.open_tags or ("\0",)))
    return replace(offered, **found, literal_tags=tags.union(here), open_tags=())


def _list_refusing(asked: RequirementClass, node: Resource) -> list[Condition]:
    """The conditions that a node does not fulfil."""
    single = SingleItem(asked, COLUMNS)
    return [each for each in _CONDITIONS if not each.select(single, node)]
