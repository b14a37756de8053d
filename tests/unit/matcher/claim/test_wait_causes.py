from datetime import UTC, datetime, timedelta
from random import Random
from threading import Lock
from types import SimpleNamespace
from typing import cast

import pytest

from cs_config.options.place_limits import RunningLimit
from matcher.claim import wait_causes
from matcher.claim.snapshot import Snapshot
from matcher.claim.wait_causes import WaitCauseRecorder
from matcher.index.waiting import Candidates, IndexChanges, WaitingIndex
from matcher.limits.job_groups import JobGroupCache
from matcher.limits.place_policy import PlacePolicy
from matcher.limits.running_limits import PlaceRule, RunningLimitState
from requirements.requirement_class import RequirementClass
from requirements.resource import Location, Resource
from taskqueue.task_queues.change_feed import FeedPosition
from taskqueue.task_queues.task_queues import TaskQueue

START = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def queues(*ids: int) -> list[TaskQueue]:
    asked = RequirementClass(vo="cms", cpu_time=60)
    return [
        TaskQueue(
            task_queue_id=number,
            class_id=1,
            requirement_class=asked,
            vo="cms",
            owner="ada",
            owner_group="cms_user",
            priority=1.0,
            family=1,
        )
        for number in ids
    ]


def test_looks_that_follow_each_other_are_one_time():
    seen = WaitCauseRecorder()
    for seconds in (0, 20, 40, 200):
        seen.note("limits", queues(1), at(seconds))
    found = seen.due(at(200))
    assert [(each.since, each.until) for each in found] == [(at(0), at(70)), (at(200), at(230))]
    seen.written()
    assert seen.due(at(1000), at_end=True) == ()


def test_what_was_seen_before_the_clock_was_set_back_is_written():
    seen = WaitCauseRecorder()
    seen.note("limits", queues(1), at(86_400))
    assert len(seen.due(at(0))) == 1


def test_the_same_question_is_noted_once_in_ten_seconds():
    seen = WaitCauseRecorder()
    assert [seen.is_due("q", at(seconds)) for seconds in (0, 5, 10, 15)] == [True, False, True, False]
    assert seen.is_due("another", at(15))


def test_an_answer_that_tells_nothing_of_the_cause_is_not_kept():
    seen = WaitCauseRecorder()
    seen.note("no_task_queue", queues(1), at(0))
    assert seen.due(at(100), at_end=True) == ()


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wait_causes, "_MOST", 3)
    seen = WaitCauseRecorder()
    seen.note("banned", queues(1, 2, 3, 4, 5), at(0))
    seen.note("banned", queues(1, 2), at(500))
    assert sorted(each.task_queue_id for each in seen.due(at(500))) == [1, 2, 3]
    for number in range(10):
        assert seen.is_due(number, at(500))
    assert len(seen._recorded_at) <= 4


def candidates(waiting: WaitingIndex, owners: frozenset[str] | None = None) -> Candidates:
    """What a pilot may serve, for some owners or all."""
    resource = Resource(cpu_time=3600, owners=owners)
    return Candidates(waiting, resource, frozenset(), lock=Lock(), random=Random(0))


def test_classes_that_were_noted_a_moment_ago_are_not_noted_again():
    waiting, seen = WaitingIndex(), WaitCauseRecorder()
    waiting.apply(IndexChanges(position=FeedPosition(history=(), low=0, high=0), occupied=queues(1, 2)))
    ada, any_owner = candidates(waiting, owners=frozenset({"ada"})), candidates(waiting)
    ends = []
    for pilot, seconds in ((ada, 0), (any_owner, 1), (any_owner, 2), (any_owner, 11)):
        seen.note("limits", pilot, at(seconds))
        ends.append([each.until for each in seen._open.values()])
    # One owner's task queues do not stand for the class; the others do, for ten seconds.
    assert ends == [[at(30)] * 2, [at(31)] * 2, [at(31)] * 2, [at(41)] * 2]


@pytest.mark.parametrize(("there", "lists"), [(4, False), (5, True)])
def test_all_task_queues_are_looked_at_only_where_a_limit_is_reached(there: int, lists: bool) -> None:
    limit = RunningLimit(scope="a", attribute="JobType", value="x", most=5)
    rule = PlaceRule(limit=limit, vo=None, exempt=frozenset())
    state = RunningLimitState(rule=rule, limit=limit, there=there)
    gate = PlacePolicy((), [state], banned=False, kinds=JobGroupCache())
    assert gate.admits_all is not lists
    waiting = queues(1, 2)
    place = Location(site="a")
    view = cast("Snapshot", SimpleNamespace(conn=None, now=at(0)))
    if not lists:
        assert WaitCauseRecorder().let_in(view, gate, waiting, place) is waiting
