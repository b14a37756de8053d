"""Counter agent: compares the counters of scopes with the rows that they count, and counts new limits.

Claims subtract from the counters what has ended; where nothing is claimed, because a place is closed or
drained, this agent does.
"""

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Engine

from agents import leader
from cs_config.tree.configuration import Configuration
from matcher.limits import compiled_rules
from matcher.limits.compiled_rules import RuleFollower
from taskqueue.db import database
from taskqueue.sites import rule_counters, scope_rules
from taskqueue.sites.rule_counters import CounterDifference

log = logging.getLogger(__name__)

NAME: Final = "scope-counters"
#: Rows a second that comparisons read on average, once they read more than a cycle's share: they cost some
#: hundredths of a core, however many jobs run at places with limits.
_ROWS: Final = 1_000
#: Returns that a scope leaves to its next claim; a closed one would have one for each job that ran.
_LEFT_TO_CLAIMS: Final = 100


@dataclass(slots=True)
class ScopeCountersState:
    """State that a process keeps between two cycles."""

    follower: RuleFollower | None = None
    differing: frozenset[int] = field(default_factory=frozenset)  #: rules that differed in the last cycle
    compared_at: datetime | None = None  #: None: not yet
    pause: timedelta = timedelta()  #: until the next comparison

    def is_due(self, now: datetime) -> bool:
        """Whether counters are to be compared: also if some differed, or after the clock was set back."""
        if self.differing or self.compared_at is None:
            return True
        return not self.compared_at <= now < self.compared_at + self.pause


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeCountersResult:
    """Number of counters that were set right."""

    mended: int = 0

    def __bool__(self) -> bool:
        return bool(self.mended)


def cycle(
    engine: Engine, config: Configuration, *, now: datetime, holder: str, memory: ScopeCountersState
) -> ScopeCountersResult | None:
    """Compare all counters, mend those that differ a second time; None while another process is the leader.

    New limits are counted here as well, if no matcher does: it may have ended after it stored them. `memory`
    is the same object in each cycle of a process.
    """
    with leader.lead(engine, NAME, holder=holder, now=now) as leadership:
        if leadership is None:
            return None
        follower = memory.follower = memory.follower or RuleFollower(engine)
        follower.follow(config.at_moment(now))
        follower.count_new()
        with leadership.writing() as conn:
            scope_rules.delete_stray_returns(conn)
            laden = scope_rules.list_laden(conn, least=_LEFT_TO_CLAIMS)
        for scope in laden:
            with leadership.writing() as conn:
                scope_rules.apply_returns(conn, scope)
        if not memory.is_due(now):
            return ScopeCountersResult()
        with database.reading(engine) as conn:
            rows = rule_counters.count_compared(conn)
            found = {
                each.rule.rule_id: each
                for each in rule_counters.list_differences(conn, compiled_rules.counts)
            }
        wrong = [found[rule_id] for rule_id in sorted(found.keys() & memory.differing)]
        for each in wrong:
            log.error("%s; it is counted again", describe(each))
            with leadership.writing() as conn:
                rule_counters.mend(conn, each.rule, compiled_rules.counts)
        memory.differing = frozenset(found)
        memory.compared_at, memory.pause = now, timedelta(seconds=rows // _ROWS)
        return ScopeCountersResult(mended=len(wrong))


def describe(difference: CounterDifference) -> str:
    """A difference as text for people."""
    rule = difference.rule
    what = f"{rule.kind.value} limit of {rule.attribute}" if rule.attribute else rule.kind.value
    there = difference.there
    if rule.n != there.jobs:
        return f"{rule.scope}: the counter of the {what} is {rule.n}, but {there.jobs} rows count"
    return f"{rule.scope}: the {what} has counted {rule.cores} cores, but its rows have {there.cores}"
