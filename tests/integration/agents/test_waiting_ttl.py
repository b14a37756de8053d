"""Jobs that wait longer for a match than they may fail, with the reason; outages and bans do not count."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine

from agents import lost_jobs, pools
from agents.lost_jobs import LostJobsState
from agents.retention import retention
from agents.waiting import held_time, waiting_ttl
from cs_config.tree.configuration import Configuration
from matcher.explain import queue_set, waiting_reason
from matcher.explain.waiting_reason import WORDS
from optimizers.chain import batch
from optimizers.submit import editing
from optimizers.submit.submitter import Submitter
from requirements.states import JobStatus
from taskqueue.accounting import wait_times
from taskqueue.db import database
from taskqueue.jobs import waiting_ttl as ttls
from taskqueue.schema.tables import watched_times
from taskqueue.task_queues import task_queues, wait_causes
from taskqueue.task_queues.wait_causes import BAN_CAUSE, WaitCause
from tests.support import concurrency, crashes, databases
from tests.support.factories import stored_rows
from tests.support.factories.submitted_jobs import (
    GRID,
    claim,
    enqueue,
    grid,
    job,
    log_of,
    submit,
    waiting,
    way,
)

JOB = {"Executable": "a.sh"}
NOWHERE = {"Executable": "a.sh", "GPUs": 4}
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
PAUSE = timedelta(minutes=10)  # between two cycles
OFF = grid()
SWITCHED_OFF = GRID.replace("A.B.ch:", "A.B.ch:\n      Enabled: false")
TTL = "Operations: {lhcb: {JobScheduling: {WaitingTTL: 7200, RescheduleDelays: [0]}}}\n"
SET = grid(f"{GRID}\n{TTL}")


def run_agent(engine: Engine, now: datetime, *, config: Configuration = SET, holder: str = "me") -> int:
    result = lost_jobs.cycle(engine, config, now=now, holder=holder)
    assert result is not None
    return result.unmatched


def count(engine: Engine) -> Mapping[tuple[str, ...], int]:
    with database.reading(engine) as conn:
        return ttls.count_unmatched(conn)


def take(engine: Engine, now: datetime, most: int = 1) -> list[int]:
    """Ids of jobs that a pilot claims."""
    with database.writing(engine) as conn:
        return [each.job_id for each in claim(conn, now, most)]


def hold(engine: Engine, job_id: int, since: datetime, until: datetime) -> None:
    """All queues that fit the jobs of its task queue were closed in that time."""
    task_queue_id = job(engine, job_id).task_queue_id
    assert task_queue_id is not None
    banned = WaitCause(task_queue_id=task_queue_id, cause=BAN_CAUSE, since=since, until=until)
    with database.writing(engine) as conn:
        wait_causes.record_causes(conn, [banned])


@pytest.mark.usefixtures("agents_are_up")
def test_a_job_that_nothing_can_run_fails_after_its_time_with_the_reason(
    engine: Engine, now: datetime
) -> None:
    [job_id] = enqueue(engine, SET, now, NOWHERE)
    assert run_agent(engine, now + 1.9 * HOUR) == 0
    assert run_agent(engine, now + 2 * HOUR) == 1
    found = job(engine, job_id)
    assert (found.status, found.minor_status) == (JobStatus.FAILED, ttls.NO_MATCH)
    assert found.application_status == "no queue is eligible: 3 of 3 fail GPUs, at least 4"
    assert waiting(engine) == []
    assert log_of(engine, job_id)[-1].source == ttls.SOURCE
    assert count(engine) == {("lhcb", "no_eligible_queue"): 1}
    assert {reason for _, reason in count(engine)} <= {*WORDS}


@pytest.mark.usefixtures("agents_are_up")
def test_without_the_option_nothing_ends_and_nothing_is_read(engine: Engine, now: datetime) -> None:
    [job_id] = enqueue(engine, OFF, now, NOWHERE | {"WaitingTTL": 60})
    seen = databases.record_statements(engine)
    assert run_agent(engine, now + 50 * DAY, config=OFF) == 0
    assert job(engine, job_id).status is JobStatus.WAITING
    assert not [each for each in seen if "waiting_jobs" in each and "descriptions" in each]


@pytest.mark.usefixtures("agents_are_up")
def test_a_job_may_state_less_than_its_vo_not_more(engine: Engine, now: datetime) -> None:
    short, long_, plain = enqueue(
        engine, SET, now, NOWHERE | {"WaitingTTL": 600}, NOWHERE | {"WaitingTTL": 10**6}, NOWHERE
    )
    run_agent(engine, now + timedelta(minutes=11))
    assert waiting(engine) == [long_, plain]
    assert job(engine, short).minor_status == ttls.NO_MATCH
    run_agent(engine, now + 2 * HOUR)
    assert waiting(engine) == []


@pytest.mark.usefixtures("agents_are_up")
def test_members_of_a_parametric_job_may_have_times_of_their_own(engine: Engine, now: datetime) -> None:
    source = NOWHERE | {"WaitingTTL": "%(t)s", "Parameters.t": [600, 1200]}
    ids = enqueue(engine, SET, now, source)
    run_agent(engine, now + timedelta(minutes=11))
    assert waiting(engine) == ids[1:]


def test_an_outage_does_not_count(engine: Engine, now: datetime) -> None:
    stored_rows.service_up(engine, now, now + HOUR, process="before")
    stored_rows.service_up(engine, now + 5 * DAY, now + 9 * DAY, process="after")
    stored_rows.watched(engine, now, now + 9 * DAY)
    enqueue(engine, SET, now, JOB)
    assert run_agent(engine, now + 5 * DAY + 0.9 * HOUR) == 0
    assert run_agent(engine, now + 5 * DAY + HOUR) == 1


@pytest.mark.usefixtures("agents_are_up")
def test_time_before_a_match_and_before_a_rescheduling_does_not_count(engine: Engine, now: datetime) -> None:
    [job_id] = enqueue(engine, SET, now, JOB)
    assert take(engine, now + 1.5 * HOUR) == [job_id]
    back = now + 1.6 * HOUR
    run_agent(engine, back)  # its lease ends
    assert waiting(engine) == [job_id]
    assert run_agent(engine, back + 1.9 * HOUR) == 0
    stored_rows.reschedule(engine, back + 1.9 * HOUR, job_id)
    batch.optimize(engine, SET, [job_id], now=back + 1.9 * HOUR)
    assert run_agent(engine, back + 3.8 * HOUR) == 0
    assert run_agent(engine, back + 3.9 * HOUR) == 1
    stored_rows.reschedule(engine, back + 4 * HOUR, job_id)
    batch.optimize(engine, SET, [job_id], now=back + 4 * HOUR)
    assert run_agent(engine, back + 5.9 * HOUR) == 0


@pytest.mark.usefixtures("agents_are_up")
def test_time_in_which_its_sites_were_banned_does_not_count(engine: Engine, now: datetime) -> None:
    [job_id] = enqueue(engine, SET, now, JOB)
    hold(engine, job_id, now, now + HOUR)
    assert run_agent(engine, now + 2.9 * HOUR) == 0
    assert run_agent(engine, now + 3 * HOUR) == 1


@pytest.mark.usefixtures("agents_are_up")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SWITCHED_OFF, id="a queue is switched off"),
        pytest.param(GRID.replace("ch:\n", "ch:\n      VO: [cms]\n"), id="the VO may use no queue"),
    ],
)
def test_what_the_configuration_keeps_does_not_fail(engine: Engine, now: datetime, text: str) -> None:
    asked = JOB | {"Site": ["A.B.ch"], "GridCE": ["ce"]}
    [job_id] = enqueue(engine, SET, now, asked)
    assert run_agent(engine, now + DAY, config=grid(f"{text}\n{TTL}")) == 0
    assert job(engine, job_id).status is JobStatus.WAITING
    assert run_agent(engine, now + DAY, config=SET) == 1


@pytest.mark.usefixtures("agents_are_up")
@pytest.mark.parametrize("named", ["BannedSites: {default: [A.B.ch, C.D.ch]}", "Site: {default: [E.F.ch]}"])
def test_a_job_that_only_a_default_of_its_vo_keeps_from_all_sites_waits(
    engine: Engine, now: datetime, named: str
) -> None:
    default = grid(f"{GRID}\n{TTL}".replace("lhcb: {", f"lhcb: {{JobDescription: {{{named}}}, "))
    kept, other = enqueue(engine, default, now, JOB, NOWHERE)
    assert run_agent(engine, now + DAY, config=default) == 1
    assert (waiting(engine), job(engine, other).minor_status) == ([kept], ttls.NO_MATCH)
    with database.reading(engine) as conn:
        survey = queue_set.all_queues(default, "lhcb")
        task_queue_id = job(engine, kept).task_queue_id
        assert task_queue_id is not None
        demand = waiting_reason.read_demand(conn, default, kept, task_queue_id)
        assert demand is not None
        fault = waiting_reason.find_fault(conn, survey, demand, now)
    keyword = named.split(":")[0]
    assert fault == f"the default of {keyword} (Operations/JobDescription) leaves no queue that fits"


@pytest.mark.usefixtures("agents_are_up")
def test_a_job_whose_sites_are_all_banned_waits(engine: Engine, now: datetime) -> None:
    enqueue(engine, SET, now, JOB | {"Site": ["A.B.ch"]})
    stored_rows.ban(engine, now, "a.b.ch", reason="disks", until=now + 2 * DAY)
    assert run_agent(engine, now + DAY) == 0
    assert run_agent(engine, now + 2 * DAY + HOUR) == 1


def test_closed_places_are_no_error_where_the_service_was_never_up(engine: Engine, now: datetime) -> None:
    enqueue(engine, SET, now, JOB | {"Site": ["A.B.ch"]})
    stored_rows.ban(engine, now, "a.b.ch", reason="disks", until=now + 2 * DAY)
    assert run_agent(engine, now + DAY) == 0


def keep_running(
    engine: Engine, memory: LostJobsState, since: datetime, until: datetime, *, config: Configuration = SET
) -> int:
    """Jobs that a process failed which looks at the task queues each ten minutes."""
    failed = 0
    while since <= until:
        result = lost_jobs.cycle(engine, config, now=since, holder="me", memory=memory)
        assert result is not None
        failed += result.unmatched
        since += PAUSE
    return failed


@pytest.mark.usefixtures("service_is_up")
def test_time_in_which_its_sites_were_banned_does_not_count_without_any_pilot(
    engine: Engine, now: datetime
) -> None:
    """Directors send none to a banned site; a job that may run elsewhere as well goes on waiting."""
    memory = LostJobsState()
    there, anywhere = enqueue(engine, SET, now, JOB | {"Site": ["A.B.ch"]}, JOB)
    stored_rows.ban(engine, now, "a.b.ch", reason="disks", until=now + 6 * HOUR)
    assert keep_running(engine, memory, now, now + 2 * HOUR - PAUSE) == 0
    assert keep_running(engine, memory, now + 2 * HOUR, now + 8 * HOUR - PAUSE) == 1
    assert job(engine, anywhere).minor_status == ttls.NO_MATCH
    assert keep_running(engine, memory, now + 8 * HOUR, now + 8 * HOUR) == 1
    found = job(engine, there)
    assert found.minor_status == ttls.NO_MATCH
    assert found.application_status == "no pilot of 2 eligible queues came that fits it"


@pytest.mark.usefixtures("service_is_up")
def test_time_in_which_the_queues_that_fit_were_switched_off_does_not_count(
    engine: Engine, now: datetime
) -> None:
    """Nor does that between the looks before and after it."""
    memory = LostJobsState()
    [job_id] = enqueue(engine, SET, now, JOB | {"Site": ["A.B.ch"]})
    off = grid(f"{SWITCHED_OFF}\n{TTL}", 2)
    begin, end = now + HOUR, now + 4 * HOUR
    assert keep_running(engine, memory, now, begin) == 0
    assert keep_running(engine, memory, begin + PAUSE, end - PAUSE, config=off) == 0
    on = grid(f"{GRID}\n{TTL}", 3)
    assert keep_running(engine, memory, end, end + HOUR - PAUSE, config=on) == 0
    assert keep_running(engine, memory, end + HOUR, end + HOUR, config=on) == 1
    assert job(engine, job_id).minor_status == ttls.NO_MATCH


def test_an_outage_while_its_sites_were_banned_is_left_out_once(engine: Engine, now: datetime) -> None:
    memory = LostJobsState()
    stored_rows.service_up(engine, now, now + HOUR, process="before")
    stored_rows.service_up(engine, now + 3 * HOUR, now + DAY, process="after")
    enqueue(engine, SET, now, JOB | {"Site": ["A.B.ch"]})
    stored_rows.ban(engine, now, "a.b.ch", reason="disks", until=now + 5 * HOUR)
    assert keep_running(engine, memory, now, now + 7 * HOUR - PAUSE) == 0
    assert keep_running(engine, memory, now + 7 * HOUR, now + 7 * HOUR) == 1


@pytest.mark.usefixtures("service_is_up")
def test_a_ban_while_no_agent_ran_does_not_count(engine: Engine, now: datetime) -> None:
    enqueue(engine, SET, now, JOB | {"Site": ["A.B.ch"]})
    stored_rows.ban(engine, now, "a.b.ch", reason="disks", until=now + 12 * HOUR)
    assert keep_running(engine, LostJobsState(), now, now + HOUR) == 0
    memory = LostJobsState()
    assert keep_running(engine, memory, now + 11 * HOUR, now + 14 * HOUR - PAUSE) == 0
    assert keep_running(engine, memory, now + 14 * HOUR, now + 14 * HOUR) == 1


@pytest.mark.usefixtures("service_is_up")
@pytest.mark.parametrize("is_new", [True, False])
def test_time_in_which_no_agent_ran_does_not_count(engine: Engine, now: datetime, *, is_new: bool) -> None:
    """Of the queues nobody knows whether they were open; the process was ended, or suspended."""
    enqueue(engine, SET, now, JOB)
    first = LostJobsState()
    assert keep_running(engine, first, now, now + HOUR) == 0
    again, memory = now + 10 * HOUR, LostJobsState() if is_new else first
    assert keep_running(engine, memory, again, again + HOUR - PAUSE) == 0
    assert keep_running(engine, memory, again + HOUR, again + HOUR) == 1


@pytest.mark.usefixtures("service_is_up")
def test_what_another_process_saw_meanwhile_is_no_time_between_two_looks(
    engine: Engine, now: datetime
) -> None:
    memory, other = LostJobsState(), LostJobsState()
    enqueue(engine, SET, now, JOB)
    assert keep_running(engine, memory, now, now + PAUSE) == 0
    moment = now + 1.5 * PAUSE
    assert lost_jobs.cycle(engine, SET, now=moment, holder="another", memory=other) is not None
    assert keep_running(engine, memory, now + 2 * PAUSE, now + 3 * PAUSE) == 0
    with database.reading(engine) as conn:
        [found] = ttls.measure(conn, {1: 1}, lost_jobs.uptime.read(conn), now=now + HOUR).values()
    assert found.seconds == 2 * PAUSE.total_seconds()


@pytest.mark.usefixtures("service_is_up")
def test_looks_that_are_far_apart_lose_no_time_in_which_a_job_was_held(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task queue a cycle: a pass through them takes half an hour."""
    monkeypatch.setattr(held_time, "_PAGE", 1)
    monkeypatch.setattr(held_time, "_PAGES", 1)
    memory = LostJobsState()
    others = [JOB | {"Site": ["C.D.ch"], "MinRAM": number} for number in (100, 200)]
    [job_id, *_] = enqueue(engine, SET, now, JOB | {"Site": ["A.B.ch"]}, *others)
    stored_rows.ban(engine, now, "a.b.ch", reason="disks", until=now + 3 * HOUR)
    keep_running(engine, memory, now, now + 5 * HOUR - PAUSE)
    assert job(engine, job_id).status is JobStatus.WAITING
    keep_running(engine, memory, now + 5 * HOUR, now + 7 * HOUR)
    assert job(engine, job_id).minor_status == ttls.NO_MATCH


@pytest.mark.usefixtures("service_is_up")
def test_jobs_that_come_to_a_closed_place_are_held_from_the_beginning(engine: Engine, now: datetime) -> None:
    """Their task queue had no jobs in the pass before."""
    memory = LostJobsState()
    stored_rows.ban(engine, now, "a.b.ch", reason="disks", until=now + 2 * HOUR)
    keep_running(engine, memory, now, now + HOUR)
    came = now + HOUR + PAUSE / 2
    [job_id] = enqueue(engine, SET, came, JOB | {"Site": ["A.B.ch"]})
    assert keep_running(engine, memory, now + HOUR + PAUSE, now + 4 * HOUR - PAUSE) == 0
    assert keep_running(engine, memory, now + 4 * HOUR, now + 4 * HOUR) == 1
    assert job(engine, job_id).minor_status == ttls.NO_MATCH


@pytest.mark.usefixtures("service_is_up")
def test_a_task_queue_without_jobs_is_forgotten(engine: Engine, now: datetime) -> None:
    memory = LostJobsState()
    enqueue(engine, SET, now, NOWHERE)
    keep_running(engine, memory, now, now)
    of_vo = memory.held.vos["lhcb"]
    assert [each.is_held for each in of_vo.looks.values()] == [False]
    assert keep_running(engine, memory, now + PAUSE, now + 2 * HOUR) == 1
    with database.writing(engine) as conn:  # a matcher that tries it
        task_queues.mark_empty(conn, list(of_vo.looks), now=now + 2 * HOUR)
    keep_running(engine, memory, now + 2 * HOUR + PAUSE, now + 2 * HOUR + PAUSE)
    assert of_vo.known == of_vo.looks == {}


@pytest.mark.usefixtures("agents_are_up")
def test_a_job_that_is_edited_after_a_long_ban_has_its_whole_time_left(engine: Engine, now: datetime) -> None:
    """It is in another task queue then, of which nothing was closed. What its jobs had waited counts."""
    edited, there = enqueue(engine, SET, now, JOB | {"MinRAM": 100}, JOB | {"MinRAM": 200})
    hold(engine, edited, now, now + 3 * HOUR)
    later = now + 3 * HOUR
    done = editing.edit(engine, SET, [job(engine, edited)], {"MinRAM": 200}, source="ann", now=later)
    assert done.done == [edited]
    batch.optimize(engine, SET, [edited], now=later)
    assert job(engine, edited).task_queue_id == job(engine, there).task_queue_id
    assert run_agent(engine, later) == 1
    assert job(engine, there).minor_status == ttls.NO_MATCH
    assert run_agent(engine, later + 1.9 * HOUR) == 0
    assert run_agent(engine, later + 2 * HOUR) == 1
    with database.reading(engine) as conn:
        waited = wait_times.sum_until_now(
            conn, job(engine, edited), log_of(engine, edited), now=later + 2 * HOUR
        )
    assert {cause: seconds for cause, seconds in waited.items() if seconds} == {
        "banned": 3 * 3600,
        "a pilot": 2 * 3600,
    }


@pytest.mark.usefixtures("service_is_up")
def test_a_job_that_is_edited_between_two_looks_loses_no_time_in_which_it_was_held(
    engine: Engine, now: datetime
) -> None:
    """Its former task queue has no jobs at the next look."""
    memory = LostJobsState()
    [job_id] = enqueue(engine, SET, now, JOB | {"Site": ["A.B.ch"], "MinRAM": 100})
    stored_rows.ban(engine, now, "a.b.ch", reason="disks", until=now + HOUR)
    keep_running(engine, memory, now, now + HOUR - PAUSE)
    later = now + HOUR - PAUSE / 2
    editing.edit(engine, SET, [job(engine, job_id)], {"MinRAM": 200}, source="ann", now=later)
    batch.optimize(engine, SET, [job_id], now=later)
    assert keep_running(engine, memory, now + HOUR, now + 3 * HOUR - PAUSE) == 0
    assert keep_running(engine, memory, now + 3 * HOUR, now + 3 * HOUR) == 1


@pytest.mark.usefixtures("service_is_up")
def test_a_wait_that_is_longer_than_its_causes_are_kept_is_not_over_before_its_time(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing counts of a time whose causes are deleted."""
    monkeypatch.setattr(held_time, "_AWAY", DAY)
    config = grid(f"{GRID}\n{TTL.replace('7200', '172800')}")
    memory, deleted = LostJobsState(), Counter[str]()
    [job_id] = enqueue(engine, config, now, JOB | {"Site": ["A.B.ch"]})
    stored_rows.ban(engine, now, "a.b.ch", reason="disks", until=now + 3 * DAY)
    for halves in range(80):
        at = now + halves * DAY / 2
        if halves == 8:
            stored_rows.ban(engine, at, "a.b.ch", reason="disks", until=now + 39 * DAY)
        lost_jobs.cycle(engine, config, now=at, holder="me", memory=memory)
        done = retention.cycle(engine, config, now=at, holder="me")
        assert done is not None
        deleted += Counter(done.removed)
        assert waiting(engine) == [job_id], at
    assert deleted["wait causes"] == 1
    assert databases.count(engine, watched_times) < 33


@pytest.mark.usefixtures("agents_are_up")
def test_a_job_whose_task_queue_is_joined_with_another_one_has_its_whole_time_left(
    engine: Engine, now: datetime
) -> None:
    """Another default of its VO gave both the same class."""
    short = grid(f"{GRID}\n{TTL}".replace("lhcb: {", "lhcb: {JobDescription: {MinRAM: {default: 100}}, "), 1)
    long_ = grid(f"{GRID}\n{TTL}".replace("lhcb: {", "lhcb: {JobDescription: {MinRAM: {default: 200}}, "), 2)
    [moved] = enqueue(engine, short, now, JOB)
    before = job(engine, moved).task_queue_id
    hold(engine, moved, now, now + 3 * HOUR)
    later = now + 3 * HOUR
    enqueue(engine, long_, later, JOB)
    pools.cycle(engine, long_, now=later, holder="me")
    assert job(engine, moved).task_queue_id != before
    assert run_agent(engine, later + 1.9 * HOUR, config=long_) == 0
    assert run_agent(engine, later + 2 * HOUR, config=long_) == 2


@pytest.mark.usefixtures("service_is_up")
def test_a_vo_whose_queues_cannot_be_judged_holds_its_own_jobs_only(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = grid(f"{GRID}\n{TTL.replace('lhcb', 'Defaults')}")
    [ours] = enqueue(engine, both, now, JOB)
    bob = Submitter(subject="bob@cms", vo="cms", owner="bob", owner_group="cms_user")
    [theirs] = submit(engine, both, now, JOB, submitter=bob)
    batch.optimize(engine, both, [theirs], now=now)
    judge = waiting_reason.is_held

    def fail(conn: Connection, config: Configuration, job_id: int, *rest: Any) -> bool:
        assert job_id != theirs, "a fault of ours"
        return judge(conn, config, job_id, *rest)

    monkeypatch.setattr(waiting_reason, "is_held", fail)
    memory = LostJobsState()
    assert keep_running(engine, memory, now, now + 4 * HOUR, config=both) == 1
    assert waiting(engine) == [theirs]
    assert job(engine, ours).minor_status == ttls.NO_MATCH
    monkeypatch.undo()
    again = now + 4 * HOUR + PAUSE
    assert keep_running(engine, memory, again, again + 2 * HOUR - PAUSE, config=both) == 0
    assert keep_running(engine, memory, again + 2 * HOUR, again + 2 * HOUR, config=both) == 1


@pytest.mark.usefixtures("service_is_up")
def test_time_counts_from_when_its_vo_has_set_how_long_it_may_wait(engine: Engine, now: datetime) -> None:
    memory = LostJobsState()
    enqueue(engine, OFF, now, JOB)
    assert keep_running(engine, memory, now, now + 3 * HOUR, config=OFF) == 0
    begin = now + 3 * HOUR + PAUSE
    on = grid(f"{GRID}\n{TTL}", 2)
    assert keep_running(engine, memory, begin, begin + 2 * HOUR - PAUSE, config=on) == 0
    assert keep_running(engine, memory, begin + 2 * HOUR, begin + 2 * HOUR, config=on) == 1


@pytest.mark.usefixtures("agents_are_up")
def test_a_job_that_is_claimed_in_the_same_moment_is_not_failed(engine: Engine, now: datetime) -> None:
    """The agent has read that its time is over, then a claim takes it, and gives it back."""
    [job_id] = enqueue(engine, SET, now, JOB)
    later = now + 3 * HOUR
    with database.reading(engine) as conn:
        up = lost_jobs.uptime.read(conn)
        page = ttls.read_page(conn, {"lhcb": 7200}, after=0, most=10, now=later)
    reasons = {page.jobs[0].task_queue_id: ttls.WaitingReason(word="turn", text="others were first")}

    def fail(moment: datetime) -> list[int]:
        with database.writing(engine) as conn:
            return ttls.fail_unmatched(conn, page.jobs, reasons, up, now=moment)

    assert take(engine, later) == [job_id]
    assert fail(later) == []
    assert job(engine, job_id).status is JobStatus.MATCHED
    run_agent(engine, later + HOUR)
    assert waiting(engine) == [job_id]
    assert fail(later + HOUR) == []
    assert fail(later + 4 * HOUR) == [job_id]


@pytest.mark.usefixtures("agents_are_up")
def test_each_of_many_jobs_ends_once_beside_claims_and_other_agents(engine: Engine, now: datetime) -> None:
    ids = enqueue(engine, SET, now, *([JOB] * 60))
    later = now + 3 * HOUR
    taken: list[list[int]] = []

    def act(number: int) -> None:
        if number % 2:
            lost_jobs.cycle(engine, SET, now=later, holder=str(number))
        else:
            taken.append(take(engine, later, most=20))

    concurrency.at_once(4, act)
    for number in (1, 3):  # one of them leads
        lost_jobs.cycle(engine, SET, now=later, holder=str(number))
    matched = {each for some in taken for each in some}
    ends = {job_id: way(engine, job_id) for job_id in ids}
    assert waiting(engine) == []
    assert {job_id for job_id, statuses in ends.items() if statuses[-1] == "Matched"} == matched
    assert all(Counter(each)["Failed"] + Counter(each)["Matched"] == 1 for each in ends.values())
    assert sum(count(engine).values()) == 60 - len(matched)


@pytest.mark.usefixtures("agents_are_up")
def test_an_agent_that_is_killed_leaves_no_half_end(engine: Engine, now: datetime) -> None:
    ids = enqueue(engine, SET, now, *([NOWHERE] * 5))
    later = now + 3 * HOUR
    for statement in (*range(9, 40, 3), 1000):
        with crashes.killed_at(engine, statement), suppress(crashes.KilledError):
            run_agent(engine, later)
        left = waiting(engine)
        assert [job(engine, each).status for each in ids] == [
            JobStatus.WAITING if each in left else JobStatus.FAILED for each in ids
        ]
        assert sum(count(engine).values()) == 5 - len(left)
    assert waiting(engine) == []


@pytest.mark.usefixtures("agents_are_up")
def test_a_pass_goes_on_where_it_was_and_begins_again_after_a_while(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_ttl, "_PAGE", 2)
    monkeypatch.setattr(waiting_ttl, "_PAGES", 1)
    ids = enqueue(engine, SET, now, *([NOWHERE] * 5))
    memory, later = LostJobsState(), now + 3 * HOUR

    def cycle(moment: datetime) -> int:
        result = lost_jobs.cycle(engine, SET, now=moment, holder="me", memory=memory)
        assert result is not None
        return result.unmatched

    assert [cycle(later) for _ in range(4)] == [2, 2, 1, 0]
    assert waiting(engine) == []
    [new] = enqueue(engine, SET, now, NOWHERE)
    assert new > ids[-1]
    assert cycle(later + timedelta(seconds=10)) == 0
    assert cycle(later + timedelta(seconds=30)) == 1


@pytest.mark.usefixtures("agents_are_up")
def test_the_cause_that_kept_it_longest_is_the_reason(engine: Engine, now: datetime) -> None:
    [job_id] = enqueue(engine, SET, now, JOB)
    task_queue_id = job(engine, job_id).task_queue_id
    assert task_queue_id is not None
    kept = WaitCause(task_queue_id=task_queue_id, cause="limits", since=now, until=now + 1.5 * HOUR)
    with database.writing(engine) as conn:
        wait_causes.record_causes(conn, [kept])
    run_agent(engine, now + 2 * HOUR)
    assert job(engine, job_id).application_status == "limits of running jobs were reached where it fits"
    assert count(engine) == {("lhcb", "limits"): 1}
