"""Pool agent: keeps the mapping of SubmitPools to queues in step with the configuration.

A change of the configuration is applied at once, and so is the expiry of dynamic attributes. All pools are
recomputed at intervals, and unused pools are removed.

The mappings of a VO are computed in memory and stored in one transaction. Between two versions usually a
few queue classes differ: then only pools that match one of these are compared. All pools are compared
where it is unknown which version the stored mappings were computed from, and at intervals.

The minor status of waiting jobs says whether some queue is eligible for them; it is updated as soon as
that changes.

Source: RFC #7.
"""

import logging
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, Engine

from agents import leader
from agents.leader import Leadership
from cs_config import gc_tuning
from cs_config.classes.class_index import EligibleSets, QueueClassIndex, RequirementQuestion
from cs_config.classes.queue_classes import queue_classes as configured_classes
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from optimizers.chain import eligibility
from optimizers.chain.chain import NO_ELIGIBLE_QUEUE, WAITS_FOR_PILOT
from optimizers.chain.eligibility import Eligibility
from requirements import canonical
from taskqueue.db import database
from taskqueue.jobs import unmatchable
from taskqueue.pools import mapping, pools, queue_class_store, refresh
from taskqueue.pools.mapping import MappingChange
from taskqueue.pools.refresh import RefreshState

log = logging.getLogger(__name__)

#: By VO, how often in a row the refreshes of this process were overtaken.
_in_vain: Final = Counter[str]()
#: Between two messages about that, the first of which comes with the second time.
_TOLD_AGAIN: Final = 60


class _OvertakenError(Exception):
    """Somebody else was faster; nothing of our transaction stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """What was found out before the transaction; the slots of new classes are foreseen."""

    standing: RefreshState | None  #: of the VO then
    index: QueueClassIndex
    new: Mapping[str, EligibleSets]  #: the classes of pools that are not mapped yet
    mapped: frozenset[str]  #: the others, as far as they are to be looked after
    wanted: Mapping[str, EligibleSets]  #: the classes of those that may have others now
    all_wanted: bool  #: whether nothing is known of the others


@gc_tuning.pause_collection()
def refresh_vo(mine: Leadership, known: Eligibility, vo: str, *, whole: bool) -> Mapping[str, MappingChange]:
    """Map the pools of a VO that are not mapped yet, and correct the others.

    Args:
        mine: The turn.
        known: What is known of the configuration.
        vo: Lower case.
        whole: Whether to look after those that are mapped, too.

    Returns:
        What changed for each pool that was looked at; empty if somebody else was faster: the next cycle will.
    """
    look = _compare(mine, known, vo, whole=whole)
    if look.standing is not None and not look.standing.is_ours:
        log.warning("the queue classes of %s are of another release: its pools are mapped anew", vo)
    try:
        changed = _store(mine, known, vo, look, whole=whole)
    except _OvertakenError:
        _in_vain[vo] += 1
        if _in_vain[vo] % _TOLD_AGAIN == 2:
            _log_overtaken(known, vo)
        return {}
    _in_vain.pop(vo, None)
    return changed


def _log_overtaken(known: Eligibility, vo: str) -> None:
    """Overtaken once is nothing; again and again, nothing is mapped any more."""
    log.warning(
        "the pools of %s could not be mapped %d times in a row: the stored queue classes are not those that "
        "this process computes from version %d of the configuration, and new pools of the VO stay without "
        "queues; does another release run, or was a database restored without `pilotage db recover`?",
        vo,
        _in_vain[vo],
        known.config.version,
    )


def _store(
    mine: Leadership, known: Eligibility, vo: str, look: _Comparison, *, whole: bool
) -> Mapping[str, MappingChange]:
    """Store what the look found, if all is still as it was then."""
    classes = configured_classes(known.config, vo)
    of = {"config_version": known.config.version, "expiries": known.config.expiries}
    with mine.writing() as conn:
        # Pools that are new before the VO's row, as arriving jobs lock them. No mapping comes after that.
        there = mapping.lock_pools(conn, vo, look.new)
        if refresh.lock_state(conn, vo) != look.standing:
            raise _OvertakenError
        before = known.find_earlier(vo)
        if not queue_class_store.store_classes(
            conn, vo=vo, classes=classes, before=before, now=mine.now, **of
        ):
            raise _OvertakenError
        if not look.index.slots.items() <= queue_class_store.read_slots(conn, vo).items():
            raise _OvertakenError
        new = {pool_id: look.new[pool_id] for pool_id in there}
        stored = _read_stored(conn, vo, look) if whole else {}
        wanted = _compute_wanted(conn, look, stored)
        changed = mapping.refresh_mappings(
            conn, vo=vo, new=new, wanted=wanted, before=stored, now=mine.now, **of
        )
        if whole:
            refresh.record_refresh(conn, vo, now=mine.now)
            queue_class_store.prune_classes(conn, vo)
    return changed


def _compare(mine: Leadership, known: Eligibility, vo: str, *, whole: bool) -> _Comparison:
    with database.reading(mine.engine) as conn:
        standing = refresh.read_states(conn).get(vo)
        slots = queue_class_store.read_slots(conn, vo)
        index = known.index(vo, slots)
        new = frozenset(refresh.list_unmapped(conn, vo))
        mapped = refresh.list_mapped(conn, vo) - new if whole else frozenset()
        questions = _read_questions(conn, index, new | mapped)
    differing = _find_changed_classes(known, vo, standing, slots)
    concerned = {
        pool_id: question
        for pool_id, question in questions.items()
        if pool_id in mapped and (differing is None or differing.ask(question).eligible)
    }
    return _Comparison(
        standing=standing,
        index=index,
        new={pool_id: index.ask(questions[pool_id]) for pool_id in new & questions.keys()},
        mapped=mapped,
        wanted={pool_id: index.ask(question) for pool_id, question in concerned.items()},
        all_wanted=differing is None,
    )


def _find_changed_classes(
    known: Eligibility, vo: str, standing: RefreshState | None, stored: Container[str]
) -> QueueClassIndex | None:
    """The queue classes that are others than those which all mappings were computed from, where one knows."""
    ours = (known.config.version, known.config.expiries)
    if standing is None or not standing.is_ours or not standing.refreshed == standing.version < ours:
        return None
    before = known.find_earlier(vo)
    if before is None or any(each.digest not in stored for each in before.classes):
        return None
    return known.differing(vo, standing.refreshed)


def _read_questions(
    conn: Connection, index: QueueClassIndex, pool_ids: Iterable[str]
) -> dict[str, RequirementQuestion]:
    """What pools ask; those that are gone are left out."""
    found = {pool_id: index.find_answer(pool_id) for pool_id in pool_ids}
    for pool_id, text in pools.read_originals(conn, [each for each in found if found[each] is None]).items():
        found[pool_id] = index.question_of(pool_id, canonical.from_json(text))
    return {pool_id: question for pool_id, question in found.items() if question is not None}


def _read_stored(conn: Connection, vo: str, look: _Comparison) -> dict[str, EligibleSets]:
    """What pools are mapped to that may be mapped to something else, with those that came after the look."""
    if look.all_wanted:
        found = mapping.read_mappings(conn, vo)
    else:
        late = refresh.list_mapped(conn, vo) - look.mapped
        found = mapping.read_mappings(conn, vo, look.wanted.keys() | late)
    return {pool_id: sets for pool_id, sets in found.items() if pool_id not in look.new}


def _compute_wanted(
    conn: Connection, look: _Comparison, stored: Mapping[str, EligibleSets]
) -> dict[str, EligibleSets]:
    late = _read_questions(conn, look.index, stored.keys() - look.wanted.keys())
    return {
        **{pool_id: sets for pool_id, sets in look.wanted.items() if pool_id in stored},
        **{pool_id: look.index.ask(question) for pool_id, question in late.items()},
    }


_STATUS_SOURCE = "PoolAgent"


def list_unreported(mine: Leadership) -> frozenset[str]:
    """Pools resolved since the last cycle that noted its end: a killed one may not have told their jobs.

    Asked before the cycle resolves any itself.
    """
    with database.reading(mine.engine) as conn:
        return frozenset(refresh.list_refreshed(conn, mine.last))


def update_minor_status(mine: Leadership, pool_ids: frozenset[str]) -> int:
    """Correct the minor status of waiting jobs in pools that may have eligible queues now, or no more.

    Returns:
        How many jobs were told.
    """
    with database.reading(mine.engine) as conn:
        resolved = unmatchable.read_has_queue(conn, pool_ids)
        wrong = {
            pool_id: has_queue
            for has_queue in (True, False)
            for pool_id in unmatchable.find_pools_with_status(
                conn,
                [pool_id for pool_id, has in resolved.items() if has is has_queue],
                NO_ELIGIBLE_QUEUE,
                saying=has_queue,
            )
        }
    return sum(
        _update_pool(mine, pool_id, has_queue=has_queue) for pool_id, has_queue in sorted(wrong.items())
    )


def _update_pool(mine: Leadership, pool_id: str, *, has_queue: bool) -> int:
    right = WAITS_FOR_PILOT if has_queue else NO_ELIGIBLE_QUEUE
    told = after = 0
    while True:
        with database.reading(mine.engine) as conn:
            job_ids = unmatchable.list_waiting_jobs(
                conn, pool_id, NO_ELIGIBLE_QUEUE, saying=has_queue, after=after
            )
        if not job_ids:
            return told
        with mine.writing() as conn:
            # Another refresh may have come in between.
            if unmatchable.read_has_queue(conn, [pool_id]).get(pool_id) is not has_queue:
                return told
            told += unmatchable.set_minor_status(conn, job_ids, right, source=_STATUS_SOURCE, now=mine.now)
        after = job_ids[-1]


NAME: Final = "pools"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolResult:
    """What a cycle did."""

    vos: tuple[str, ...] = ()  #: whose pools were looked after
    resolved: int = 0  #: pools computed anew: those that the change may concern
    changed: int = 0  #: those of them with another mapping now
    jobs_told: int = 0  #: waiting jobs whose minor status was changed
    removed: int = 0  #: pools that nothing used any more
    broken: tuple[str, ...] = ()  #: VOs that were not looked after because of an error

    def __bool__(self) -> bool:
        return bool(self.changed or self.jobs_told or self.removed or self.broken)


def cycle(engine: Engine, config: Configuration, *, now: datetime, holder: str) -> PoolResult | None:
    """Bring behind VOs up to the configuration, tell their jobs, remove what is not used.

    Args:
        engine: The database.
        config: The current configuration.
        now: The time.
        holder: This process, by a name that no other ever has.

    Returns:
        None: another process does this now.
    """
    mine = leader.acquire(engine, NAME, holder=holder, now=now)
    if mine is None:
        return None
    config = config.at_moment(now)
    vos = _list_outdated(mine, config)
    untold = list_unreported(mine)
    refreshed = mine.serve_each(
        vos,
        lambda vo: refresh_vo(mine, eligibility.eligibility_of(config), vo, whole=vos[vo]),
    )
    changes = refreshed.values()
    seen = (pool_id for change in changes for pool_id, each in change.items() if each.shows)
    told = update_minor_status(mine, untold.union(seen))
    removed = _remove_unused(mine, config) if _is_new_minute(mine.last, now) else 0
    mine.finish()
    return PoolResult(
        vos=tuple(vos),
        resolved=sum(map(len, changes)),
        changed=sum(1 for change in changes for each in change.values() if each),
        jobs_told=told,
        removed=removed,
        broken=tuple(vo for vo in vos if vo not in refreshed),
    )


def _list_outdated(mine: Leadership, config: Configuration) -> Mapping[str, bool]:
    """VOs with work to do, and whether it is with all their pools; else with those that are not mapped yet.

    With all: queue classes or mappings are not those of the configuration, or were computed long ago.
    """
    with database.reading(mine.engine) as conn:
        standings = refresh.read_states(conn)
        unmapped = refresh.list_vos_with_unmapped(conn)
    ours = (config.version, config.expiries)
    since = mine.serve_each(standings, lambda vo: mine.now - _get_interval(config, vo))
    whole = {vo for vo, moment in since.items() if not standings[vo].is_of(ours, refreshed_after=moment)}
    of_newer = {vo for vo, standing in standings.items() if standing.version > ours}
    new = unmapped - standings.keys()
    return {vo: vo in whole | new for vo in sorted((whole | unmapped) - of_newer)}


def _get_interval(config: Configuration, vo: str) -> timedelta:
    return timedelta(seconds=options_for(config, vo).pools.refresh_interval)


def _remove_unused(mine: Leadership, config: Configuration) -> int:
    before = mine.now - timedelta(seconds=options_for(config, None).pools.grace_time)
    with mine.writing() as conn:
        return len(pools.delete_unused(conn, before=before, now=mine.now))


def _is_new_minute(last: datetime | None, now: datetime) -> bool:
    """Whether what is worth looking at once a minute is to be looked at."""
    return last is None or abs(now - last) >= timedelta(minutes=1) or last.minute != now.minute
