"""Jobs, and groups of equal jobs, as limits and expressions of sites and queues read them.

An expression that reads only attributes common to a group is evaluated once for all jobs of the group.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Row

from cs_config.cache import Cache, derived
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from requirements import values
from requirements.kept import keep
from requirements.values import Value, fold
from taskqueue.jobs import descriptions, placeholders
from taskqueue.leases import candidate_jobs
from taskqueue.leases.candidate_jobs import CandidateRow, JobKind
from taskqueue.task_queues.task_queues import TaskQueue


@dataclass(frozen=True, kw_only=True)
class JobView:
    """A job with the fields that limits, delays and expressions of sites read; named like its columns."""

    job_id: int | None  #: None: not submitted
    vo: str
    owner: str
    owner_group: str
    job_name: str
    job_type: str
    job_group: str
    priority: float
    submit_pool: str | None
    description: Mapping[str, object] = field(repr=False)  #: with placeholders filled
    cores: int = 1  #: the fewest that it is given
    parameters: None = None  #: stands for the column; no placeholder is left

    @cached_property
    def body(self) -> str:
        """The description as stored."""
        return json.dumps(self.description)


WaitingJobRow = CandidateRow | JobView


def job_ad(job: WaitingJobRow, config: Configuration | None) -> Mapping[str, Value]:
    """The attributes of a waiting job by folded name, with the defaults of its VO; only plain values."""
    known = {"jobid": job.job_id, "jobname": job.job_name or None, "priority": job.priority}
    ad = group_ad(job, _with_defaults(job.vo, config, description_attributes(job.body, job.parameters)))
    return {**ad, **{name: value for name, value in known.items() if value is not None}}


def group_ad(kind: WaitingJobRow | Row[Any], stated: Mapping[str, Value]) -> dict[str, Value]:
    """Like `job_ad`, without the attributes that differ in a group: job id, name and priority."""
    known = {"jobtype": kind.job_type, "jobgroup": kind.job_group}
    identity = identity_attributes(vo=kind.vo, owner=kind.owner, owner_group=kind.owner_group)
    return {**stated, **identity, **{name: value for name, value in known.items() if value}}


def identity_attributes(*, vo: str, owner: str, owner_group: str) -> Mapping[str, Value]:
    """Owner, group and VO of a job, in our names and in those of gLite's checks."""
    return {
        "vo": vo,
        "virtualorganisation": vo,
        "owner": owner,
        "certificatesubject": owner,
        "ownergroup": owner_group,
    }


def owner_ad(task_queue: TaskQueue) -> Mapping[str, Value]:
    """The attributes common to all jobs of a task queue: owner, group and VO."""
    return identity_attributes(vo=task_queue.vo, owner=task_queue.owner, owner_group=task_queue.owner_group)


def _with_defaults(vo: str, config: Configuration | None, stated: Mapping[str, Value]) -> Mapping[str, Value]:
    return stated if config is None else {**_default_attributes(config, vo), **stated}


@derived
def _default_attributes(config: Configuration, vo: str) -> Mapping[str, Value]:
    """The attributes that a description of the VO has by default, by folded name."""
    filled = options_for(config, vo).job_description.filled_in
    return {fold(name): value for name, value in values.job_attributes(filled).items()}


@keep(32, lambda _, body, parameters: 10 * (len(body) + len(parameters or "")))
def description_attributes(body: str, parameters: str | None) -> Mapping[str, Value]:
    """The attributes of a stored description by folded name, with placeholders filled. Cached."""
    filled = placeholders.fill_placeholders(json.loads(body), json.loads(parameters) if parameters else None)
    return {fold(name): value for name, value in values.job_attributes(filled).items()}


#: Job groups checked before a claim; further ones are checked by the claim itself.
MOST: Final = 5000
#: Refused job groups that are passed to a claim as a filter.
MOST_REFUSED: Final = 500
#: Cached job groups, and characters of the attributes of one; those of a longer one are not cached.
_CACHED: Final = 50_000
MOST_BYTES: Final = 128 << 20
_LONGEST: Final = 4_000
_TOO_LONG: Final[Mapping[str, Value]] = {}
#: Job groups whose descriptions are read at once.
_PIECE: Final = 100
#: Attributes that differ within a group.
_DIFFERING: Final = frozenset({"jobid", "jobname", "priority"})
_IDENTITY: Final = frozenset(identity_attributes(vo="", owner="", owner_group=""))


def group_key(row: Row[Any]) -> JobKind:
    """The job group of a row from `taskqueue.leases.candidate_jobs`."""
    return row.description_id, row.job_type, row.job_group


def read_group_ads(
    conn: Connection, rows: Sequence[Row[Any]], config: Configuration | None
) -> Iterator[tuple[Row[Any], Mapping[str, Value]]]:
    """Groups with the attributes common to their jobs; groups with a deleted description are omitted."""
    written = descriptions.read_shared(conn, {row.description_id for row in rows})
    for row in rows:
        if row.description_id in written:
            body, _ = written[row.description_id]
            stated = description_attributes(body, None)
            yield row, group_ad(row, _with_defaults(row.vo, config, stated))


class JobGroupCache:
    """Cache of job groups of one database, while the defaults of descriptions stay the same. Thread-safe."""

    def __init__(self) -> None:
        #: By configuration.
        self._ads: Cache[JobKind, Mapping[str, Value]] = Cache(
            _CACHED, measure=lambda _, ad: 500 + 8 * _count_characters(ad), most=MOST_BYTES
        )
        self.config: Configuration | None = None  #: whose defaults the groups have; None: not known yet

    def waiting_in(
        self, conn: Connection, task_queue_id: int
    ) -> tuple[Sequence[tuple[JobKind, Mapping[str, Value]]], bool]:
        """Groups that wait in a task queue with their common attributes, and whether these are all.

        There are at most `MOST`, without those whose descriptions are too long to be cached.
        """
        config = self.config
        rows = candidate_jobs.list_kinds(conn, [task_queue_id], most=MOST)
        known = {group_key(row): self._ads.find(group_key(row), config) for row in rows}
        new = [row for row in rows if known[group_key(row)] is None]
        for start in range(0, len(new), _PIECE):
            for row, ad in read_group_ads(conn, new[start : start + _PIECE], config):
                kept = ad if _count_characters(ad) <= _LONGEST else _TOO_LONG
                known[group_key(row)] = self._ads.store(group_key(row), kept, config)
        is_all = len(rows) < MOST and not any(ad is _TOO_LONG for ad in known.values())
        return [(key, ad) for key, ad in known.items() if ad], is_all


def _count_characters(ad: Mapping[str, Value]) -> int:
    """The size of attributes; a number, and an item of a list, count as one more."""
    items = [item for value in ad.values() for item in (value if isinstance(value, tuple) else (value,))]
    return len(items) + sum(len(item) for item in items if isinstance(item, str))


_CACHES: WeakKeyDictionary[Engine, JobGroupCache] = WeakKeyDictionary()


def find_cache(engine: Engine) -> JobGroupCache:
    """The cache of a database."""
    return _CACHES.get(engine) or _CACHES.setdefault(engine, JobGroupCache())


def reads_owner_only(asks: Collection[str]) -> bool:
    """Whether an expression that reads these folded names depends only on the job's owner, group and VO."""
    return _IDENTITY.issuperset(asks)


def is_same_for_group(asks: Collection[str], ad: Mapping[str, Value]) -> bool:
    """Whether these attributes are equal for all jobs of the group, which excludes placeholders."""
    return _DIFFERING.isdisjoint(asks) and not any("%" in str(ad.get(name)) for name in asks)
