"""A job as gates look at it, whether it waits, ran or was never submitted.

A job as the expression of a site or queue sees it: its description, and what we know of it.

Kinds of waiting jobs as an expression sees them: what it says of one, it says of all jobs of that kind.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Row

from requirements.record import job_attributes
from requirements.values import Value, fold
from taskqueue.db import sql
from taskqueue.jobs import descriptions
from taskqueue.leases import selection
from taskqueue.leases.selection import CandidateRow, JobKind


@dataclass(frozen=True, kw_only=True)
class JobView:
    """What limits, delays and the expressions of sites ask of a job; named as its columns are."""

    job_id: int | None  #: None: it was not submitted
    vo: str
    owner: str
    owner_group: str
    job_name: str
    job_type: str
    job_group: str
    priority: float
    submit_pool: str | None
    description: Mapping[str, object] = field(repr=False)  #: its placeholders filled
    parameters: None = None  #: nothing is left to fill

    @cached_property
    def body(self) -> str:
        """The description as it is stored."""
        return json.dumps(self.description)


WaitingJobRow = CandidateRow | JobView


def job_ad(job: WaitingJobRow) -> Mapping[str, Value]:
    """The attributes of a waiting job by folded name; what is no plain value is left out."""
    known = {"jobid": job.job_id, "jobname": job.job_name or None, "priority": job.priority}
    ad = group_ad(job, description_attributes(job.body, job.parameters))
    return {**ad, **{name: value for name, value in known.items() if value is not None}}


def group_ad(kind: WaitingJobRow | Row[Any], stated: Mapping[str, Value]) -> dict[str, Value]:
    """The same without what tells jobs of one kind apart: their number, name and priority."""
    known = {"jobtype": kind.job_type, "jobgroup": kind.job_group}
    whose = identity_attributes(vo=kind.vo, owner=kind.owner, owner_group=kind.owner_group)
    return {**stated, **whose, **{name: value for name, value in known.items() if value}}


def identity_attributes(*, vo: str, owner: str, owner_group: str) -> Mapping[str, Value]:
    """Whose a job is, in our names and in those of gLite's checks."""
    return {
        "vo": vo,
        "virtualorganisation": vo,
        "owner": owner,
        "certificatesubject": owner,
        "ownergroup": owner_group,
    }


@lru_cache(maxsize=1024)
def description_attributes(body: str, parameters: str | None) -> Mapping[str, Value]:
    """What a stored description says, its placeholders filled, by folded name."""
    filled = descriptions.fill_placeholders(json.loads(body), json.loads(parameters) if parameters else None)
    return {fold(name): value for name, value in job_attributes.job_attributes(filled).items()}


#: Kinds that are looked at before a claim; beyond that it is left to the claim to look.
MOST: Final = 5000
#: Refused kinds that a claim is told to leave out.
MOST_REFUSED: Final = 500
#: Kinds that are remembered; beyond that we start anew.
_REMEMBERED: Final = 50_000
#: What tells jobs of one kind apart.
_OF_EACH: Final = frozenset({"jobid", "jobname", "priority"})
_OF_OWNER: Final = frozenset(identity_attributes(vo="", owner="", owner_group=""))


def group_key(row: Row[Any]) -> JobKind:
    """The kind that a row of `taskqueue.leases.selection` is of."""
    return row.description_id, row.job_type, row.job_group


def read_group_ads(
    conn: Connection, rows: Sequence[Row[Any]]
) -> Iterator[tuple[Row[Any], Mapping[str, Value]]]:
    """The kinds with what all jobs of each say; without those whose description is gone meanwhile."""
    bodies: dict[int, str] = {}
    for ids in sql.split_batches({row.description_id for row in rows}):
        bodies |= selection.read_bodies(conn, ids)
    for row in rows:
        if (body := bodies.get(row.description_id)) is not None:
            yield row, group_ad(row, description_attributes(body, None))


class JobGroupCache:
    """The kinds of jobs of one database; what a description says never changes, so it is read once."""

    def __init__(self) -> None:
        self._ads: dict[JobKind, Mapping[str, Value]] = {}

    def waiting_in(
        self, conn: Connection, task_queue_id: int
    ) -> Sequence[tuple[JobKind, Mapping[str, Value]]]:
        """The kinds that wait in a task queue with what all jobs of each say; `MOST` of them at the most."""
        rows = selection.list_kinds(conn, [task_queue_id], most=MOST)
        if len(self._ads) > _REMEMBERED:
            self._ads.clear()
        for row, ad in read_group_ads(conn, [row for row in rows if group_key(row) not in self._ads]):
            self._ads[group_key(row)] = ad
        return [(group_key(row), self._ads[group_key(row)]) for row in rows if group_key(row) in self._ads]


_CACHES: WeakKeyDictionary[Engine, JobGroupCache] = WeakKeyDictionary()


def find_cache(conn: Connection) -> JobGroupCache:
    """Those of the database that the connection is to."""
    return _CACHES.setdefault(conn.engine, JobGroupCache())


def reads_owner_only(asks: Collection[str]) -> bool:
    """Whether nothing but whose a job is makes a difference to what asks for these folded names."""
    return _OF_OWNER.issuperset(asks)


def is_same_for_group(asks: Collection[str], ad: Mapping[str, Value]) -> bool:
    """Whether all jobs of a kind look the same to what asks for these names: there are no placeholders."""
    return _OF_EACH.isdisjoint(asks) and not any("%" in str(ad.get(name)) for name in asks)
