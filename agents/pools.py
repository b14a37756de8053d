"""The pool agent: keeps the mapping of SubmitPools to queues in step with the configuration.

A change of the configuration is followed at once, and so is the expiry of dynamic attributes; everything
is computed anew at intervals, and pools that nothing has used for a while go.

Source: RFC #7.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Engine

from agents import pool_jobs, pool_mappings, turn
from agents.turn import Turn
from cs_config.configuration import Configuration
from cs_config.operations import operations
from optimizers import eligibility
from taskqueue import database, pool_refresh, pools

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
    mine = turn.take(engine, NAME, holder=holder, now=now)
    if mine is None:
        return None
    config = config.at(now)
    vos = _behind(mine, config)
    untold = pool_jobs.untold(mine)
    refreshed = mine.serve_each(
        vos,
        lambda vo: pool_mappings.refresh(mine, eligibility.of_configuration(config), vo, whole=vos[vo]),
    )
    changes = refreshed.values()
    seen = (pool_id for change in changes for pool_id, each in change.items() if each.shows)
    told = pool_jobs.tell(mine, untold.union(seen))
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


def _behind(mine: Turn, config: Configuration) -> Mapping[str, bool]:
    """VOs with work to do, and whether it is with all their pools; else with those that are not mapped yet.

    With all: queue classes or mappings are not those of the configuration, or were computed long ago.
    """
    with database.reading(mine.engine) as conn:
        standings = pool_refresh.standings(conn)
        unmapped = pool_refresh.vos_with_unmapped(conn)
    ours = (config.version, config.expiries)
    since = mine.serve_each(standings, lambda vo: mine.now - _interval(config, vo))
    whole = {vo for vo, moment in since.items() if not standings[vo].is_of(ours, refreshed_after=moment)}
    of_newer = {vo for vo, standing in standings.items() if standing.version > ours}
    new = unmapped - standings.keys()
    return {vo: vo in whole | new for vo in sorted((whole | unmapped) - of_newer)}


def _interval(config: Configuration, vo: str) -> timedelta:
    return timedelta(seconds=operations(config, vo).pools.refresh_interval)


def _remove_unused(mine: Turn, config: Configuration) -> int:
    before = mine.now - timedelta(seconds=operations(config, None).pools.grace_time)
    with mine.writing() as conn:
        return len(pools.delete_unused(conn, before=before, now=mine.now))


def _is_new_minute(last: datetime | None, now: datetime) -> bool:
    """Whether what is worth looking at once a minute is to be looked at."""
    return last is None or abs(now - last) >= timedelta(minutes=1) or last.minute != now.minute
