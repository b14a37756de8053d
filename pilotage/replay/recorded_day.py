"""A day as it was recorded: jobs that waited, slots of pilots, closures, advertisements, configurations.

Read from the database of an installation, or a copy of it, in short transactions that change nothing.

What no table keeps is not replayed: measurements of nodes that configurations declare by name, and pilots
that state no queue. `RecordedDay.left_out` counts what is missing.
"""

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, bindparam, func, or_, select

from cs_config.errors import ConfigError
from cs_config.options.operations import options_for
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.versions import store
from optimizers.description import description
from requirements import canonical
from requirements.errors import InvalidInput, PilotageError
from requirements.requirement_class import RequirementClass
from requirements.states import JobStatus
from requirements.values import Value
from taskqueue import day_record
from taskqueue.day_record import Series, Slot
from taskqueue.db import database, sql
from taskqueue.jobs import placeholders
from taskqueue.pools.pools import NewPool
from taskqueue.schema.tables import (
    attempts,
    descriptions,
    downtimes,
    job_log,
    jobs,
    pilots,
    requirement_classes,
    submit_pools,
    task_queues,
)
from taskqueue.sites.closures import Downtime, Severity
from taskqueue.task_queues.class_derivation import CLASSIFIED, derive_class

#: Most jobs, and slots, of a day that is replayed: some hundred bytes of memory each.
MOST_JOBS: Final = 2_000_000
#: Longest time that is replayed at once.
MOST_TIME: Final = timedelta(days=7)
#: Job ids that one statement looks at.
_PAGE: Final = 20_000
#: How far back an advertisement still counts, and answers count as supply of slots.
_BEFORE_ADVERTISED: Final = timedelta(hours=1)
_BEFORE_ANSWERS: Final = timedelta(hours=6)
#: Minutes without a record of a closure after which its place was open again.
_GAP: Final = timedelta(minutes=3)
_MINUTE: Final = timedelta(minutes=1)
#: By how much the clocks of two hosts may differ.
_SKEW: Final = timedelta(seconds=1)
_VERSIONS: Final = 10_000

_WAITING = JobStatus.WAITING.value
IDS = select(func.min(jobs.c.job_id), func.max(jobs.c.job_id))
#: Columns of jobs that are fields of a `JobKind`.
KIND_COLUMNS: Final = ("vo", "owner", "owner_group", "priority", "job_type", "job_group")
JOBS = select(
    *(jobs.c[name] for name in KIND_COLUMNS),
    *(jobs.c[name] for name in ("job_id", "submit_pool", "task_queue_id", "description_id", "parameters")),
).where(
    jobs.c.job_id > bindparam("after"),
    jobs.c.job_id <= bindparam("last"),
    jobs.c.submitted_at < bindparam("end", type_=jobs.c.submitted_at.type),
    or_(jobs.c.ended_at.is_(None), jobs.c.ended_at >= bindparam("begin", type_=jobs.c.ended_at.type)),
)
STATUSES = (
    select(*(job_log.c[name] for name in ("job_id", "at", "from_status", "to_status", "epoch")))
    .where(
        sql.is_listed(job_log.c.job_id),
        or_(job_log.c.from_status == _WAITING, job_log.c.to_status == _WAITING),
    )
    .order_by(job_log.c.job_id, job_log.c.log_id)
)
ATTEMPTS = select(
    *(attempts.c[name] for name in ("job_id", "epoch", "stamp", "vo", "site", "ce", "queue")),
    *(attempts.c[name] for name in ("opened_at", "lease_expires_at", "closed_at")),
    *(attempts.c[name] for name in ("processors", "ram_mb", "gpus")),
).where(sql.is_listed(attempts.c.job_id))
CLASSES = (
    select(task_queues.c.task_queue_id, requirement_classes.c.definition)
    .join(requirement_classes, requirement_classes.c.class_id == task_queues.c.class_id)
    .where(sql.is_listed(task_queues.c.task_queue_id))
)
BODIES = select(descriptions.c.description_id, descriptions.c.body).where(
    sql.is_listed(descriptions.c.description_id)
)
POOLS = select(*(submit_pools.c[name] for name in ("pool_id", "vo", "requirements", "original"))).where(
    sql.is_listed(submit_pools.c.pool_id)
)
_DAY = {
    "begin": bindparam("begin", type_=pilots.c.asked_at.type),
    "end": bindparam("end", type_=pilots.c.asked_at.type),
}
COUNT_SLOTS = select(func.count()).where(
    pilots.c.asked_at < _DAY["end"], pilots.c.last_seen_at >= _DAY["begin"]
)
DOWNTIMES = select(downtimes).where(downtimes.c.begins < _DAY["end"], downtimes.c.ends > _DAY["begin"])


class NotReplayable(PilotageError):
    """The day was not recorded, is too large, or its configuration is gone."""

    code = "not_replayable"


@dataclass(frozen=True, slots=True)
class JobKind:
    """What decides the treatment of a job, beside the times."""

    vo: str
    owner: str
    owner_group: str
    digest: str  #: of its requirement class
    pool: str | None
    priority: float
    job_type: str
    job_group: str


@dataclass(slots=True, kw_only=True)
class Stay:
    """A time in which a job waited; a job that was rescheduled has several."""

    job_id: int
    kind: JobKind
    since: datetime
    until: datetime | None  #: None: it still waits
    site: str = ""  #: where it was started; empty: it was not
    seconds: float | None = None  #: that the slot was occupied, so far; None: it was in none
    has_ended: bool = False  #: that was all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldJob:
    """A job that a slot had when the day began."""

    job_id: int
    kind: JobKind
    stamp: str
    place: QueueAddress
    since: datetime
    until: datetime | None  #: None: it has not ended yet
    processors: int
    ram_mb: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertised:
    """An advertisement of a site, a CE or a queue."""

    at: datetime
    scope: str
    attributes: Mapping[str, Value]


@dataclass(slots=True, kw_only=True)
class RecordedDay:
    """Everything that a replay starts from."""

    begin: datetime
    end: datetime
    stays: list[Stay] = field(default_factory=list)  #: in the order of their begin
    held: list[HeldJob] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    classes: dict[str, RequirementClass] = field(default_factory=dict)  #: by digest
    pools: dict[str, NewPool] = field(default_factory=dict)
    advertised: list[Advertised] = field(default_factory=list)
    closed: list[Downtime] = field(default_factory=list)
    configurations: list[tuple[datetime, Configuration]] = field(default_factory=list)  #: from when on
    answers: Mapping[tuple[str, ...], Mapping[datetime, int]] = field(default_factory=dict)  #: before it
    busy: float = 0.0  #: core-seconds of its slots in which they had jobs
    left_out: Counter[str] = field(default_factory=Counter)  #: what cannot be replayed

    @property
    def offered(self) -> float:
        """Core-seconds of its slots."""
        return sum(
            (each.processors or 1) * overlap(each.begin, each.end, self.begin, self.end)
            for each in self.slots
        )

    def find_configuration(self, at: datetime) -> Configuration:
        """The configuration in force at a time."""
        times = [each for each, _ in self.configurations]
        return self.configurations[max(0, bisect_right(times, at) - 1)][1]


def overlap(begin: datetime, end: datetime, since: datetime, until: datetime) -> float:
    """Seconds that two times have in common."""
    return max(0.0, (min(end, until) - max(begin, since)).total_seconds())


def read_day(engine: Engine, *, begin: datetime, end: datetime, now: datetime) -> RecordedDay:
    """Read what was between two times; raises NotReplayable."""
    if not timedelta() < end - begin <= MOST_TIME:
        raise NotReplayable(f"{end - begin} is no time to replay, allowed are up to {MOST_TIME.days} days")
    if end > now:
        raise NotReplayable(f"{end:%Y-%m-%d %H:%M} is not over yet: replay what is past")
    day = RecordedDay(begin=begin, end=end)
    with database.reading(engine) as conn:
        day.configurations = _read_configurations(conn, begin, end)
        day.advertised = list(_read_advertised(conn, begin, end))
        day.closed = [*_read_downtimes(conn, begin, end), *_read_closed(conn, begin, end)]
        day.answers = day_record.read_between(
            conn, Series.ANSWERS, since=begin - _BEFORE_ANSWERS, until=begin
        )
        silent = _measure_silence(conn, begin, end)
        starts = _count_starts(conn, begin, end)
        _require_few(conn.execute(COUNT_SLOTS, {"begin": begin, "end": end}).scalar_one(), "slots")
        slots = day_record.list_slots(conn, since=begin, until=end)
        first, last = conn.execute(IDS).one()
    reader = _JobReader(engine, day, {each.stamp: each for each in slots}, now)
    if first is not None:
        for after in range(first - 1, last, _PAGE):
            reader.read_page(after)
    reader.finish()
    day.left_out += Counter(
        {
            "minutes in which nothing was recorded: no agents ran, or retention has removed the record": (
                silent // _MINUTE if silent > _GAP else 0
            ),
            "starts of jobs that retention has removed": starts - reader.started,
        }
    )
    return day


def _require_few(number: int, what: str) -> None:
    if number > MOST_JOBS:
        raise NotReplayable(
            f"the day has {number:,} {what}, at most {MOST_JOBS:,} are replayed: shorten --for"
        )


def _read_configurations(
    conn: Connection, begin: datetime, end: datetime
) -> list[tuple[datetime, Configuration]]:
    known = [each for each in store.list_versions(conn, _VERSIONS) if each.created_at < end]
    if not known:
        raise NotReplayable(f"there was no configuration before {end:%Y-%m-%d %H:%M}")
    inside = [each for each in known if each.created_at > begin]
    before = known[len(inside) : len(inside) + 1]  # the newest come first
    found: list[tuple[datetime, Configuration]] = []
    for each in reversed([*inside, *before]):
        earlier = found[-1][1] if found else None
        try:
            found.append((each.created_at, store.load_version(conn, each.version, earlier)))
        except ConfigError as error:
            raise NotReplayable(f"version {each.version} of the configuration: {error}") from error
    return found


def _read_advertised(conn: Connection, begin: datetime, end: datetime) -> Iterator[Advertised]:
    since = begin - _BEFORE_ADVERTISED
    seen = day_record.read_between(conn, Series.ADVERTISED, since=since, until=end)
    for (scope, *_), minutes in seen.items():
        for at, value in minutes.items():
            attributes = {
                name: tuple(each) if isinstance(each, list) else each for name, each in value.items()
            }
            yield Advertised(at=at, scope=scope, attributes=attributes)


def _read_downtimes(conn: Connection, begin: datetime, end: datetime) -> Iterator[Downtime]:
    """Those that are still planned as they were."""
    for row in conn.execute(DOWNTIMES, {"begin": begin, "end": end}):
        stored = row._asdict()
        del stored["scope"], stored["site"]
        yield Downtime(**stored | {"severity": Severity(row.severity)})


def _read_closed(conn: Connection, begin: datetime, end: datetime) -> Iterator[Downtime]:
    """What bans and downtimes closed by the record, which also has those that were lifted."""
    closed = day_record.read_between(conn, Series.CLOSED, since=begin, until=end)
    for (scope, *_), minutes in closed.items():
        for since, until in _join_minutes(list(minutes)):
            yield Downtime(
                place=scope,
                begins=since,
                ends=until,
                severity=Severity.OUTAGE,
                reason="",
                author="replay",
                at=since,
            )


def _join_minutes(times: Sequence[datetime]) -> Iterator[tuple[datetime, datetime]]:
    since = until = None
    for at in times:
        if since is None or until is None or at - until > _GAP:
            if since is not None and until is not None:
                yield since, until
            since = at
        until = at + _MINUTE
    if since is not None and until is not None:
        yield since, until


def _measure_silence(conn: Connection, begin: datetime, end: datetime) -> timedelta:
    """Time without the record of each minute."""
    seen = day_record.read_between(conn, Series.CONFIGURATION, since=begin, until=end)
    recorded = (until - since for each in seen.values() for since, until in _join_minutes(list(each)))
    return (end - begin) - sum(recorded, timedelta())


def _find_minutes(begin: datetime, end: datetime) -> tuple[datetime, datetime]:
    """The whole minutes between two times."""
    begin += _MINUTE - timedelta.resolution
    return begin.replace(second=0, microsecond=0), end.replace(second=0, microsecond=0)


def _count_starts(conn: Connection, begin: datetime, end: datetime) -> int:
    """The starts of jobs in the record, in whole minutes, whether or not the jobs are still known."""
    since, until = _find_minutes(begin, end)
    seen = day_record.read_between(conn, Series.STARTS, since=since, until=until)
    return sum(sum(minutes.values()) for minutes in seen.values())


class _JobReader:
    """Reads jobs page by page, with their times of waiting and their attempts."""

    def __init__(self, engine: Engine, day: RecordedDay, slots: Mapping[str, Slot], now: datetime) -> None:
        self._engine = engine
        self._day = day
        self._now = now
        self._slots = dict(slots)
        self._kinds: dict[JobKind, JobKind] = {}  # each once in memory
        self._of_task_queues: dict[int, RequirementClass | None] = {}
        self._of_descriptions: dict[object, _Described | None] = {}
        self._minutes = _find_minutes(day.begin, day.end)
        self.started = 0  #: attempts that were opened in the whole minutes of the day

    def read_page(self, after: int) -> None:
        """Read the jobs with the next ids."""
        day = self._day
        with database.reading(self._engine) as conn:
            values = {"after": after, "last": after + _PAGE, "begin": day.begin, "end": day.end}
            found = conn.execute(JOBS, values).all()
            if not found:
                return
            ids = [each.job_id for each in found]
            statuses: defaultdict[int, list[Row[Any]]] = defaultdict(list)
            for row in sql.read_batches(conn, STATUSES, ids):
                statuses[row.job_id].append(row)
            held: defaultdict[int, dict[int, Row[Any]]] = defaultdict(dict)
            for row in sql.read_batches(conn, ATTEMPTS, ids):
                held[row.job_id][row.epoch] = row
                self.started += self._minutes[0] <= row.opened_at < self._minutes[1]
            self._read_classes(conn, found)
            for job in found:
                self._add_job(conn, job, statuses[job.job_id], held[job.job_id])
        _require_few(len(day.stays), "jobs")

    def finish(self) -> None:
        """Put everything in order."""
        day = self._day
        day.stays.sort(key=lambda each: (each.since, each.job_id))
        for slot in self._slots.values():
            if day.find_configuration(slot.begin).knows(_address(slot)):
                day.slots.append(slot)
            else:
                day.left_out["slots at queues that the configuration does not have"] += 1
        day.slots.sort(key=lambda each: (each.begin, each.stamp))
        stamps = {each.stamp for each in day.slots}
        day.held = [each for each in day.held if each.stamp in stamps]

    def _read_classes(self, conn: Connection, found: Sequence[Row[Any]]) -> None:
        unknown = {each.task_queue_id for each in found} - self._of_task_queues.keys() - {None}
        self._of_task_queues |= dict.fromkeys(unknown)
        for row in sql.read_batches(conn, CLASSES, unknown):
            self._of_task_queues[row.task_queue_id] = RequirementClass.from_json(row.definition)
        classes = filter(None, map(self._of_task_queues.get, unknown))
        wanted = {each.submit_pool for each in classes} - self._day.pools.keys() - {None}
        for row in sql.read_batches(conn, POOLS, wanted):
            self._day.pools[row.pool_id] = NewPool(**row._asdict())

    def _add_job(
        self, conn: Connection, job: Row[Any], statuses: Sequence[Row[Any]], held: Mapping[int, Row[Any]]
    ) -> None:
        day = self._day
        concerned = [each for each in held.values() if each.opened_at < day.end]
        concerned = [each for each in concerned if each.closed_at is None or each.closed_at > day.begin]
        if job.task_queue_id is not None and _lacks_log(day, statuses, concerned):
            day.left_out["jobs without a log of when they began to wait"] += 1
        stays = [each for each in _list_stays(statuses) if each.is_within(day)]
        if not stays and not concerned:
            return
        kind = self._find_kind(conn, job)
        if kind is None:
            day.left_out["jobs whose requirements cannot be read any more"] += 1
            return
        for opened in concerned:
            self._add_attempt(job, kind, opened)
        for each in stays:
            if each.until is not None and each.until < each.since:
                if each.since - each.until > _SKEW:
                    day.left_out["times of waiting that end before they begin: a clock was set back"] += 1
                    continue
                each.until = each.since
            attempt = held.get(each.epoch) if each.epoch is not None else None
            stay = Stay(job_id=job.job_id, kind=kind, since=each.since, until=each.until)
            if attempt is not None:
                stay.site = attempt.site
                # A copy may be older than now: no job is known to have run for longer than its lease.
                until = attempt.closed_at or min(self._now, attempt.lease_expires_at)
                stay.seconds = max(0.0, (until - attempt.opened_at).total_seconds())
                stay.has_ended = attempt.closed_at is not None
            day.stays.append(stay)

    def _add_attempt(self, job: Row[Any], kind: JobKind, attempt: Row[Any]) -> None:
        """Account for an attempt; without a recorded slot it was one itself."""
        day = self._day
        end = attempt.closed_at or day.end
        processors = attempt.processors or 1
        slot = self._slots.get(attempt.stamp or "") or Slot(
            stamp=f"job {attempt.job_id}/{attempt.epoch}",
            vo=attempt.vo,
            site=attempt.site,
            ce=attempt.ce,
            queue=attempt.queue,
            processors=processors,
            begin=attempt.opened_at,
            end=end,
            shape=None,
        )
        # Its first request is recorded up to a minute late, and its last one is none of a job that it had.
        slot = replace(slot, begin=min(slot.begin, attempt.opened_at), end=max(slot.end, end))
        self._slots[slot.stamp] = slot
        day.busy += processors * overlap(attempt.opened_at, end, day.begin, day.end)
        if attempt.opened_at < day.begin:
            day.held.append(
                HeldJob(
                    job_id=job.job_id,
                    kind=kind,
                    stamp=slot.stamp,
                    place=_address(slot),
                    since=attempt.opened_at,
                    until=attempt.closed_at,
                    processors=processors,
                    ram_mb=attempt.ram_mb,
                )
            )

    def _find_kind(self, conn: Connection, job: Row[Any]) -> JobKind | None:
        asked = self._of_task_queues.get(job.task_queue_id)
        if asked is None:
            read = self._read_description(conn, job)
            asked = None if read is None else read.asked
        if asked is None:
            return None
        self._day.classes.setdefault(asked.digest, asked)
        if asked.submit_pool is not None and asked.submit_pool not in self._day.pools:
            read = self._read_description(conn, job)
            if read is not None and read.pool is not None:
                self._day.pools[read.pool.pool_id] = read.pool
        own = {name: getattr(job, name) for name in KIND_COLUMNS}
        kind = JobKind(digest=asked.digest, pool=asked.submit_pool, **own)
        return self._kinds.setdefault(kind, kind)

    def _read_description(self, conn: Connection, job: Row[Any]) -> "_Described | None":
        """What the description of a job decides; retention has removed its class or its pool."""
        key = job.vo, job.description_id, job.parameters
        if key not in self._of_descriptions:
            body = conn.execute(BODIES, {"ids": [job.description_id]}).one_or_none()
            config = self._day.configurations[-1][1]
            self._of_descriptions[key] = None if body is None else _describe(job, body.body, config)
        return self._of_descriptions[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    asked: RequirementClass
    pool: NewPool | None


def _describe(job: Row[Any], body: str, config: Configuration) -> _Described | None:
    """The class and the pool of a job, as the optimizers find them; input data are not looked up again."""
    options = options_for(config, job.vo)
    try:
        members = json.loads(job.parameters) if job.parameters else None
        filled = placeholders.fill_placeholders(json.loads(body), members)
        read = description.parse_description(filled, options, is_accepted=True)
    except (InvalidInput, ValueError, TypeError, AttributeError):
        return None
    pool = None
    if read.requirements is not None:
        form = canonical.canonical(read.requirements, job.vo)
        pool = NewPool(
            pool_id=canonical.identity(form),
            vo=job.vo,
            requirements=form.decode(),
            original=canonical.to_json(canonical.pool_form(read.requirements)),
        )
    stated = {name: getattr(read, name) for name in CLASSIFIED if read.states(name)}
    pool_id = None if pool is None else pool.pool_id
    return _Described(asked=derive_class(job.vo, stated, options, submit_pool=pool_id), pool=pool)


@dataclass(slots=True, kw_only=True)
class _Waiting:
    since: datetime
    until: datetime | None = None
    epoch: int | None = None  #: of the attempt that ended it

    def is_within(self, day: RecordedDay) -> bool:
        return self.since < day.end and (self.until is None or max(self.since, self.until) >= day.begin)


def _lacks_log(day: RecordedDay, statuses: Sequence[Row[Any]], concerned: Sequence[Row[Any]]) -> bool:
    """Whether the log lacks when a job began to wait, and it was not running already when the day began."""
    if statuses:
        return bool(statuses[0].to_status != _WAITING and statuses[0].at >= day.begin)
    return all(each.opened_at >= day.begin for each in concerned)


def _list_stays(statuses: Sequence[Row[Any]]) -> Iterator[_Waiting]:
    """The times of waiting by the log of a job, in order."""
    current: _Waiting | None = None
    for row in statuses:
        if row.to_status == _WAITING:
            current = current or _Waiting(since=row.at)
        elif current is not None:
            current.until = row.at
            current.epoch = row.epoch if row.to_status == JobStatus.MATCHED.value else None
            yield current
            current = None
    if current is not None:
        yield current


def _address(slot: Slot) -> QueueAddress:
    return QueueAddress(site=slot.site, ce=slot.ce, queue=slot.queue)
