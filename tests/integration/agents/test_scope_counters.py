"""The counter agent: what differs twice is an alarm and mended, and new limits are opened."""

import logging
from datetime import datetime, timedelta
from random import Random

import pytest
from sqlalchemy import Engine, func, select, update

from agents import scope_counters
from agents.scope_counters import ScopeCountersState
from cs_config.tree.configuration import Configuration
from matcher.claim.matcher import Matcher
from matcher.limits import compiled_rules
from taskqueue.db import database
from taskqueue.schema.tables import attempts, scope_returns, scope_rules
from taskqueue.sites import rule_counters, scopes
from taskqueue.sites.scope_rules import RuleKind, list_rules
from tests.support import databases
from tests.support.factories import queued_jobs

THROTTLE = "VO: [lhcb, cms]\n      Throttle: {Policy: level0, MaxSubmittingJobs: 9, Stale: open}"
LIMITS = "Operations: {Defaults: {JobScheduling: {RunningLimit: {A.B.ch: {Owner: {Alice: 5}}}}}}\n"


@pytest.fixture
def config() -> Configuration:
    return queued_jobs.grid(queued_jobs.GRID.replace("VO: [lhcb, cms]", THROTTLE) + LIMITS)


def _claim(engine: Engine, now: datetime, config: Configuration, count: int) -> int:
    matcher = Matcher(engine, lambda: config, lambda: now, Random(1))
    look = queued_jobs.serve(matcher, queued_jobs.request(**queued_jobs.at(queued_jobs.LONG), count=count))
    return len(look.claimed)


def _cycle(
    engine: Engine, now: datetime, config: Configuration, memory: ScopeCountersState
) -> scope_counters.ScopeCountersResult:
    result = scope_counters.cycle(engine, config, now=now, holder="test", memory=memory)
    assert result is not None
    return result


def test_a_counter_that_differs_twice_is_an_alarm_and_counted_again(
    engine: Engine, now: datetime, config: Configuration, caplog: pytest.LogCaptureFixture
) -> None:
    queued_jobs.put(engine, now, 9)
    assert _claim(engine, now, config, 2) == 2
    memory = ScopeCountersState()
    assert not _cycle(engine, now, config, memory)
    databases.execute(engine, update(scope_rules).values(n=4))
    with caplog.at_level(logging.ERROR):
        assert not _cycle(engine, now, config, memory)
        assert not caplog.records
        assert _cycle(engine, now, config, memory).mended == 2
    assert "a.b.ch: the counter of the running limit of Owner is 4, but 2 rows count" in caplog.text
    assert not _cycle(engine, now, config, memory)
    with database.reading(engine) as conn:
        assert not rule_counters.list_differences(conn, compiled_rules.counts)
        assert {each.kind: (each.n, each.opened) for each in list_rules(conn)} == {
            RuleKind.RUNNING: (2, True),
            RuleKind.THROTTLE: (2, True),
        }
        assert rule_counters.count_mended(conn) == 2
    assert _claim(engine, now, config, 9) == 3


def test_a_limit_that_a_dead_matcher_left_closed_is_opened(
    engine: Engine, now: datetime, config: Configuration
) -> None:
    with database.writing(engine) as conn:
        queued_jobs.put(conn, now, 9)
        scopes.lock_scopes(conn, ["A.B.ch"])
        for rules in compiled_rules.list_rules(config).values():
            compiled_rules.scope_rules.insert_rules(conn, rules)
    _cycle(engine, now, config, ScopeCountersState())
    with database.reading(engine) as conn:
        assert [each.opened for each in list_rules(conn)] == [True, True]


@pytest.mark.parametrize("left_to_claims", [3, 4], ids=["as many as are left", "one fewer"])
def test_what_ended_where_nothing_is_claimed_is_subtracted(
    engine: Engine,
    now: datetime,
    config: Configuration,
    monkeypatch: pytest.MonkeyPatch,
    left_to_claims: int,
) -> None:
    monkeypatch.setattr(scope_counters, "_LEFT_TO_CLAIMS", 2 * left_to_claims)  # of two rules
    with database.writing(engine) as conn:
        queued_jobs.put(conn, now, 9)
    assert _claim(engine, now, config, 4) == 4
    with database.writing(engine) as conn:
        ended = update(attempts).where(attempts.c.job_id.in_(select(attempts.c.job_id).limit(3)))
        assert conn.execute(ended.values(closed_at=now, closed_as="finished")).rowcount == 3
    _cycle(engine, now, config, ScopeCountersState())
    with database.reading(engine) as conn:
        left = conn.scalar(select(func.count()).select_from(scope_returns))
        assert not rule_counters.list_differences(conn, compiled_rules.counts)
        counts = {each.n for each in list_rules(conn)}
    assert (left, counts) == ((0, {1}) if left_to_claims == 3 else (6, {4}))
    assert _claim(engine, now, config, 9) == 4  # of five at a time


def test_counters_of_many_attempts_are_compared_less_often(
    engine: Engine, now: datetime, config: Configuration
) -> None:
    queued_jobs.put(engine, now, 9)
    assert _claim(engine, now, config, 2) == 2
    memory = ScopeCountersState()
    _cycle(engine, now, config, memory)
    assert memory.pause == timedelta()
    memory.pause = timedelta(minutes=10)  # of 600,000 attempts
    databases.execute(engine, update(scope_rules).values(n=600_000))
    _cycle(engine, now + timedelta(minutes=9), config, memory)
    assert not memory.differing
    _cycle(engine, now + timedelta(minutes=10), config, memory)
    assert memory.differing
    assert memory.pause >= timedelta(minutes=10)
    assert memory.is_due(now + timedelta(minutes=10))
    assert _cycle(engine, now + timedelta(minutes=10), config, memory).mended
