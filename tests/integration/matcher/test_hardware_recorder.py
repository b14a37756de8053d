"""What one process keeps of the hardware that pilots state: bounded, whatever they state."""

import random
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Engine

from matcher import hardware_recorder
from matcher.claim.matcher import Matcher
from matcher.hardware_recorder import HardwareRecorder
from matcher.request.match_request import MatchCaller
from taskqueue.schema.tables import seen_hardware
from tests.support import databases
from tests.support.factories import queued_jobs
from tests.support.factories.queued_jobs import LONG

SITES = frozenset({LONG.site})


@pytest.fixture
def recorder(engine: Engine, now: datetime) -> HardwareRecorder:
    config = queued_jobs.grid(queued_jobs.GRID, 1)
    return HardwareRecorder(engine, Matcher(engine, lambda: config, lambda: now, random.Random(1)))


def count_stored(engine: Engine, recorder: HardwareRecorder) -> int:
    recorder.store()
    return databases.count(engine, seen_hardware)


def ask(recorder: HardwareRecorder, stamp: str | None = None, **stated: object) -> None:
    caller = MatchCaller(subject="pilot", vos=frozenset({"lhcb"}), stamp=stamp)
    recorder.count(queued_jobs.request(caller=caller, **{**queued_jobs.at(LONG), **stated}), SITES)  # type: ignore[arg-type]


def test_unknown_sites_and_texts_that_no_processor_has_are_not_kept(
    engine: Engine, recorder: HardwareRecorder
) -> None:
    ask(recorder, Site="Made.Up.org", NumberOfProcessors=8)
    ask(recorder, CPUFeatures=[f"feature-{number}" for number in range(2000)])
    assert count_stored(engine, recorder) == 0
    ask(recorder, CPUFeatures=[f"feature-{number}" for number in range(500)])
    assert count_stored(engine, recorder) == 1


def test_shapes_of_a_day_are_bounded_also_when_they_are_stored_meanwhile(
    engine: Engine, recorder: HardwareRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware_recorder, "_MOST", 5)
    for number in range(1, 9):
        ask(recorder, NumberOfProcessors=number)
        recorder.store()
    assert count_stored(engine, recorder) == 5


def test_what_a_pilot_has_left_is_no_shape_however_many_pilots_there_are(
    engine: Engine, recorder: HardwareRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware_recorder, "_MOST", 3)
    for stamp in ("a", "b", "c", "d"):
        ask(recorder, stamp, NumberOfProcessors=8)
    for left in (5, 2):
        ask(recorder, "d", NumberOfProcessors=left)
    assert count_stored(engine, recorder) == 1


def test_what_is_stored_twice_at_once_is_stored(
    engine: Engine, recorder: HardwareRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the end of a service, by the thread of the last minute and by that of the minute before."""
    write = hardware_recorder._write_slots

    def write_in_two_threads(*arguments: Any) -> None:
        monkeypatch.setattr(hardware_recorder, "_write_slots", write)
        recorder.store()
        write(*arguments)

    monkeypatch.setattr(hardware_recorder, "_write_slots", write_in_two_threads)
    ask(recorder, "a", NumberOfProcessors=8)
    assert count_stored(engine, recorder) == 1
