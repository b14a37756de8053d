"""Hardware that pilots had when they first asked for jobs, by site; amounts are rounded up."""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection, bindparam, delete, func, select

from cs_config.tree.address import QueueAddress
from requirements.diracx.specification import MEASURED_TAGS
from requirements.kept import keep
from requirements.quantities import Quantities
from requirements.resource import Resource
from taskqueue.db import sql
from taskqueue.schema.tables import pilots
from taskqueue.schema.tables import seen_hardware as table

#: Shapes that are kept of one site; further ones replace those that were seen longest ago.
MOST_SHAPES: Final = 200
#: Characters of all texts of a shape; processors have some hundred features of some characters.
_MOST_TEXT: Final = 10_000
#: CPU seconds that are enough for any job.
_ANY_TIME: Final = 2.0**53

#: After which agents remove what was not seen again.
KEPT: Final = timedelta(days=90)

STORE = sql.insert_or_raise(table, "last_seen_at")
OF_SITES = (
    select(table)
    .where(sql.is_listed(table.c.site), table.c.last_seen_at >= bindparam("since"))
    .order_by(table.c.site, table.c.last_seen_at.desc(), table.c.digest)
)
SHAPES = (
    select(table.c.digest, table.c.shape)
    .where(sql.is_listed(table.c.site), table.c.last_seen_at >= bindparam("since"))
    .distinct()
    .limit(bindparam("most"))
)
#: Read by the index of sites and times: some pilots of the last hours, not all.
BY_QUEUE = (
    select(
        *(pilots.c[each] for each in ("vo", "site", "ce", "queue")),
        table.c.shape,
        func.count().label("pilots"),
        func.min(pilots.c.asked_at, type_=pilots.c.asked_at.type).label("first"),
        func.max(pilots.c.asked_at, type_=pilots.c.asked_at.type).label("last"),
    )
    .outerjoin(table, (table.c.site == pilots.c.site) & (table.c.digest == pilots.c.shape))
    .where(
        sql.is_listed(pilots.c.site), pilots.c.asked_at >= bindparam("since", type_=pilots.c.asked_at.type)
    )
    .group_by(pilots.c.vo, pilots.c.site, pilots.c.ce, pilots.c.queue, table.c.shape)
)
_place = func.row_number().over(
    partition_by=table.c.site, order_by=(table.c.last_seen_at.desc(), table.c.digest)
)
_ranked = (
    select(table.c.site, table.c.digest, _place.label("place")).where(sql.is_listed(table.c.site)).subquery()
)
EXCESS = select(_ranked.c.site, _ranked.c.digest).where(_ranked.c.place > MOST_SHAPES)
REMOVE = delete(table).where(table.c.site == bindparam("the_site"), table.c.digest == bindparam("the_digest"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareShape(Quantities):
    """The hardware of a slot; named like the fields of `Resource`. None: not stated."""

    processors: int | None = None
    max_ram: float | None = None  #: MB
    scratch_mb: float | None = None
    system: str | None = None
    architecture: str | None = None
    cpu_features: frozenset[str] | None = None
    gpu_vendor: str | None = None
    gpu_architecture: int | None = None  #: the number of `sm_89`
    gpu_memory_mb: float | None = None  #: of each
    gpu_runtime: int | None = None
    #: Tags of the kinds that pilots measure (`MEASURED_TAGS`), as they are written; None: any, or not kept.
    node_tags: frozenset[str] | None = None

    @classmethod
    def from_resource(cls, resource: Resource) -> "HardwareShape":
        """The hardware that a pilot states."""
        return _find_shape(_read_stated(resource), resource.literal_tags)

    @property
    def is_short(self) -> bool:
        """Whether its texts are as short as those of real hardware: of other ones nothing is stored."""
        return self.text_length <= _MOST_TEXT

    @property
    def text_length(self) -> int:
        """Characters of all its texts."""
        texts = (self.system, self.architecture, self.gpu_vendor)
        texts += (*(self.cpu_features or ()), *(self.node_tags or ()))
        return sum(len(each or "") for each in texts)

    @property
    def digest(self) -> str:
        """By which a pilot names it."""
        return _digest(_to_text(self))

    def to_resource(self) -> Resource:
        """A resource with this hardware that accepts all jobs for whose hardware it is enough."""
        stated = {name: getattr(self, name) for name in _STATED}
        tags: dict[str, Any] = {"tags": None, "literal_tags": None, "open_tags": ("",)}
        return Resource(**stated, cpu_time=_ANY_TIME, whole_node=True, **tags)


_NAMES: Final = tuple(each.name for each in fields(HardwareShape))
#: Those that a resource has under the same name.
_STATED: Final = tuple(name for name in _NAMES if name != "node_tags")
_read_stated: Final[Callable[[Resource], tuple[Any, ...]]] = attrgetter(*_STATED)
_SETS: Final = frozenset({"cpu_features", "node_tags"})
#: Digits of amounts that differ from request to request. What is free on a disk differs most: by two digits
#: of it alone, the nodes of one kind would use up the shapes that are kept of a site.
_DIGITS: Final = {"max_ram": 2, "scratch_mb": 1, "gpu_memory_mb": 2}


def _measure(shape: HardwareShape, _: object, tags: frozenset[str] | None) -> int:
    return 10 * shape.text_length + sum(100 + len(each) for each in tags or ())


@keep(16, _measure)
def _find_shape(stated: tuple[Any, ...], tags: frozenset[str] | None) -> HardwareShape:
    """The shape of what is stated, in the order of `_STATED`. Kept: a gateway's nodes ask again and again."""
    known = dict(zip(_STATED, stated, strict=True))
    amounts = {name: _round_up(known[name], digits) for name, digits in _DIGITS.items()}
    measured = None if tags is None else frozenset(each for each in tags if each.startswith(MEASURED_TAGS))
    return HardwareShape(**known | amounts, node_tags=measured)


def _round_up(amount: float | None, digits: int) -> float | None:
    if not amount or amount < 10**digits:
        return amount
    unit = 10 ** (int(math.log10(amount)) + 1 - digits)
    return float(math.ceil(amount / unit) * unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenHardware:
    """A shape that pilots of a site had."""

    site: str
    shape: HardwareShape
    first_seen_at: datetime
    last_seen_at: datetime  #: to the day


def store_seen(conn: Connection, seen: Iterable[tuple[str, HardwareShape]], *, now: datetime) -> None:
    """Store that shapes were seen at sites, in the order of their keys; `remove_excess` follows."""
    found = [(site, text) for site, shape in seen for text in [_to_text(shape)]]
    rows = [
        {"site": site, "digest": digest, "shape": text, "first_seen_at": now, "last_seen_at": now}
        for site, digest, text in sorted((site, _digest(text), text) for site, text in found)
    ]
    if rows:
        conn.execute(STORE, rows)


def remove_excess(conn: Connection, sites: Collection[str]) -> None:
    """Remove all but the latest shapes of sites.

    In a transaction of its own and in the order of keys, or two processes might wait for each other's rows.
    """
    excess = sorted((row.site, row.digest) for row in sql.read_batches(conn, EXCESS, sites))
    if excess:
        conn.execute(REMOVE, [{"the_site": site, "the_digest": digest} for site, digest in excess])


def read_seen(conn: Connection, sites: Collection[str], *, since: datetime) -> Sequence[SeenHardware]:
    """The shapes that were seen at some sites, by site, the latest first."""
    rows = sql.read_batches(conn, OF_SITES, sites, since=since)
    return [
        SeenHardware(
            site=row.site,
            shape=read_shape(row.shape),
            first_seen_at=row.first_seen_at,
            last_seen_at=row.last_seen_at,
        )
        for row in rows
    ]


def read_shapes(
    conn: Connection, sites: Collection[str], *, since: datetime, most: int
) -> Collection[HardwareShape]:
    """The different shapes that were seen at some sites; none if there are more than `most`."""
    rows = sql.read_batches(conn, SHAPES, sites, since=since, most=most + 1)
    texts = {row.digest: row.shape for row in rows}
    return [read_shape(each) for each in texts.values()] if len(texts) <= most else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeAtQueue:
    """A shape that pilots of a queue had."""

    shape: HardwareShape | None  #: None: it was not kept
    pilots: int
    first: datetime  #: when the first of them asked for jobs, to the minute
    last: datetime


def read_by_queue(
    conn: Connection, sites: Collection[str], *, since: datetime
) -> Mapping[tuple[str, QueueAddress], Sequence[ShapeAtQueue]]:
    """The hardware of the pilots that first asked for jobs since then, by VO and queue."""
    found: defaultdict[tuple[str, QueueAddress], list[ShapeAtQueue]] = defaultdict(list)
    for row in sql.read_batches(conn, BY_QUEUE, sites, since=since):
        shape = None if row.shape is None else read_shape(row.shape)
        found[row.vo, QueueAddress(site=row.site, ce=row.ce, queue=row.queue)].append(
            ShapeAtQueue(shape=shape, pilots=row.pilots, first=row.first, last=row.last)
        )
    return found


def _to_text(shape: HardwareShape) -> str:
    stated = {name: value for name, value in asdict(shape).items() if value is not None}
    return json.dumps(stated, sort_keys=True, default=sorted)


def read_shape(text: str) -> HardwareShape:
    """Read a stored shape."""
    stated: Mapping[str, Any] = json.loads(text)
    known = {name: value for name, value in stated.items() if name in _NAMES}
    for name in known.keys() & _SETS:
        known[name] = frozenset(known[name])
    return HardwareShape(**known)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
