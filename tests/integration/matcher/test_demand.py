"""A director learns of the work that would be given at this moment, and of no other."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine

from matcher import demand
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import Matcher
from tests.support import databases
from tests.support.factories import queued_jobs, stored_rows
from tests.support.factories.queued_jobs import LONG

OPTIONS = """
Operations:
  Defaults: {JobScheduling: {RunningLimit: {A.B.ch: {JobGroup: {full: 1}}}}}
  cms: {JobScheduling: {RunningLimit: {A.B.ch: {JobGroup: {full: 5}}}}}
"""
THROTTLE = "\n".join(
    line
    + ("\n      Throttle: {Policy: simple, MaxJobs: 1, Stale: closed}" if line.endswith("A.B.ch:") else "")
    for line in queued_jobs.GRID.splitlines()
)


def _matcher(engine: Engine, now: datetime, text: str) -> Matcher:
    return queued_jobs.matcher(engine, now, queued_jobs.grid(text))


def _put(engine: Engine, now: datetime, count: int, owner: str = "alice", **values: Any) -> list[int]:
    types = frozenset({values["job_type"]} if "job_type" in values else ())
    asked = replace(queued_jobs.EVERYWHERE, job_types=types)
    return queued_jobs.put(engine, now, count, owner=owner, asked=asked, **values)


def _listed(matcher: Matcher) -> list[tuple[str, int, list[int]]]:
    asked = queued_jobs.request(**queued_jobs.at(LONG))
    found = demand.get_matching_task_queues(matcher, asked.presented, asked.caller)
    return [(each.task_queue.owner, each.waiting, list(each.job_ids)) for each in found]


def _given(matcher: Matcher, count: int) -> list[int]:
    look = queued_jobs.serve(matcher, queued_jobs.request(**queued_jobs.at(LONG), count=count))
    return sorted(each.job_id for each in look.claimed)


@pytest.mark.parametrize("cores", [2, 3])
def test_jobs_are_listed_where_the_fewest_cores_that_a_pilot_gives_them_pass_a_limit(
    engine: Engine, now: datetime, cores: int
) -> None:
    asked = replace(queued_jobs.EVERYWHERE, processors_min=3, processors_max=None)
    [job_id] = queued_jobs.put(engine, now, asked=asked)
    limit = OPTIONS.replace("JobGroup: {full: 1}", f"VO: {{lhcb: {{cores: {cores}}}}}")
    matcher = _matcher(engine, now, queued_jobs.GRID + limit)
    asked_for = queued_jobs.request(**queued_jobs.at(LONG), NumberOfProcessors=8, count=8)
    found = demand.get_matching_task_queues(matcher, asked_for.presented, asked_for.caller)
    given = matcher.serve([asked_for])
    assert [list(each.job_ids) for each in found] == ([[job_id]] if cores == 3 else [])
    assert [len(each.claimed) for each in given if isinstance(each, ClaimResult)] == [cores == 3]


def test_jobs_over_a_running_limit_are_not_listed(engine: Engine, now: datetime) -> None:
    matcher = _matcher(engine, now, queued_jobs.GRID + OPTIONS)
    full = _put(engine, now, 3, job_group="full")
    free = _put(engine, now, 2, job_group="free")
    only_full = _put(engine, now, 2, owner="bob", job_group="full")
    assert _listed(matcher) == [("alice", 5, full + free), ("bob", 2, only_full)]
    assert len(_given(matcher, 9)) == 3, "one that is limited, and the others"
    assert _listed(matcher) == []
    assert _given(matcher, 1) == []


def test_a_list_is_bounded_and_read_in_few_statements(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "MOST", 3)
    matcher = _matcher(engine, now, queued_jobs.GRID)
    for number in range(5):
        _put(engine, now, 2, owner=f"user{number}", job_group="free")
    matcher.refresh()
    statements = databases.record_statements(engine)
    found = _listed(matcher)
    assert [(waiting_jobs, len(job_ids)) for _, waiting_jobs, job_ids in found] == [(2, 2)] * 3
    assert sum("waiting_jobs" in each for each in statements) == 2


def test_what_is_listed_is_what_is_given(engine: Engine, now: datetime) -> None:
    matcher = _matcher(engine, now, queued_jobs.GRID + OPTIONS)
    [first] = _put(engine, now, 1, job_group="full")
    assert _given(matcher, 1) == [first]
    _put(engine, now, 3, job_group="full")
    free = _put(engine, now, 2, job_group="free")
    _put(engine, now, 2, owner="bob", job_group="full")
    assert _listed(matcher) == [("alice", 2, free)]
    assert _given(matcher, 9) == free


def test_a_banned_site_is_offered_tests_only(engine: Engine, now: datetime) -> None:
    matcher = _matcher(engine, now, queued_jobs.GRID)
    _put(engine, now, 2, job_type="User")
    tests = _put(engine, now, 1, owner="bob", job_type="Test")
    stored_rows.ban(engine, now, until=now + timedelta(hours=1))
    assert _listed(matcher) == [("bob", 1, tests)]


def test_a_throttled_site_is_offered_nothing(engine: Engine, now: datetime) -> None:
    _put(engine, now, 1, job_type="User")
    assert _listed(_matcher(engine, now, queued_jobs.GRID)) != []
    assert _listed(_matcher(engine, now, THROTTLE)) == []
