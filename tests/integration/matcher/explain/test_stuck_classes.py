"""Waiting jobs of classes that no queue fits, whatever keeps them from it."""

from datetime import datetime

import pytest
from sqlalchemy import Engine

from matcher.explain import stuck_classes
from matcher.explain.stuck_classes import StuckWork
from optimizers.chain import batch
from taskqueue.db import database
from taskqueue.jobs import unmatchable
from tests.support.factories import stored_rows
from tests.support.factories.submitted_jobs import grid, submit


def _find(engine: Engine, *, vos: frozenset[str] | None = None, most: int = 100) -> StuckWork | None:
    with database.reading(engine) as conn:
        pools = frozenset(unmatchable.list_stuck_pools(conn, vos))
        return stuck_classes.find_stuck(conn, grid(), vos, without_pools=pools, most=most)


def _wait(engine: Engine, now: datetime, *sources: dict[str, object]) -> list[int]:
    ids = submit(engine, grid(), now, *sources)
    batch.optimize(engine, grid(), ids, now=now)
    return ids


NOWHERE = {"Executable": "a", "GPUs": 4}


def test_jobs_that_no_queue_fits_are_counted_with_the_reason(engine: Engine, now: datetime) -> None:
    _wait(engine, now, {"Executable": "a"})
    assert _find(engine) is None
    first, second, third = _wait(engine, now, NOWHERE, NOWHERE, {**NOWHERE, "GPUs": 5})
    found = _find(engine)
    assert found is not None
    assert (found.vos, found.classes, found.jobs, found.first_job) == ({"lhcb"}, 2, 3, first)
    assert found.why.startswith("no queue is eligible: ")
    assert found.why.endswith("fail GPUs, at least 4")
    assert _find(engine) == found, "also when it is known"
    counted = _find(engine, most=2)
    assert counted is not None
    assert counted.jobs == 2
    stored_rows.kill(engine, now, third)
    left = _find(engine)
    assert left is not None
    assert (left.classes, left.jobs) == (1, 2)
    stored_rows.kill(engine, now, first, second)
    assert _find(engine) is None


def test_a_pool_with_queues_whose_jobs_state_more_is_found_and_one_without_is_left_out(
    engine: Engine, now: datetime
) -> None:
    [both, _] = _wait(
        engine,
        now,
        {**NOWHERE, "Requirements": {"Memory": 2000}},
        {"Executable": "a", "Requirements": {"Memory": 900_000}},
    )
    found = _find(engine)
    assert found is not None
    assert (found.jobs, found.first_job) == (1, both)


def test_a_class_of_more_work_than_a_request_may_do_does_not_keep_those_after_it_unknown(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck_classes, "QUEUE_REPORT", 0)
    _wait(engine, now, {**NOWHERE, "GPUs": 40}, {**NOWHERE, "GPUs": 50})
    config = grid()
    with database.reading(engine) as conn:
        found = [
            stuck_classes.find_stuck(conn, config, None, without_pools=frozenset(), most=100)
            for _ in range(2)
        ]
    assert [each and each.classes for each in found] == [1, 2]


def test_jobs_of_other_vos_are_left_out(engine: Engine, now: datetime) -> None:
    _wait(engine, now, NOWHERE)
    assert _find(engine, vos=frozenset({"cms"})) is None
    assert _find(engine, vos=frozenset({"lhcb"})) is not None
