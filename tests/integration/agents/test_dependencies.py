"""Jobs wait for others, cost nothing meanwhile, and are let go or fail once, whatever is killed."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine

from agents import dependencies
from agents.retention import retention
from optimizers.chain import batch
from optimizers.submit import dependencies as submitted
from requirements.errors import MOST_HINTS, InvalidJob
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.jobs import control, transitions
from taskqueue.jobs import dependencies as stored
from taskqueue.task_queues import task_queues
from tests.support import crashes, databases
from tests.support.factories import stored_rows
from tests.support.factories.submitted_jobs import ANN, grid, job, submit, waiting, way

CONFIG = grid()
DONE, FAILED, KILLED = JobStatus.DONE, JobStatus.FAILED, JobStatus.KILLED


@pytest.fixture(params=databases.LAYOUTS)
def database_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(databases.FIXTURES[request.param])
    return url


def named(name: str, *after: object, **more: object) -> Mapping[str, object]:
    return {"Executable": "a.sh", "JobName": name, "After": list(after), **more}


def run_agent(engine: Engine, now: datetime, holder: str = "me") -> int:
    result = dependencies.cycle(engine, now=now, holder=holder)
    assert result is not None
    return result.decided


def end(engine: Engine, now: datetime, job_ids: Collection[int], status: JobStatus = DONE) -> None:
    """End jobs as a process does that knows nothing of dependencies."""
    with database.writing(engine) as conn:
        task_queues.dequeue(conn, job_ids)
        transitions.move_jobs(
            conn,
            job_ids,
            status,
            minor="ended",
            source="Pilot",
            now=now,
            from_states=frozenset({JobStatus.RECEIVED, JobStatus.CHECKING, JobStatus.WAITING}),
        )


def optimize(engine: Engine, now: datetime, job_ids: Sequence[int]) -> None:
    batch.optimize(engine, CONFIG, job_ids, now=now)


def test_a_job_waits_in_no_task_queue_until_all_before_it_are_done(engine: Engine, now: datetime) -> None:
    first, second = submit(engine, CONFIG, now, named("a"), named("b"))
    ids = submit(engine, CONFIG, now, named("c", first, "d"), named("d"), named("e", "c", second))
    last, middle, lastest = ids
    for job_id in (last, lastest):
        found = job(engine, job_id)
        assert (found.status, found.minor_status) == (JobStatus.CHECKING, "Waits for other jobs")
    assert job(engine, last).application_status == f"after {first}, d"
    optimize(engine, now, [first, second, *ids])
    assert waiting(engine) == [first, second, middle]
    assert run_agent(engine, now) == 0

    end(engine, now, [first])
    assert run_agent(engine, now) == 0
    end(engine, now, [middle, second])
    assert run_agent(engine, now) == 1
    optimize(engine, now, ids)
    assert waiting(engine) == [last]
    assert way(engine, last) == ["Received", "Checking", "Checking", "Waiting"]
    end(engine, now, [last])
    assert run_agent(engine, now) == 1
    optimize(engine, now, ids)
    assert waiting(engine) == [lastest]
    assert run_agent(engine, now) == 0


@pytest.mark.parametrize(
    ("policy", "ends", "expected"),
    [
        ("done", [DONE, DONE], "free"),
        ("done", [DONE, FAILED], "failed"),
        ("done", [KILLED], "failed"),
        ("done", [DONE], "waits"),
        ("ended", [DONE, FAILED], "free"),
        ("ended", [KILLED], "waits"),
        ("any", [FAILED], "free"),
        ("any", [], "waits"),
    ],
)
@pytest.mark.parametrize("is_late", [False, True], ids=["waits", "submitted after the ends"])
def test_the_policy_decides_what_the_ends_of_others_mean(
    engine: Engine, now: datetime, policy: str, ends: list[JobStatus], expected: str, *, is_late: bool
) -> None:
    parents = submit(engine, CONFIG, now, named("a"), named("b"))
    child = named("c", *parents, AfterPolicy=policy)
    ids = [] if is_late else submit(engine, CONFIG, now, child)
    for parent, status in zip(parents, ends, strict=False):
        end(engine, now, [parent], status)
    if is_late:
        run_agent(engine, now)
        ids = submit(engine, CONFIG, now, child)
    assert run_agent(engine, now) == (expected != "waits")
    found = job(engine, ids[0])
    if expected == "failed":
        assert (found.status, found.minor_status) == (FAILED, "A job before it failed")
        assert found.application_status == f"{parents[len(ends) - 1]} is {ends[-1]}"
    else:
        assert (found.status, found.due_at is None) == (JobStatus.CHECKING, expected == "waits")
    assert run_agent(engine, now) == 0


def count_statements(engine: Engine, now: datetime) -> list[str]:
    seen = databases.record_statements(engine)
    run_agent(engine, now)
    return seen


def chain_of(number: int) -> list[Mapping[str, object]]:
    return [named(f"j{n}", *([f"j{n - 1}"] if n else [])) for n in range(number)]


@pytest.mark.parametrize("shape", ["chain", "fan"])
def test_jobs_that_wait_cost_no_statement(engine: Engine, now: datetime, shape: str) -> None:
    run_agent(engine, now)
    idle = len(count_statements(engine, now))
    fan = [named("a"), named("b", "a", Parameters=3000)]
    ids = submit(engine, CONFIG, now, *(fan if shape == "fan" else chain_of(1000)))
    run_agent(engine, now)
    run_agent(engine, now)
    assert len(count_statements(engine, now)) <= idle
    optimize(engine, now, ids[:1])
    assert len(count_statements(engine, now)) <= idle + 10, "changes of the log are read, no job is"
    end(engine, now, ids[:1])
    run_agent(engine, now)
    free = [job_id for job_id in ids if job(engine, job_id).due_at is not None] if shape == "chain" else []
    assert free == ([ids[1]] if shape == "chain" else [])


def test_a_chain_fails_at_once_with_as_many_statements_as_a_short_one(engine: Engine, now: datetime) -> None:
    counts: list[int] = []
    for number in (5, 900):
        ids = submit(engine, CONFIG, now, *chain_of(number))
        run_agent(engine, now)
        end(engine, now, ids[:1], FAILED)
        counts.append(len(count_statements(engine, now)))
        assert {job(engine, each).status for each in ids} == {FAILED}
        assert job(engine, ids[1]).application_status == f"{ids[0]} is Failed"
    assert counts[1] <= counts[0] + 10


def test_many_jobs_before_one_let_it_go_once(engine: Engine, now: datetime) -> None:
    ids = submit(engine, CONFIG, now, named("a", Parameters=500), named("b", "a"))
    for some in (ids[:200], ids[200:499]):
        end(engine, now, some)
        assert run_agent(engine, now) == 0
    end(engine, now, ids[499:500])
    assert run_agent(engine, now) == 1
    assert way(engine, ids[-1]) == ["Received", "Checking", "Checking"]


def test_the_ends_of_many_parents_count_in_parts(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "EDGES_AT_ONCE", 7)
    monkeypatch.setattr(stored, "_DESCRIBED", 1)
    free = named("free", "a", Parameters=5, AfterPolicy="ended")
    ids = submit(engine, CONFIG, now, named("a", Parameters=4), free, named("failing", "a", Parameters=5))
    end(engine, now, ids[:3], KILLED)
    assert run_agents(engine, now) == 5
    with database.reading(engine) as conn:
        assert set(stored.find_waiting(conn, ids)) == {*ids[4:9]}
    assert {job(engine, each).status for each in ids[9:]} == {FAILED}
    end(engine, now, ids[3:4])
    assert run_agents(engine, now) == 5
    assert all(job(engine, each).due_at is not None for each in ids[4:9])


def run_agents(engine: Engine, now: datetime) -> int:
    """Run cycles, each of another process, until one is not behind; how many jobs they decided about."""
    decided = 0
    for number in range(100):
        result = dependencies.cycle(engine, now=now, holder=f"agent {number}", briefly=True)
        assert result is not None
        decided += result.decided
        if not result.is_behind:
            return decided
    raise AssertionError("the agent is behind after 100 cycles")


def test_the_jobs_of_a_vo_with_many_pairs_keep_those_of_others_waiting_for_one_turn(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "EDGES_AT_ONCE", 10)
    many = submit(engine, CONFIG, now, named("a", Parameters=10), named("b", "a", Parameters=10))
    other = replace(ANN, owner="vic", vo="atlas")
    first, second = submit(engine, CONFIG, now, named("a"), named("b", "a"), submitter=other)
    run_agents(engine, now)
    end(engine, now, many[:10])
    end(engine, now, [first])
    result = dependencies.cycle(engine, now=now, holder="me")
    assert result == dependencies.DependenciesResult(decided=1, is_behind=True)
    assert job(engine, second).due_at is not None
    assert run_agents(engine, now + timedelta(minutes=1)) == 10
    assert all(way(engine, each) == ["Received", "Checking", "Checking"] for each in many[10:])


def test_jobs_whose_ends_have_not_counted_stay(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "EDGES_AT_ONCE", 1)
    ids = submit(engine, CONFIG, now, named("a", Parameters=4), named("b", "a"))
    end(engine, now, ids[:4])
    late = now + timedelta(days=400)
    retention.cycle(engine, CONFIG, now=late, holder="me")
    assert [parent.has_ended for parent in parents_of(engine, ids[4])].count(True) == 1
    assert run_agents(engine, late) == 1
    assert {parent.status for parent in parents_of(engine, ids[4])} == {"Done"}


def test_a_long_chain_fails_in_parts(engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "EDGES_AT_ONCE", 20)
    ids = submit(engine, CONFIG, now, *chain_of(100))
    end(engine, now, ids[:1], FAILED)
    decided = [run_agent(engine, now) for _ in range(20)]
    assert sum(decided) == 99
    assert max(decided) <= 40
    assert {job(engine, each).status for each in ids} == {FAILED}


def test_a_kill_between_the_end_and_the_release_loses_nothing_and_releases_nothing_twice(
    engine: Engine, now: datetime
) -> None:
    first, ids = submit(engine, CONFIG, now, named("a"))[0], []
    ids = submit(engine, CONFIG, now, *(named(f"b{n}", first) for n in range(5)))
    run_agent(engine, now)
    end(engine, now, [first])
    for statement in (*range(2, 30), 1000):
        with crashes.killed_at(engine, statement), suppress(crashes.KilledError):
            run_agent(engine, now)
        free = [job(engine, each).due_at is not None for each in ids]
        assert len(set(free)) == 1, "all at once"
    assert all(free)
    assert all(way(engine, each) == ["Received", "Checking", "Checking"] for each in ids)


def test_a_dependent_that_its_user_holds_waits_for_both(engine: Engine, now: datetime) -> None:
    first, second = submit(engine, CONFIG, now, named("a"), named("b", "a"))
    third, fourth = submit(engine, CONFIG, now, named("c"), named("d", "c"))
    with database.writing(engine) as conn:
        control.hold_jobs(conn, [second, fourth], source="ann", now=now)
        control.release_jobs(conn, [second], source="ann", now=now)
    assert job(engine, second).minor_status == "Waits for other jobs"
    end(engine, now, [first, third])
    assert run_agent(engine, now) == 1
    assert job(engine, second).due_at is not None
    assert job(engine, fourth).minor_status == "Held"
    with database.writing(engine) as conn:
        control.release_jobs(conn, [fourth], source="ann", now=now)
    assert job(engine, fourth).due_at is not None


def test_a_dependent_that_failed_and_was_reset_waits_for_none_after_a_hold(
    engine: Engine, now: datetime
) -> None:
    first, _, last = submit(engine, CONFIG, now, named("a"), named("b"), named("c", "a", "b"))
    end(engine, now, [first], FAILED)
    assert run_agent(engine, now) == 1
    with database.writing(engine) as conn:
        assert control.reset_jobs(conn, [last], source="ann", now=now) == [last]
        assert control.hold_jobs(conn, [last], source="ann", now=now) == [last]
        assert control.release_jobs(conn, [last], source="ann", now=now) == [last]
    released = job(engine, last)
    assert (released.minor_status, released.due_at) == ("Released", now)


def test_a_dependent_that_was_reset_and_is_held_does_not_fail_with_another_parent(
    engine: Engine, now: datetime
) -> None:
    ids = submit(engine, CONFIG, now, named("a"), named("b"), named("c", "a", "b"), named("d", "c"))
    first, second, held, after_it = ids
    end(engine, now, [first], FAILED)
    run_agent(engine, now)
    with database.writing(engine) as conn:
        # In the same span: what fails with the first parent was not read yet.
        assert control.reset_jobs(conn, [held], source="ann", now=now) == [held]
        assert control.hold_jobs(conn, [held], source="ann", now=now) == [held]
    end(engine, now, [second], FAILED)
    assert run_agent(engine, now) == 0
    assert job(engine, held).minor_status == "Held"
    assert job(engine, after_it).status is FAILED  # with the first one, before the reset


def test_a_parent_that_is_done_and_deleted_at_once_was_done(engine: Engine, now: datetime) -> None:
    ids = submit(engine, CONFIG, now, named("a"), named("b"), named("c", "a"), named("d", "b"))
    first, second, freed, failed = ids
    end(engine, now, [first])
    with database.writing(engine) as conn:
        assert control.delete_jobs(conn, [first, second], source="ann", now=now) == [first, second]
    assert run_agent(engine, now) == 2
    assert [parent.status for parent in parents_of(engine, freed)] == ["Done"]
    assert job(engine, freed).due_at is not None
    assert job(engine, failed).application_status == f"{second} is Deleted"


def test_a_dependent_that_is_killed_stays_killed(engine: Engine, now: datetime) -> None:
    first, second = submit(engine, CONFIG, now, named("a"), named("b", "a"))
    stored_rows.kill(engine, now, second)
    end(engine, now, [first])
    assert run_agent(engine, now) == 0
    assert job(engine, second).status is KILLED


def test_a_parent_that_is_rescheduled_before_its_end_counted_is_waited_for(
    engine: Engine, now: datetime
) -> None:
    first, second = submit(engine, CONFIG, now, named("a"), named("b", "a"))
    end(engine, now, [first], FAILED)
    with database.writing(engine) as conn:
        assert control.reset_jobs(conn, [first], source="ann", now=now) == [first]
    assert run_agent(engine, now) == 0
    assert stored.describe_waiting(parents_of(engine, second)) == f"waits for {first} (Rescheduled)"


def parents_of(engine: Engine, job_id: int) -> Sequence[stored.Parent]:
    with database.reading(engine) as conn:
        return stored.list_parents(conn, [job_id])[job_id]


def test_parents_are_deleted_after_their_end_has_counted(engine: Engine, now: datetime) -> None:
    first, second = submit(engine, CONFIG, now, named("a"), named("b", "a", AfterPolicy="ended"))
    end(engine, now, [first])
    retention.cycle(engine, CONFIG, now=now + timedelta(days=400), holder="me")
    [parent] = parents_of(engine, second)
    assert (parent.status, parent.has_ended) == ("Done", True)
    assert job(engine, second).due_at is not None


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        (
            [named("a", "b"), named("b", "c"), named("c", "a")],
            "would wait for each other: a after b after c after a",
        ),
        ([named("a", "a")], "a after a"),
        (
            [named("42"), named("fit", 42)],
            r"jobs\[1\]/After: '42' may be the id of a job, and is the JobName",
        ),
        ([named("make"), named("fit", "maek")], r"jobs\[1\]/After: 'maek' is neither .*did you mean make"),
        ([named("a", 4711)], "ann has no job 4711 in lhcb"),
        ([named("a", "9" * 20)], "neither the id of a job"),
        ([named("a", "9" * 5000)], "neither the id of a job"),
        ([named("a", *(f"x{each}" for each in range(20)), Parameters=9000)], "180,000 pairs"),
        ([named("a", Parameters=400), named("b", "a", Parameters=400)], "160,000 pairs"),
        ([named("a"), named("b", "a", AfterPolicy="dnoe")], "allowed are done, ended, any"),
    ],
)
def test_what_can_never_be_fulfilled_is_refused_and_nothing_is_stored(
    engine: Engine, now: datetime, jobs: Sequence[Mapping[str, object]], message: str
) -> None:
    with pytest.raises(InvalidJob, match=message):
        submit(engine, CONFIG, now, *jobs)


def test_few_unknown_names_are_compared_with_those_of_a_submission(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    monkeypatch.setattr(submitted, "did_you_mean", lambda _, known: compared.append(len(list(known))))
    unknown = [f"x{each}" for each in range(30)]
    with pytest.raises(InvalidJob, match="neither the id of a job"):
        submit(engine, CONFIG, now, named("a%n", Parameters=2_000), named("b", *unknown))
    assert compared == [1_000] * MOST_HINTS


def test_nobody_waits_for_the_jobs_of_another_owner(engine: Engine, now: datetime) -> None:
    [first] = submit(engine, CONFIG, now, named("a"), submitter=replace(ANN, owner="bob"))
    with pytest.raises(InvalidJob, match=f"ann has no job {first} in lhcb"):
        submit(engine, CONFIG, now, named("b", first))
