"""Pool agent: keeps the mapping of SubmitPools to queues up to date with the configuration.

A change of the configuration and the expiry of dynamic attributes are applied at once; unused pools are
removed. All mappings of a VO are computed in memory, after each change and at intervals, and the differences
from the stored ones are written in one transaction. After a change that leaves the VO's queue classes and
declarations as they were, only the recorded version advances.

The minor status of a waiting job shows whether any queue is eligible for it; it is updated as soon as that
changes.

Source: RFC #7.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine

from agents import leader
from agents.leader import Leadership
from cs_config import gc_pause
from cs_config.classes.queue_class_index import QueueClassIndex, index_for_vo
from cs_config.classes.queue_columns import EligibleSets
from cs_config.options.operations import options_for
from cs_config.options.options import VoOptions
from cs_config.tree.configuration import Configuration
from optimizers.chain.chain import WAITS_FOR_PILOT
from requirements import canonical
from requirements.bitset import Renumbering
from requirements.record import Declarations
from taskqueue.db import database
from taskqueue.jobs import unmatchable
from taskqueue.jobs.unmatchable import NO_ELIGIBLE_QUEUE
from taskqueue.pools import mapping, pools, queue_class_store
from taskqueue.pools.pools import MappingChange
from taskqueue.pools.queue_class_store import RefreshState
from taskqueue.task_queues import reclassification

log = logging.getLogger(__name__)

#: Refreshes in a row, by VO, that failed because another transaction came first.
_overtaken: Final = Counter[str]()
#: Failed refreshes between two warnings; the first warning comes with the second failure.
_WARNING_INTERVAL: Final = 60
_OVERTAKEN: Final = (
    "the pools of %s could not be mapped %d times in a row: the stored queue classes are not those that "
    "this process computes from version %d of the configuration, and new pools of the VO stay without "
    "queues; does another release run, or was a database restored without `pilotage db recover`?"
)


class _OvertakenError(Exception):
    """The stored state has changed since it was read; the transaction is rolled back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Basis:
    """What decides the mappings of a VO; when it is equal, so are they."""

    digests: tuple[str, ...]  #: of the queue classes
    declarations: Declarations
    computed_at: datetime = field(compare=False)  #: when all pools were mapped


#: The last refresh of all pools by this process, by VO: the state that it left, and its basis. While the
#: stored state is this one, nobody has replaced the queue classes or the mappings since.
_latest: Final[WeakKeyDictionary[Engine, dict[str, tuple[RefreshState | None, _Basis]]]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mappings:
    """Mappings that were computed before the transaction; slots of new classes are predicted."""

    state: RefreshState | None  #: of the VO when it was read
    slots: Mapping[str, int]  #: of the queue classes
    new: frozenset[str]  #: pools without a mapping
    has_all: bool  #: whether `sets` has all pools, and not only the new ones
    sets: Mapping[str, EligibleSets]  #: eligible classes of pools
    basis: _Basis


@gc_pause.pause_collection()
def refresh_vo(
    leadership: Leadership, config: Configuration, vo: str, *, whole: bool
) -> Mapping[str, MappingChange]:
    """Map the pools of a VO that have no mapping yet and, if `whole`, correct the other mappings.

    Returns the change of each refreshed pool; none if the stored state changed meanwhile: the next cycle
    retries.
    """
    computed = _compute(leadership, config, vo, whole=whole)
    if computed.state is not None and not computed.state.is_ours:
        log.warning("the queue classes of %s were stored by another release: mapping all its pools again", vo)
    try:
        changed = _store(leadership, config, vo, computed, whole=whole)
    except _OvertakenError:
        _overtaken[vo] += 1
        # One failure is harmless, but after many in a row no pool is mapped any more.
        if _overtaken[vo] % _WARNING_INTERVAL == 2:
            log.warning(_OVERTAKEN, vo, _overtaken[vo], config.version)
        return {}
    _overtaken.pop(vo, None)
    return changed


def _compute(leadership: Leadership, config: Configuration, vo: str, *, whole: bool) -> _Mappings:
    index = index_for_vo(config, vo)
    digests = tuple(each.digest for each in index.classes.values())
    basis = _Basis(digests=digests, declarations=index.declarations, computed_at=leadership.now)
    with database.reading(leadership.engine) as conn:
        state = queue_class_store.read_states(conn).get(vo)
        stored = queue_class_store.read_slots(conn, vo)
        new = frozenset(pools.list_unmapped(conn, vo))
        kept = _find_kept(leadership, config, vo, state, basis) if whole else None
        has_all = whole and kept is None
        pool_ids = new.union(pools.list_mapped(conn, vo)) if has_all else new
        found = _read_pools(conn, index, pool_ids)
    slots = queue_class_store.number_classes(stored, digests)
    sets = _resolve(index, slots, found)
    return _Mappings(state=state, slots=slots, new=new, has_all=has_all, sets=sets, basis=kept or basis)


def _find_kept(
    leadership: Leadership, config: Configuration, vo: str, state: RefreshState | None, basis: _Basis
) -> _Basis | None:
    """The equal basis of the stored mappings; None: it is another or unknown, or all pools are due."""
    left, kept = _latest.get(leadership.engine, {}).get(vo, (None, None))
    if state is None or kept is None or (left, kept) != (state, basis):
        return None
    due = kept.computed_at + timedelta(seconds=options_for(config, vo).pools.refresh_interval)
    return kept if leadership.now <= due else None


def _store(
    leadership: Leadership, config: Configuration, vo: str, computed: _Mappings, *, whole: bool
) -> Mapping[str, MappingChange]:
    """Store the mappings if the state is still the one they were computed from."""
    index, now = index_for_vo(config, vo), leadership.now
    of = {"config_version": config.version, "expiries": config.expiries}
    with leadership.writing() as conn:
        # New pools first, then the VO's row: the order in which arriving jobs lock them. From then on no
        # other transaction can add a mapping.
        existing = pools.lock_pools(conn, vo, computed.new & computed.sets.keys())
        if queue_class_store.lock_state(conn, vo) != computed.state:
            raise _OvertakenError
        classes = tuple(index.classes.values())
        if not queue_class_store.store_classes(conn, vo=vo, classes=classes, now=now, **of):
            raise _OvertakenError
        if not computed.slots.items() <= queue_class_store.read_slots(conn, vo).items():
            raise _OvertakenError
        # Unless all were computed, pools that came meanwhile have a mapping of the same basis.
        stored = pools.read_mappings(conn, vo) if computed.has_all else {}
        late = _read_pools(conn, index, stored.keys() - computed.sets.keys())
        sets = {**computed.sets, **_resolve(index, computed.slots, late)}
        changed = pools.refresh_mappings(
            conn,
            vo=vo,
            new={pool_id: sets[pool_id] for pool_id in existing},
            wanted={pool_id: sets[pool_id] for pool_id in (stored.keys() & sets.keys()).difference(existing)},
            before=stored,
            now=now,
            **of,
        )
        if whole:
            queue_class_store.record_refresh(conn, vo, at=computed.basis.computed_at)
            queue_class_store.prune_classes(conn, vo)
            # Should the transaction be rolled back, the stored state is another one.
            left = queue_class_store.lock_state(conn, vo)
            _latest.setdefault(leadership.engine, {})[vo] = (left, computed.basis)
    return changed


def _read_pools(
    conn: Connection, index: QueueClassIndex, pool_ids: Iterable[str]
) -> dict[str, EligibleSets | str]:
    """The cached queue classes of each pool, or its requirements; deleted pools are left out."""
    known = {pool_id: index.find_pool(pool_id) for pool_id in pool_ids}
    originals = mapping.read_originals(conn, [pool_id for pool_id, sets in known.items() if sets is None])
    return {**{pool_id: sets for pool_id, sets in known.items() if sets is not None}, **originals}


def _resolve(
    index: QueueClassIndex, slots: Mapping[str, int], found: Mapping[str, EligibleSets | str]
) -> dict[str, EligibleSets]:
    """The eligible classes of the pools, by slot."""
    numbers = Renumbering([slots[each.digest] for each in index.classes.values()])
    resolved: dict[str, EligibleSets] = {}
    for pool_id, sets in found.items():
        if isinstance(sets, str):
            sets = index.resolve_pool(pool_id, canonical.from_json(sets))
        resolved[pool_id] = sets.renumbered(numbers)
    return resolved


_STATUS_SOURCE = "PoolAgent"


def update_minor_status(leadership: Leadership, pool_ids: frozenset[str]) -> int:
    """Correct the minor status of waiting jobs in pools that gained or lost their eligible queues.

    Returns the number of updated jobs.
    """
    with database.reading(leadership.engine) as conn:
        resolved = unmatchable.read_has_queue(conn, pool_ids)
        wrong: dict[str, bool] = {}
        for has_queue in (True, False):
            these = [pool_id for pool_id, has in resolved.items() if has is has_queue]
            found = unmatchable.find_pools_with_status(conn, these, NO_ELIGIBLE_QUEUE, saying=has_queue)
            wrong |= dict.fromkeys(found, has_queue)
    return sum(_update_pool(leadership, each, has_queue=wrong[each]) for each in sorted(wrong))


def _update_pool(leadership: Leadership, pool_id: str, *, has_queue: bool) -> int:
    right = WAITS_FOR_PILOT if has_queue else NO_ELIGIBLE_QUEUE
    updated = after = 0
    while True:
        with database.reading(leadership.engine) as conn:
            job_ids = unmatchable.list_waiting_jobs(
                conn, pool_id, NO_ELIGIBLE_QUEUE, saying=has_queue, after=after
            )
        if not job_ids:
            return updated
        with leadership.writing() as conn:
            # A refresh may have changed this since it was read.
            if unmatchable.read_has_queue(conn, [pool_id]).get(pool_id) is not has_queue:
                return updated
            updated += unmatchable.set_minor_status(
                conn, job_ids, right, source=_STATUS_SOURCE, now=leadership.now
            )
        after = job_ids[-1]


#: Classes, and jobs of them, in one transaction.
_MOST_CLASSES: Final = 100
_MOST_JOBS: Final = 1000
#: Transactions for one page of classes in a cycle.
_MOST_ROUNDS: Final = 100_000
#: Version of the configuration whose defaults all classes were derived with.
_classified: WeakKeyDictionary[Engine, int] = WeakKeyDictionary()


def reclassify(leadership: Leadership, config: Configuration) -> int:
    """Derive the classes of waiting jobs again that depend on other defaults than today's; how many."""
    with database.reading(leadership.engine) as conn:
        digests = reclassification.list_digests(conn)
    options = {vo: options_for(config, vo) for vo in digests}
    vos = [vo for vo in sorted(digests) if digests[vo] != {options[vo].class_digest}]
    done = leadership.serve_each(vos, lambda vo: _reclassify_vo(leadership, vo, options[vo]))
    return sum(done.values())


def _reclassify_vo(leadership: Leadership, vo: str, options: VoOptions) -> int:
    done = after = 0
    while True:
        with database.reading(leadership.engine) as conn:
            found = reclassification.list_outdated(conn, vo, options, after=after, most=_MOST_CLASSES)
        if not found:
            return done
        known = {class_id: before for class_id, before in found if before is not None}
        leadership.repeat(
            partial(
                reclassification.derive_again,
                known=known,
                options=options,
                now=leadership.now,
                most=_MOST_JOBS,
            ),
            most=_MOST_JOBS,
            rounds=_MOST_ROUNDS,
        )
        done += len(known)
        after = found[-1][0]


NAME: Final = "pools"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolResult:
    """Numbers of one cycle."""

    vos: tuple[str, ...] = ()  #: whose pools were refreshed
    resolved: int = 0  #: pools that were compared
    changed: int = 0  #: those whose mapping changed
    jobs_updated: int = 0  #: waiting jobs whose minor status was changed
    reclassified: int = 0  #: requirement classes that were derived again
    removed: int = 0  #: unused pools
    broken: tuple[str, ...] = ()  #: VOs whose work failed

    def __bool__(self) -> bool:
        return bool(self.changed or self.jobs_updated or self.reclassified or self.removed or self.broken)


def cycle(engine: Engine, config: Configuration, *, now: datetime, holder: str) -> PoolResult | None:
    """Update outdated VOs, the minor status of their jobs, and remove unused pools; None: not the leader."""
    with leader.lead(engine, NAME, holder=holder, now=now) as leadership:
        if leadership is None:
            return None
        config = config.at_moment(now)
        vos = _list_outdated(leadership, config)
        with database.reading(engine) as conn:
            # Before any is refreshed: an earlier cycle may have been killed before it updated their jobs.
            unreported = frozenset(pools.list_refreshed(conn, leadership.last))
        refreshed = leadership.serve_each(
            vos,
            lambda vo: refresh_vo(leadership, config, vo, whole=vos[vo]),
        )
        changes = refreshed.values()
        if vos or _is_new_minute(leadership.last, now) or _classified.get(engine) != config.version:
            moved = reclassify(leadership, config)
            _classified[engine] = config.version
        else:
            moved = 0
        seen = (pool_id for change in changes for pool_id, each in change.items() if each.shows)
        updated = update_minor_status(leadership, unreported.union(seen))
        removed = 0
        if _is_new_minute(leadership.last, now):
            with database.reading(engine) as conn:
                of_vos = pools.list_vos(conn)
            deleted = leadership.serve_each(of_vos, lambda vo: _delete_unused(leadership, config, vo))
            removed = sum(deleted.values())
        return PoolResult(
            vos=tuple(vos),
            resolved=sum(map(len, changes)),
            changed=sum(1 for change in changes for each in change.values() if each),
            jobs_updated=updated,
            reclassified=moved,
            removed=removed,
            broken=tuple(sorted(leadership.broken)),
        )


def _list_outdated(leadership: Leadership, config: Configuration) -> Mapping[str, bool]:
    """Return the VOs with work to do; True: all their pools, False: only pools without a mapping.

    All pools: classes or mappings are not those of the configuration, or were computed too long ago.
    """
    with database.reading(leadership.engine) as conn:
        standings = queue_class_store.read_states(conn)
        unmapped = pools.list_vos_with_unmapped(conn)
    ours = (config.version, config.expiries)
    since = leadership.serve_each(
        standings,
        lambda vo: leadership.now - timedelta(seconds=options_for(config, vo).pools.refresh_interval),
    )
    whole = {vo for vo, moment in since.items() if not standings[vo].is_of(ours, refreshed_after=moment)}
    of_newer = {vo for vo, standing in standings.items() if standing.version > ours}
    new = unmapped - standings.keys()
    return {vo: vo in whole | new for vo in sorted((whole | unmapped) - of_newer)}


def _delete_unused(leadership: Leadership, config: Configuration, vo: str) -> int:
    before = leadership.now - timedelta(seconds=options_for(config, vo).pools.grace_time)
    with leadership.writing() as conn:
        return len(pools.delete_unused(conn, vo=vo, before=before, now=leadership.now))


def _is_new_minute(last: datetime | None, now: datetime) -> bool:
    return last is None or abs(now - last) >= timedelta(minutes=1) or last.minute != now.minute
