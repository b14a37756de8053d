"""The mappings of a VO's pools, brought up to the configuration.

All is computed in memory, and stored in one transaction that shows it at once. From one version to the next
mostly a few queue classes are different: then only the pools that one of these fulfils are looked at. All are
compared where it is not known what the mappings were computed from, and at intervals while nothing changes.
"""

import logging
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from agents.turn import Turn
from cs_config import collector
from cs_config.queue_class_index import EligibleSets, Question, QueueClassIndex
from cs_config.queue_classes import queue_classes as configured_classes
from optimizers.eligibility import Eligibility
from requirements import canonical
from taskqueue import database, mapping, pool_refresh, pools, queue_classes
from taskqueue.mapping import Change
from taskqueue.pool_refresh import Standing

log = logging.getLogger(__name__)

#: By VO, how often in a row the refreshes of this process were overtaken.
_in_vain: Final = Counter[str]()
#: Between two messages about that, the first of which comes with the second time.
_TOLD_AGAIN: Final = 60


class _Overtaken(Exception):
    """Somebody else was faster; nothing of our transaction stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What was found out before the transaction; the slots of new classes are foreseen."""

    standing: Standing | None  #: of the VO then
    index: QueueClassIndex
    new: Mapping[str, EligibleSets]  #: the classes of pools that are not mapped yet
    mapped: frozenset[str]  #: the others, as far as they are to be looked after
    wanted: Mapping[str, EligibleSets]  #: the classes of those that may have others now
    all_wanted: bool  #: whether nothing is known of the others


@collector.paused()
def refresh(mine: Turn, known: Eligibility, vo: str, *, whole: bool) -> Mapping[str, Change]:
    """Map the pools of a VO that are not mapped yet, and correct the others.

    Args:
        mine: The turn.
        known: What is known of the configuration.
        vo: Lower case.
        whole: Whether to look after those that are mapped, too.

    Returns:
        What changed for each pool that was looked at; empty if somebody else was faster: the next cycle will.
    """
    look = _look(mine, known, vo, whole=whole)
    if look.standing is not None and not look.standing.is_ours:
        log.warning("the queue classes of %s are of another release: its pools are mapped anew", vo)
    try:
        changed = _follow(mine, known, vo, look, whole=whole)
    except _Overtaken:
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


def _follow(mine: Turn, known: Eligibility, vo: str, look: _Look, *, whole: bool) -> Mapping[str, Change]:
    """Store what the look found, if all is still as it was then."""
    classes = configured_classes(known.config, vo)
    of = {"config_version": known.config.version, "expiries": known.config.expiries}
    with mine.writing() as conn:
        # Pools that are new before the VO's row, as arriving jobs lock them. No mapping comes after that.
        there = mapping.lock(conn, vo, look.new)
        if pool_refresh.hold(conn, vo) != look.standing:
            raise _Overtaken
        before = known.known_before(vo)
        if not queue_classes.sync(conn, vo=vo, classes=classes, before=before, now=mine.now, **of):
            raise _Overtaken
        if not look.index.slots.items() <= queue_classes.slots(conn, vo).items():
            raise _Overtaken
        new = {pool_id: look.new[pool_id] for pool_id in there}
        stored = _stored(conn, vo, look) if whole else {}
        wanted = _wanted(conn, look, stored)
        changed = mapping.refresh_all(conn, vo=vo, new=new, wanted=wanted, before=stored, now=mine.now, **of)
        if whole:
            pool_refresh.note(conn, vo, now=mine.now)
            queue_classes.prune(conn, vo)
    return changed


def _look(mine: Turn, known: Eligibility, vo: str, *, whole: bool) -> _Look:
    with database.reading(mine.engine) as conn:
        standing = pool_refresh.standings(conn).get(vo)
        slots = queue_classes.slots(conn, vo)
        index = known.index(vo, slots)
        new = frozenset(pool_refresh.unmapped(conn, vo))
        mapped = pool_refresh.mapped(conn, vo) - new if whole else frozenset()
        questions = _questions(conn, index, new | mapped)
    differing = _differing(known, vo, standing, slots)
    concerned = {
        pool_id: question
        for pool_id, question in questions.items()
        if pool_id in mapped and (differing is None or differing.ask(question).eligible)
    }
    return _Look(
        standing=standing,
        index=index,
        new={pool_id: index.ask(questions[pool_id]) for pool_id in new & questions.keys()},
        mapped=mapped,
        wanted={pool_id: index.ask(question) for pool_id, question in concerned.items()},
        all_wanted=differing is None,
    )


def _differing(
    known: Eligibility, vo: str, standing: Standing | None, stored: Container[str]
) -> QueueClassIndex | None:
    """The queue classes that are others than those which all mappings were computed from, where one knows."""
    ours = (known.config.version, known.config.expiries)
    if standing is None or not standing.is_ours or not standing.refreshed == standing.version < ours:
        return None
    before = known.known_before(vo)
    if before is None or any(each.digest not in stored for each in before.classes):
        return None
    return known.differing(vo, standing.refreshed)


def _questions(conn: Connection, index: QueueClassIndex, pool_ids: Iterable[str]) -> dict[str, Question]:
    """What pools ask; those that are gone are left out."""
    found = {pool_id: index.known(pool_id) for pool_id in pool_ids}
    for pool_id, text in pools.originals(conn, [each for each in found if found[each] is None]).items():
        found[pool_id] = index.question_of(pool_id, canonical.from_json(text))
    return {pool_id: question for pool_id, question in found.items() if question is not None}


def _stored(conn: Connection, vo: str, look: _Look) -> dict[str, EligibleSets]:
    """What pools are mapped to that may be mapped to something else, with those that came after the look."""
    if look.all_wanted:
        found = mapping.stored(conn, vo)
    else:
        late = pool_refresh.mapped(conn, vo) - look.mapped
        found = mapping.stored(conn, vo, look.wanted.keys() | late)
    return {pool_id: sets for pool_id, sets in found.items() if pool_id not in look.new}


def _wanted(conn: Connection, look: _Look, stored: Mapping[str, EligibleSets]) -> dict[str, EligibleSets]:
    late = _questions(conn, look.index, stored.keys() - look.wanted.keys())
    return {
        **{pool_id: sets for pool_id, sets in look.wanted.items() if pool_id in stored},
        **{pool_id: look.index.ask(question) for pool_id, question in late.items()},
    }
