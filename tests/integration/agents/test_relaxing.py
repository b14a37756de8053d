"""Jobs that wait long give up what their rules name; outages do not count, each step is made once."""

from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine

from agents import lost_jobs
from agents.lost_jobs import LostJobsState
from agents.waiting import relaxing
from cs_config.options import bounds
from cs_config.tree.configuration import Configuration
from optimizers.chain import batch
from optimizers.submit import editing
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.jobs import descriptions, jobs
from taskqueue.jobs.relaxing import RELAXED, SOURCE
from tests.integration.agents.test_waiting_ttl import PAUSE, hold, take
from tests.support import concurrency, crashes, databases
from tests.support.factories import stored_rows
from tests.support.factories.submitted_jobs import GRID, enqueue, grid, job, log_of, waiting

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
PLAIN = grid(f"{GRID}\nOperations: {{lhcb: {{JobScheduling: {{RescheduleDelays: [0]}}}}}}\n")
LADDER = ["after 2 h: Memory x 0.5", "after 4 h: without Memory"]
ASKED = {"Executable": "a.sh", "Requirements": {"Memory": 8000}, "Relax": LADDER}
BARE = {"Executable": "a.sh", "Requirements": {"Memory": 8000}}
OF_VO = grid(
    f"{GRID}\nOperations: {{lhcb: {{JobDescription: {{Relax: {{default: 'after 1 h: Memory x 0.5'}}}}}}}}\n"
)


def run_agent(engine: Engine, now: datetime, *, config: Configuration = PLAIN, holder: str = "me") -> int:
    """Jobs that gave something up; the optimizers have put them into their next task queues."""
    result = lost_jobs.cycle(engine, config, now=now, holder=holder)
    assert result is not None
    settle(engine, now, config)
    return result.relaxed


def settle(engine: Engine, now: datetime, config: Configuration = PLAIN) -> None:
    with database.reading(engine) as conn:
        every = list(jobs.read_jobs(conn, range(1, 200)))
    checking = [each.job_id for each in every if each.status is JobStatus.CHECKING]
    batch.optimize(engine, config, checking, now=now)


def body(engine: Engine, job_id: int) -> dict[str, Any]:
    with database.reading(engine) as conn:
        return dict(descriptions.read_description(conn, job_id).body)


def steps(engine: Engine, job_id: int) -> list[str]:
    return [each.application_status for each in log_of(engine, job_id) if each.minor_status == RELAXED]


@pytest.mark.usefixtures("agents_are_up")
def test_each_step_is_made_at_its_time_and_is_another_class(engine: Engine, now: datetime) -> None:
    [job_id] = enqueue(engine, PLAIN, now, ASKED)
    first = job(engine, job_id)
    assert run_agent(engine, now + 1.9 * HOUR) == 0
    assert job(engine, job_id) == first
    assert run_agent(engine, now + 2 * HOUR) == 1
    second = job(engine, job_id)
    assert second.status is JobStatus.WAITING
    assert second.submit_pool != first.submit_pool
    assert body(engine, job_id)["Requirements"] == {"Memory": 4000}
    assert body(engine, job_id)["Relax"] == LADDER[1:]
    assert run_agent(engine, now + 3.9 * HOUR) == 0
    assert run_agent(engine, now + 4 * HOUR) == 1
    assert "Requirements" not in body(engine, job_id)
    assert run_agent(engine, now + 40 * HOUR) == 0
    assert steps(engine, job_id) == ["after 2 h: Memory 8000 → 4000", "after 4 h: Memory 4000 → none"]
    assert {each.source for each in log_of(engine, job_id) if each.minor_status == RELAXED} == {SOURCE}
    assert waiting(engine) == [job_id]


@pytest.mark.usefixtures("agents_are_up")
def test_jobs_with_more_text_than_one_request_may_read_take_their_steps(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(engine, PLAIN, now, *[ASKED] * 3)
    monkeypatch.setattr(bounds, "ALL_FILLED", 100)
    assert run_agent(engine, now + 2 * HOUR) == 3


@pytest.mark.usefixtures("agents_are_up")
def test_rules_of_a_vo_hold_for_jobs_that_state_none(engine: Engine, now: datetime) -> None:
    bare, own, refused, small = enqueue(
        engine, OF_VO, now, BARE, ASKED, {**BARE, "Relax": []}, {"Executable": "a.sh"}
    )
    assert run_agent(engine, now + 1.5 * HOUR, config=OF_VO) == 1
    assert body(engine, bare)["Requirements"] == {"Memory": 4000}
    assert [steps(engine, each) for each in (own, refused, small)] == [[], [], []]
    assert run_agent(engine, now + 2.5 * HOUR, config=OF_VO) == 1
    assert steps(engine, own) == ["after 2 h: Memory 8000 → 4000"]


@pytest.mark.usefixtures("agents_are_up")
def test_without_rules_no_waiting_job_is_read(engine: Engine, now: datetime) -> None:
    enqueue(engine, PLAIN, now, BARE, {**BARE, "Relax": []})
    seen = databases.record_statements(engine)
    assert run_agent(engine, now + 50 * DAY) == 0
    assert not [each for each in seen if "waiting_jobs" in each and "descriptions" in each]


def test_an_outage_brings_no_step_nearer(engine: Engine, now: datetime) -> None:
    stored_rows.service_up(engine, now, now + HOUR, process="before")
    stored_rows.service_up(engine, now + 5 * DAY, now + 9 * DAY, process="after")
    stored_rows.watched(engine, now, now + 9 * DAY)
    enqueue(engine, PLAIN, now, ASKED)
    assert run_agent(engine, now + 5 * DAY + 0.9 * HOUR) == 0
    assert run_agent(engine, now + 5 * DAY + HOUR) == 1


@pytest.mark.usefixtures("agents_are_up")
def test_after_a_step_the_time_in_which_its_sites_were_banned_counts_no_more_than_before(
    engine: Engine, now: datetime
) -> None:
    """The step has moved it to another task queue."""
    [job_id] = enqueue(engine, PLAIN, now, ASKED)
    hold(engine, job_id, now, now + 3 * HOUR)
    assert run_agent(engine, now + 5 * HOUR) == 1
    assert run_agent(engine, now + 6.9 * HOUR) == 0
    assert run_agent(engine, now + 7 * HOUR) == 1


@pytest.mark.usefixtures("service_is_up")
def test_closed_sites_bring_no_step_nearer_where_the_vo_limits_no_wait(engine: Engine, now: datetime) -> None:
    memory = LostJobsState()
    enqueue(engine, PLAIN, now, ASKED)
    stored_rows.ban(engine, now, "a.b.ch", reason="disks", until=now + 3 * HOUR)
    relaxed = 0
    for count in range(30):
        result = lost_jobs.cycle(engine, PLAIN, now=now + count * PAUSE, holder="me", memory=memory)
        assert result is not None
        relaxed += result.relaxed
    assert relaxed == 0
    result = lost_jobs.cycle(engine, PLAIN, now=now + 5 * HOUR, holder="me", memory=memory)
    assert result is not None
    assert result.relaxed == 1


@pytest.mark.usefixtures("agents_are_up")
def test_time_begins_again_with_a_rescheduling_and_what_was_given_up_stays(
    engine: Engine, now: datetime
) -> None:
    [job_id] = enqueue(engine, PLAIN, now, ASKED)
    assert run_agent(engine, now + 2 * HOUR) == 1
    stored_rows.reschedule(engine, now + 3 * HOUR, job_id)
    batch.optimize(engine, PLAIN, [job_id], now=now + 3 * HOUR)
    assert body(engine, job_id)["Requirements"] == {"Memory": 4000}
    assert run_agent(engine, now + 6.9 * HOUR) == 0
    assert run_agent(engine, now + 7 * HOUR) == 1


@pytest.mark.usefixtures("agents_are_up")
def test_members_of_a_parametric_job_have_steps_and_values_of_their_own(
    engine: Engine, now: datetime
) -> None:
    source = {
        "Executable": "a.sh",
        "MinRAM": "%(m)s",
        "Relax": ["after %(h)s h: Memory x 0.5"],
        "Parameters.m": [4000, 4000, 2000],
        "Parameters.h": [1, 3, 1],
    }
    ids = enqueue(engine, PLAIN, now, source)
    assert run_agent(engine, now + HOUR) == 2
    assert [body(engine, each)["MinRAM"] for each in ids] == [2000, 4000, 1000]
    assert run_agent(engine, now + 3 * HOUR) == 1
    assert [body(engine, each)["MinRAM"] for each in ids] == [2000, 2000, 1000]


@pytest.mark.usefixtures("agents_are_up")
def test_a_step_that_no_queue_could_run_is_not_made(engine: Engine, now: datetime) -> None:
    [job_id] = enqueue(engine, PLAIN, now, {**BARE, "Relax": ["after 2 h: Memory = 64000"]})
    assert run_agent(engine, now + 3 * HOUR) == 0
    assert body(engine, job_id)["Requirements"] == {"Memory": 8000}
    larger = grid(GRID.replace("Memory: 8000", "Memory: 64000"))
    assert run_agent(engine, now + 4 * HOUR, config=larger) == 1


@pytest.mark.usefixtures("agents_are_up")
def test_a_claim_or_an_edit_in_the_same_moment_wins(engine: Engine, now: datetime) -> None:
    """The agent has planned the step, then a claim takes one job and its user edits the other."""
    claimed, edited = enqueue(engine, PLAIN, now, ASKED, {**ASKED, "Priority": 0})
    later = now + 3 * HOUR
    with database.reading(engine) as conn:
        up = lost_jobs.uptime.read(conn)
        page = relaxing.relaxing.read_page(conn, {}, shortest=60, after=0, most=10, now=later)
        waited = relaxing._measure(conn, page.waiting, up, later)
        changed, new = relaxing._plan(conn, PLAIN, waited, later).list_edits()
    assert len(changed) == 2
    assert take(engine, later) == [claimed]
    done = editing.edit(engine, PLAIN, [job(engine, edited)], {"Memory": 2000}, source="ann", now=later)
    assert done.done == [edited]
    with database.writing(engine) as conn:
        assert relaxing.relaxing.relax_jobs(conn, changed, new, page.waiting, waited, up, now=later) == []
    assert (steps(engine, claimed), steps(engine, edited)) == ([], [])
    assert body(engine, claimed)["Requirements"] == {"Memory": 8000}
    assert body(engine, edited)["Requirements"] == {"Memory": 2000}


@pytest.mark.usefixtures("agents_are_up")
def test_each_step_of_many_jobs_is_made_once_beside_claims_and_other_agents(
    engine: Engine, now: datetime
) -> None:
    ids = enqueue(engine, PLAIN, now, *([ASKED] * 40))
    later = now + 3 * HOUR
    taken: list[list[int]] = []

    def act(number: int) -> None:
        if number % 2:
            lost_jobs.cycle(engine, PLAIN, now=later, holder=str(number))
        else:
            taken.append(take(engine, later, most=10))

    concurrency.at_once(4, act)
    for number in (1, 3):  # one of them leads
        lost_jobs.cycle(engine, PLAIN, now=later, holder=str(number))
    settle(engine, later)
    matched = {each for some in taken for each in some}
    made = Counter({job_id: len(steps(engine, job_id)) for job_id in ids})
    assert waiting(engine) == [each for each in ids if each not in matched]
    assert {job_id for job_id in ids if made[job_id] == 1} == {*ids} - matched
    assert max(made.values()) == 1
    assert {body(engine, each)["Requirements"]["Memory"] for each in matched} <= {8000}


@pytest.mark.usefixtures("agents_are_up")
def test_an_agent_that_is_killed_leaves_no_half_step(engine: Engine, now: datetime) -> None:
    ids = enqueue(engine, PLAIN, now, *([ASKED] * 3))
    later = now + 3 * HOUR
    for statement in (*range(5, 60, 3), 1000):
        with crashes.killed_at(engine, statement), suppress(crashes.KilledError):
            lost_jobs.cycle(engine, PLAIN, now=later, holder="me")
        for job_id in ids:
            made = len(steps(engine, job_id))
            asked = body(engine, job_id)
            assert (asked["Requirements"], asked["Relax"]) == (
                ({"Memory": 4000}, LADDER[1:]) if made else ({"Memory": 8000}, LADDER)
            )
            assert made <= 1
    assert [len(steps(engine, each)) for each in ids] == [1, 1, 1]
    settle(engine, later)
    assert waiting(engine) == ids


@pytest.mark.usefixtures("agents_are_up")
def test_a_pass_of_relaxation_goes_on_where_it_was(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relaxing, "_PAGE", 2)
    monkeypatch.setattr(relaxing, "_PAGES", 1)
    ids = enqueue(engine, PLAIN, now, *([ASKED] * 5))
    memory, later = LostJobsState(), now + 3 * HOUR

    def cycle() -> int:
        result = lost_jobs.cycle(engine, PLAIN, now=later, holder="me", memory=memory)
        assert result is not None
        return result.relaxed

    assert [cycle() for _ in range(4)] == [2, 2, 1, 0]
    assert [len(steps(engine, each)) for each in ids] == [1] * 5
