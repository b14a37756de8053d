"""Kinds of waiting jobs as an expression sees them: what it says of one, it says of all jobs of that kind."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Row

from matcher import job_ads
from requirements.values import Value
from taskqueue import batches, kinds
from taskqueue.kinds import Kind

#: Kinds that are looked at before a claim; beyond that it is left to the claim to look.
MOST: Final = 5000
#: Refused kinds that a claim is told to leave out.
MOST_REFUSED: Final = 500
#: Kinds that are remembered; beyond that we start anew.
_REMEMBERED: Final = 50_000
#: What tells jobs of one kind apart.
_OF_EACH: Final = frozenset({"jobid", "jobname", "priority"})
_OF_OWNER: Final = frozenset(job_ads.identity(vo="", owner="", owner_group=""))


def kind(row: Row[Any]) -> Kind:
    """The kind that a row of `taskqueue.kinds` is of."""
    return row.description_id, row.job_type, row.job_group


def ads(conn: Connection, rows: Sequence[Row[Any]]) -> Iterator[tuple[Row[Any], Mapping[str, Value]]]:
    """The kinds with what all jobs of each say; without those whose description is gone meanwhile."""
    bodies: dict[int, str] = {}
    for ids in batches.of({row.description_id for row in rows}):
        bodies |= kinds.bodies(conn, ids)
    for row in rows:
        if (body := bodies.get(row.description_id)) is not None:
            yield row, job_ads.of_kind(row, job_ads.described(body, None))


class KnownKinds:
    """The kinds of jobs of one database; what a description says never changes, so it is read once."""

    def __init__(self) -> None:
        self._ads: dict[Kind, Mapping[str, Value]] = {}

    def waiting_in(self, conn: Connection, task_queue_id: int) -> Sequence[tuple[Kind, Mapping[str, Value]]]:
        """The kinds that wait in a task queue with what all jobs of each say; `MOST` of them at the most."""
        rows = kinds.waiting_in(conn, [task_queue_id], most=MOST)
        if len(self._ads) > _REMEMBERED:
            self._ads.clear()
        for row, ad in ads(conn, [row for row in rows if kind(row) not in self._ads]):
            self._ads[kind(row)] = ad
        return [(kind(row), self._ads[kind(row)]) for row in rows if kind(row) in self._ads]


_KNOWN: WeakKeyDictionary[Engine, KnownKinds] = WeakKeyDictionary()


def known(conn: Connection) -> KnownKinds:
    """Those of the database that the connection is to."""
    return _KNOWN.setdefault(conn.engine, KnownKinds())


def asks_owner_only(asks: Collection[str]) -> bool:
    """Whether nothing but whose a job is makes a difference to what asks for these folded names."""
    return _OF_OWNER.issuperset(asks)


def looks_alike(asks: Collection[str], ad: Mapping[str, Value]) -> bool:
    """Whether all jobs of a kind look the same to what asks for these names: there are no placeholders."""
    return _OF_EACH.isdisjoint(asks) and not any("%" in str(ad.get(name)) for name in asks)
