"""The pool agent: keeps the mapping of SubmitPools to queues in step with the configuration.

A change of the configuration is followed at once, and so is the expiry of dynamic attributes; everything
is computed anew at intervals, and pools that nothing has used for a while go.

Source: RFC #7.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Engine

from agents import pool_jobs, turn
from agents.turn import Turn
from cs_config import collector
from cs_config.configuration import Configuration
from cs_config.operations import operations
from cs_config.queue_class_index import Question, QueueClassIndex
from cs_config.queue_classes import queue_classes as configured_classes
from optimizers import eligibility
from optimizers.eligibility import Eligibility
from requirements import canonical
from taskqueue import database, mapping, pool_refresh, pools, queue_classes

NAME: Final = "pools"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolResult:
    """What a cycle did."""

    vos: tuple[str, ...] = ()  #: whose pools were computed anew
    resolved: int = 0  #: pools computed anew
    changed: int = 0  #: those of them with another mapping now
    jobs_told: int = 0  #: waiting jobs whose minor status was changed
    removed: int = 0  #: pools that nothing used any more

    def __bool__(self) -> bool:
        return bool(self.changed or self.jobs_told or self.removed)


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
    mine = turn.take(engine, NAME, holder=holder, now=now)
    if mine is None:
        return None
    config = config.at(now)
    vos = _behind(engine, config, now)
    untold = pool_jobs.untold(mine)
    changes = [_refresh(mine, config, vo) for vo in vos]
    seen = (pool_id for change in changes for pool_id, each in change.items() if each.shows)
    told = pool_jobs.tell(mine, untold.union(seen))
    removed = _remove_unused(mine, config) if _is_new_minute(mine.last, now) else 0
    mine.finish()
    return PoolResult(
        vos=vos,
        resolved=sum(map(len, changes)),
        changed=sum(1 for change in changes for each in change.values() if each),
        jobs_told=told,
        removed=removed,
    )


def _behind(engine: Engine, config: Configuration, now: datetime) -> tuple[str, ...]:
    """VOs whose queue classes or pools are not those of the configuration, or were computed long ago."""
    with database.reading(engine) as conn:
        versions = pool_refresh.versions(conn)
        shortest = min(_interval(config, vo) for vo in (None, *versions))
        pools_behind = pool_refresh.vos_behind(
            conn, config_version=config.version, expiries=config.expiries, refreshed_before=now - shortest
        )
    ours = (config.version, config.expiries)
    of_older = {vo for vo, version in versions.items() if version < ours}
    of_newer = {vo for vo, version in versions.items() if version > ours}
    return tuple(sorted((pools_behind | of_older) - of_newer))


def _interval(config: Configuration, vo: str | None) -> timedelta:
    return timedelta(seconds=operations(config, vo).pools.refresh_interval)


def _refresh(mine: Turn, config: Configuration, vo: str) -> dict[str, mapping.Change]:
    """Compute a VO's pools anew and store what is different, all in one transaction.

    The pools are locked before the VO's version, as arriving jobs do it. A pool that arrives meanwhile
    finds the old version or the new one; with the old one the next cycle takes it.
    """
    known = eligibility.of_configuration(config)
    classes = configured_classes(config, vo)
    with collector.paused():
        outdated, index = _outdated(mine, known, vo)
        wanted = {pool_id: index.ask(question) for pool_id, question in outdated.items()}
    of: dict[str, Any] = {"config_version": config.version, "expiries": config.expiries, "now": mine.now}
    with mine.writing() as conn:
        pool_refresh.lock(conn, wanted)
        queue_classes.sync(conn, vo=vo, classes=classes, before=known.known_before(vo), **of)
        changed = mapping.refresh_all(conn, vo=vo, slots=index.slots, wanted=wanted, **of)
        queue_classes.prune(conn, vo)
    return dict(changed or {})


def _outdated(mine: Turn, known: Eligibility, vo: str) -> tuple[dict[str, Question], QueueClassIndex]:
    """What the pools of a VO ask that have to be computed anew, and the index to ask it of.

    The slots of new classes are foreseen; the refresh is off where it turns out that they are others.
    """
    config = known.config
    with database.reading(mine.engine) as conn:
        index = known.index(vo, queue_classes.slots(conn, vo))
        ids = pools.outdated(
            conn,
            vo=vo,
            config_version=config.version,
            expiries=config.expiries,
            refreshed_before=mine.now - _interval(config, vo),
        )
        new = pools.originals(conn, [pool_id for pool_id in ids if index.known(pool_id) is None])
    for pool_id, text in new.items():
        index.question_of(pool_id, canonical.from_json(text))
    return {pool_id: found for pool_id in ids if (found := index.known(pool_id)) is not None}, index


def _remove_unused(mine: Turn, config: Configuration) -> int:
    before = mine.now - timedelta(seconds=operations(config, None).pools.grace_time)
    with mine.writing() as conn:
        return len(pools.delete_unused(conn, before=before, now=mine.now))


def _is_new_minute(last: datetime | None, now: datetime) -> bool:
    """Whether what is worth looking at once a minute is to be looked at."""
    return last is None or abs(now - last) >= timedelta(minutes=1) or last.minute != now.minute
