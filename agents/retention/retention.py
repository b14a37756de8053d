"""Retention agent: deletes data older than the settings of each VO.

Deletion is in small transactions, which may be repeated or interrupted: the next cycle continues.
"""

import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import count, islice
from types import MappingProxyType
from typing import Final, Self

from sqlalchemy import Connection, Engine

from agents import accounting, dependencies, leader
from agents.leader import Leadership
from agents.retention import ended_jobs, log_partitions
from agents.retention.ended_jobs import EndedPass
from agents.retention.log_partitions import LogAges
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from taskqueue import blobs, ownership, retention
from taskqueue.blob_stores.store import BlobStore
from taskqueue.db import database, history
from taskqueue.leases import uptime
from taskqueue.pilots import hardware, pilots
from taskqueue.retention import Archive, UnusedSearch
from taskqueue.sites import processes
from taskqueue.task_queues import change_feed, task_queues, watched_times

NAME: Final = "retention"

#: Rows per transaction, and transactions per kind of data and cycle.
_LIMIT: Final = 500
_ROUNDS: Final = 40
#: Archives that are looked at in one statement.
_DIGESTS: Final = 5_000
#: Time between two cycles that look at archives, unless there are more to delete: a little less than that
#: between cycles. Those that follow at once do so for something else.
_ARCHIVES: Final = timedelta(minutes=9)
#: Files per transaction: an upload of the same content waits until it ends.
_FILES: Final = 50

#: Matchers read every second; after a longer pause they reload everything. There may be
#: hundreds of changes a second.
_CHANGES: Final = timedelta(hours=1)
_CHANGES_LIMIT: Final = 10_000
#: An empty task queue often gets new jobs soon, and creating it again has a cost.
_TASK_QUEUES: Final = timedelta(days=1)
#: Jobs that one statement of the search for unused ones reads, and such statements in one cycle.
_PAGE: Final = 50_000
_PAGES: Final = 200
#: Minimum retention of the service's uptime records, watched times and wait causes: longer than nearly all
#: jobs wait, by what does not count as well.
_WAITS: Final = timedelta(days=30)
#: Further retention of wait causes. Without them watched time counts as waiting for a pilot: they outlast all
#: watched times that are kept, which are a day long.
_CAUSES: Final = timedelta(days=2)
#: Age at which a stored file without a row is deleted.
_STRAY: Final = timedelta(days=1)

#: Data of all VOs: the table, and the age at which its rows are deleted.
_REMOVALS: Final[Sequence[tuple[str, str, timedelta]]] = (
    # Stored answers to match requests are needed for the length of a lease.
    ("match requests", "match_requests", timedelta(days=1)),
    ("idempotency keys", "idempotency_keys", timedelta(days=7)),
    ("seen hardware", "seen_hardware", hardware.KEPT),
    ("downtimes", "downtimes", timedelta(days=90)),
    ("revoked tokens", "revoked_tokens", timedelta()),
    ("depths of queues", "queue_depths", timedelta(days=7)),
    ("deliveries of web hooks", "hook_deliveries", timedelta(days=3)),
    # Of rules that the configuration has no more; a claim reads all of its place.
    ("matching delays", "matching_delays", timedelta(days=1)),
)


#: Texts of versions of the configuration: the newest that are kept however old they are, and most that are
#: kept however new.
_FEWEST_TEXTS: Final = 1_000
_MOST_TEXTS: Final = 10_000


#: Reads the job log further: `(engine, *, now, holder)`.
LogReader = Callable[..., object]


@dataclass(slots=True)
class RetentionState:
    """What a process remembers from cycle to cycle; empty in a new one."""

    #: Whether another cycle of the process follows. If none does, a cycle goes through all ended jobs: the
    #: next process would begin with the oldest again.
    has_next: bool = True
    ended: EndedPass = field(default_factory=EndedPass)
    digest: str = ""  #: of the archive that was looked at last; the first of all is behind the empty text
    archives: datetime | None = None  #: when they were looked at; None: not yet, or there are more to delete
    task_queues: UnusedSearch | None = None  #: that goes on; None: the next begins with the next day
    partitions: datetime | None = None  #: when those of the job log were last cleared

    @classmethod
    def begin(cls, *, has_next: bool) -> Self:
        """The state of a new process.

        If it has further cycles, it begins anywhere among the archives: with very many of them, those that
        begin with the first and are restarted daily would never come to the last.
        """
        return cls(has_next=has_next, digest=secrets.token_hex(32) if has_next else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionResult:
    """Number of deleted rows and files of each kind."""

    removed: Mapping[str, int] = field(default_factory=dict)
    broken: tuple[str, ...] = ()  #: VOs whose work failed
    is_behind: bool = False  #: there may be more of a kind than one cycle deletes: the next follows at once

    def __bool__(self) -> bool:
        return any(self.removed.values()) or bool(self.broken)


def cycle(
    engine: Engine,
    config: Configuration,
    *,
    now: datetime,
    holder: str,
    store: BlobStore | None = None,
    memory: RetentionState | None = None,
    log_readers: Mapping[str, LogReader] = MappingProxyType({}),
) -> RetentionResult | None:
    """Delete data older than the settings of its VO; None while another process is the leader.

    Without `store` only rows are deleted, no files. `memory` is the same object in each cycle of a process.
    `log_readers` are those beside the program's own: their names, and functions that read the log further.
    """
    searched = RetentionState() if memory is None else memory
    readers = accounting.READERS | dependencies.READERS | log_readers.keys()
    with leader.lead(engine, NAME, holder=holder, now=now) as leadership:
        if leadership is None:
            return None
        # Only counted log rows can be deleted. Another holder: the accounting agent may run in this process.
        for read_log in (accounting.cycle, dependencies.cycle):
            read_log(engine, now=now, holder=f"{holder} {NAME}", briefly=True)
        for name, read in log_readers.items():
            with leadership.isolating(f"the log was not read for {name}, the rest is continued"):
                read(engine, now=now, holder=f"{holder} {NAME}")
        with database.reading(engine) as conn:
            vos = sorted(ownership.list_vos(conn))
        removed: Counter[str] = Counter()
        cutoffs = leadership.serve_each(
            vos, lambda vo: ended_jobs.find_cutoffs(options_for(config, vo).retention, now)
        )
        most = _LIMIT * _ROUNDS if searched.has_next else sys.maxsize
        with leadership.isolating("the pass over ended jobs failed, the rest is continued", *cutoffs):
            removed += ended_jobs.remove(
                leadership, searched.ended, cutoffs, readers=readers, limit=_LIMIT, most=most
            )
        before = leadership.serve_each(
            cutoffs, lambda vo: now - timedelta(days=options_for(config, vo).retention.sandboxes)
        )
        if searched.archives is None or not timedelta() <= now - searched.archives < _ARCHIVES:
            with leadership.isolating("the pass over archives failed, the rest is continued", *before):
                removed["blobs"] += _remove_blobs(leadership, searched, before, store)
        of_vos = leadership.serve_each(cutoffs, lambda vo: _remove_of_vo(leadership, config, vo, store))
        removed = sum(of_vos.values(), removed)
        with leadership.isolating("the partitions of the job log failed, the rest is continued"):
            log_partitions.tend(leadership)
            removed += _clear_log(leadership, config, vos, searched, readers)
        for kind, table, age in _REMOVALS:
            removed[kind] += _repeat_step(
                leadership, partial(retention.remove_old, table=table, before=now - age, limit=_LIMIT)
            )
        age = timedelta(days=options_for(config, None).retention.day_records)
        removed["day records"] += _repeat_step(
            leadership, partial(retention.remove_old, table="day_records", before=now - age, limit=_LIMIT)
        )
        removed["changes"] += leadership.repeat(
            lambda conn: change_feed.trim_changes(conn, before=now - _CHANGES, most=_CHANGES_LIMIT),
            most=_CHANGES_LIMIT,
            rounds=_ROUNDS,
        )
        removed["site processes"] += _repeat_step(
            leadership, partial(processes.remove_forgotten, before=now - processes.FORGOTTEN)
        )
        removed["homes"] += _repeat_step(leadership, partial(history.remove, before=now - history.KEPT))
        removed["configuration texts"] += _remove_config_texts(leadership, config)
        removed += _remove_times(leadership, config, vos)
        is_new_day = leadership.last is None or leadership.last.date() != now.date()
        if is_new_day and searched.task_queues is None:
            searched.task_queues = _search_task_queues(leadership)
        if searched.task_queues is not None:
            pages = None if memory is None else _PAGES
            removed += _remove_task_queues(leadership, searched, searched.task_queues, pages=pages)
        if is_new_day and store is not None:
            removed["stray files"] += _remove_stray(leadership, store)
        return RetentionResult(
            removed=+removed,
            broken=tuple(sorted(leadership.broken)),
            is_behind=bool(leadership.unfinished),
        )


def _clear_log(
    leadership: Leadership,
    config: Configuration,
    vos: Sequence[str],
    searched: RetentionState,
    readers: frozenset[str],
) -> Counter[str]:
    """Once a day: drop old partitions of the job log, if it has some."""
    if searched.partitions is not None and searched.partitions.date() == leadership.now.date():
        return Counter()
    keep = {vo: options_for(config, vo).retention for vo in vos}

    def find_cutoff(vo: str) -> datetime:
        return leadership.now - timedelta(days=(keep.get(vo) or options_for(config, vo).retention).logs)

    ages = {timedelta(days=min(each.jobs, each.logs)) for each in keep.values()}
    log_ages = LogAges(find_cutoff=find_cutoff, ages=ages, readers=readers)
    removed = log_partitions.clear(leadership, log_ages, last=searched.partitions)
    if removed is not None:
        searched.partitions = leadership.now
    return removed or Counter()


def _remove_of_vo(
    leadership: Leadership, config: Configuration, vo: str, store: BlobStore | None
) -> Counter[str]:
    removed: Counter[str] = Counter()
    keep = options_for(config, vo).retention
    before = leadership.now - timedelta(days=keep.jobs)
    remove_pilots = partial(retention.remove_pilots, vo=vo, before=before, limit=_LIMIT)
    removed["pilots"] += _repeat_step(leadership, remove_pilots)
    quota = options_for(config, vo).limits.output_quota
    remove = partial(retention.remove_outputs, vo=vo, quota=quota, before=leadership.now, limit=_LIMIT)
    removed["outputs over quota"] += _remove_outputs(leadership, remove, store)
    return removed


def _repeat_step(leadership: Leadership, step: Callable[[Connection], int]) -> int:
    return leadership.repeat(step, most=_LIMIT, rounds=_ROUNDS)


def _remove_config_texts(leadership: Leadership, config: Configuration) -> int:
    """Delete the texts of old versions of the configuration; who changed what remains."""
    before = leadership.now - timedelta(days=options_for(config, None).retention.logs)
    remove = partial(
        retention.remove_config_texts,
        before=before,
        fewest=_FEWEST_TEXTS,
        most=_MOST_TEXTS,
        limit=_LIMIT,
    )
    return _repeat_step(leadership, remove)


def _remove_times(leadership: Leadership, config: Configuration, vos: Sequence[str]) -> Counter[str]:
    """Delete uptime, watched times and wait causes that are older than any silence or wait to be measured."""
    leases = [options_for(config, vo).leases for vo in vos]
    longest = [max(each.time, each.stalled_time, each.stalled_grace) for each in leases]
    longest += [options_for(config, vo).job_scheduling.waiting_ttl for vo in vos]
    silence = timedelta(seconds=max([pilots.LOST_AFTER.total_seconds(), *longest]))
    removed: Counter[str] = Counter()
    with leadership.writing() as conn:
        up = uptime.read(conn)
        before, causes_before = (
            min(up.go_back(leadership.now, seconds=each.total_seconds()), leadership.now - _WAITS - further)
            for each, further in ((silence, timedelta()), (silence + _CAUSES, _CAUSES))
        )
        watched_times.remove(conn, before=before)
        removed["uptime"] = uptime.remove(conn, before=before)
    removed["wait causes"] = _repeat_step(
        leadership, partial(retention.remove_old, table="wait_causes", before=causes_before, limit=_LIMIT)
    )
    return removed


def _remove_blobs(
    leadership: Leadership, searched: RetentionState, before: Mapping[str, datetime], store: BlobStore | None
) -> int:
    """Go on through the archives of all VOs, and after the last begin with the first again.

    Digests are random. So where so many of a part of the archives were to be deleted, there are more. A VO
    whose work fails is left out of the rest.
    """
    total, left = 0, dict(before)
    for _ in range(_ROUNDS) if searched.has_next else count():
        with database.reading(leadership.engine) as conn:
            found, upto = retention.list_unused_blobs(conn, after=searched.digest, most=_DIGESTS, before=left)
        unused = iter(sorted(found))
        while some := list(islice(unused, _LIMIT)):
            removed = _remove_rows(leadership, some, left)
            if store is not None:
                _remove_files(leadership, store, removed)
            total += len(removed)
        searched.digest, searched.archives = upto or "", leadership.now
        if upto is None:
            return total
        if searched.has_next and total >= _LIMIT * _ROUNDS:
            break
    if total >= _LIMIT:
        leadership.unfinished.append(searched)
        searched.archives = None
    return total


def _remove_rows(leadership: Leadership, unused: Sequence[Archive], left: dict[str, datetime]) -> list[str]:
    """Delete rows of the VOs that are left; of these, those whose work failed are taken away."""
    removed: list[str] = []

    def remove(of_vos: Mapping[str, datetime]) -> None:
        with leadership.writing() as conn:
            gone = retention.remove_blobs(conn, unused, before=of_vos)
        removed.extend(gone)

    for vo in leadership.serve_together(left, remove):
        del left[vo]
    return removed


def _remove_outputs(
    leadership: Leadership, remove: Callable[[Connection], list[str]], store: BlobStore | None
) -> int:
    """Delete rows and commit, then the files that no row refers to any more."""
    total = 0
    for _ in range(_ROUNDS):
        with leadership.writing() as conn:
            digests = remove(conn)
        if store is not None:
            _remove_files(leadership, store, digests)
        total += len(digests)
        if len(digests) < _LIMIT:
            break
    return total


def _search_task_queues(leadership: Leadership) -> UnusedSearch:
    """Begin the search for unused task queues; those that were emptied without a claim are marked empty."""
    before = leadership.now - _TASK_QUEUES
    with database.reading(leadership.engine) as conn:
        emptied = iter(retention.list_emptied(conn, before=before))
        search = retention.search_unused(conn, before=before)
    while some := list(islice(emptied, _LIMIT)):
        with leadership.writing() as conn:
            task_queues.mark_empty(conn, some, now=leadership.now)
    return search


def _remove_task_queues(
    leadership: Leadership, state: RetentionState, search: UnusedSearch, *, pages: int | None
) -> Counter[str]:
    """Search in so many further pages of jobs (None: all); at the end delete what was found, and classes."""
    for _ in count() if pages is None else range(pages):
        with database.reading(leadership.engine) as conn:
            if not search.read_on(conn, most=_PAGE):
                break
    else:
        return Counter()
    state.task_queues = None
    removed: Counter[str] = Counter()
    unused = iter(sorted(search.left))
    while some := list(islice(unused, _LIMIT)):
        with leadership.writing() as conn:
            removed["task queues"] += retention.remove_unused(conn, some, before=search.before)
    removed["classes"] = _repeat_step(
        leadership, lambda conn: retention.remove_unused_classes(conn, limit=_LIMIT)
    )
    return removed


def _remove_stray(leadership: Leadership, store: BlobStore) -> int:
    """Delete files left behind by a process that died before it stored their row."""
    before = leadership.now - _STRAY
    removed = store.sweep(before=before)
    stored = store.digests(before=before)
    while digests := list(islice(stored, _LIMIT)):
        with database.reading(leadership.engine) as conn:
            stray = blobs.find_unreferenced(conn, digests)
        removed += _remove_files(leadership, store, stray)
    return removed


def _remove_files(leadership: Leadership, store: BlobStore, digests: Iterable[str]) -> int:
    removed = 0
    left = iter(sorted(digests))
    while some := list(islice(left, _FILES)):
        with leadership.writing() as conn:
            removed += sum(blobs.remove_file(conn, store, digest) for digest in some)
    return removed
