"""The memory of answers by place and cause."""

from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from threading import Lock
from types import SimpleNamespace
from typing import Any, cast

import pytest

from matcher import wait_cause_recorder
from matcher.claim.matcher import Matcher
from matcher.claim.snapshot import Snapshot
from matcher.index.waiting import Candidates, IndexChanges, WaitingIndex
from matcher.request.match_request import MatchCaller, MatchRequest, MatchResult
from matcher.wait_cause_recorder import WaitCauseRecorder
from requirements.requirement_class import RequirementClass
from requirements.resource import Location, Resource, StatedResource
from taskqueue.task_queues.change_feed import FeedPosition
from tests.support.factories.task_queues import make_task_queue

NOW = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)


def _request(site: str) -> MatchRequest:
    presented = StatedResource(resource=Resource(cpu_time=3600), site=site)
    caller = MatchCaller(subject="pilot", vos=frozenset({"cms"}))
    return MatchRequest(presented=presented, caller=caller, deadline=0.0)


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_cause_recorder, "_MOST", 3)
    matcher = cast("Matcher", SimpleNamespace(now=lambda: NOW))
    recorder = WaitCauseRecorder(cast("Any", None), matcher)
    for number in range(10):
        recorder.count(_request(f"S{number}"), MatchResult(reason="limits"))
        recorder.count(_request("S0"), MatchResult(reason="limits"))
    assert [place[0] for place, _ in recorder._answered] == ["S0", "S1", "S2"]


def test_vos_that_a_pilot_invents_are_no_other_place() -> None:
    recorder = WaitCauseRecorder(cast("Any", None), cast("Matcher", SimpleNamespace(now=lambda: NOW)))
    request = _request("S0")
    for number in range(10):
        resource = Resource(cpu_time=3600, vos=frozenset({"cms", f"vo{number}"}))
        presented = replace(request.presented, resource=resource)
        recorder.count(replace(request, presented=presented), MatchResult(reason="limits"))
    recorder.count(request, MatchResult(reason="limits"))
    assert len(recorder._answered) == 1


class _View:
    """The snapshot of an index, at places without limits."""

    def __init__(self, waiting: WaitingIndex) -> None:
        self.waiting = waiting
        self.listed = 0  #: task queues

    def place_now(self, presented: StatedResource, *_: object, **__: object) -> tuple[object, Resource]:
        served = SimpleNamespace(kept_back=(), pools=frozenset(), place=Location(site=presented.site))
        return served, presented.resource

    place = place_now

    def candidates(self, pools: frozenset[str], resource: Resource) -> Candidates:
        return _CountedCandidates(self, self.waiting, resource, pools, lock=Lock(), random=Random(0))

    def admitted(self, _place: object, _resource: object, found: Candidates) -> tuple[Candidates, None]:
        return found, None

    def gate(self, *_: object, **__: object) -> None:
        return None


class _CountedCandidates(Candidates):
    def __init__(self, view: _View, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._view = view

    def iterate_in(self, mask: int) -> Any:
        for each in super().iterate_in(mask):
            self._view.listed += 1
            yield each


def test_a_class_is_listed_once_for_all_places_with_the_same_answer() -> None:
    asked = RequirementClass(vo="cms", cpu_time=60)
    occupied = [make_task_queue(number, asked=asked, class_id=1, family=1) for number in range(100)]
    waiting = WaitingIndex()
    waiting.apply(IndexChanges(position=FeedPosition(history=(), low=0, high=0), occupied=occupied))
    view = _View(waiting)
    answered = [("banned", _request(f"S{number}")) for number in range(50)]
    found = wait_cause_recorder.find_causes(
        cast("Snapshot", view), [*answered, ("its turn", _request("S50"))]
    )
    assert found == {"banned": set(range(100)), "its turn": set(range(100))}
    assert view.listed == 200
