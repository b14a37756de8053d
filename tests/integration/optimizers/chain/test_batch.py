"""Jobs on their way from Received to Waiting, in batches, by several workers, twice, with defects."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, insert

from cs_config.classes.queue_class_index import QueueClassIndex
from cs_config.classes.queue_columns import EligibleSets
from cs_config.tree.configuration import Configuration
from optimizers.chain import batch, chain
from optimizers.chain.chain import (
    ChainContext,
    Done,
    Failed,
    Hold,
    JobContext,
    Outcome,
    Step,
)
from optimizers.workers.inline import InlineOptimizer
from requirements.canonical import Requirements, pool_id
from requirements.record import Record
from taskqueue.db import database
from taskqueue.jobs import control, optimizer_queue
from taskqueue.jobs.unmatchable import NO_ELIGIBLE_QUEUE
from taskqueue.pools import pools, queue_class_store
from taskqueue.schema.tables import pool_mappings, queue_class_versions, submit_pools
from taskqueue.task_queues import listing
from tests.support import concurrency, databases
from tests.support.databases import count
from tests.support.factories import stored_rows
from tests.support.factories.submitted_jobs import GRID, grid, job, log_of, store_grid, submit, waiting, way
from tests.support.wait import until

JOB = {"Executable": "a.sh"}
NEEDS_4000 = {**JOB, "Requirements": {"Memory": 4000}}
NEEDS_TOO_MUCH = {**JOB, "Requirements": {"Memory": 9000}}
POOL_4000 = pool_id(Record(values=(("Memory", 4000),)), "lhcb")


def queues(engine: Engine, pool: str) -> list[str]:
    with database.reading(engine) as conn:
        return [str(queue) for queue in stored_rows.list_eligible_queues(conn, pool)]


def with_step(name: str, step: Step) -> dict[str, Step]:
    return {**chain.installed_steps(), name: step}


def test_a_job_comes_to_wait_in_its_task_queue_and_pool(engine: Engine, now: datetime) -> None:
    [job_id] = submit(engine, grid(), now, NEEDS_4000)
    result = batch.optimize(engine, grid(), [job_id], now=now)
    found = job(engine, job_id)
    assert result.waiting == (job_id,)
    assert (found.status, found.minor_status) == ("Waiting", "Pilot Agent Submission")
    assert (found.submit_pool, found.due_at) == (POOL_4000, None)
    assert waiting(engine) == [job_id]
    assert queues(engine, POOL_4000) == ["A.B.ch/ce/big", "C.D.ch/ce/middle"]


def test_an_expression_is_resolved_like_a_record(engine: Engine, now: datetime) -> None:
    [job_id] = submit(
        engine, grid(), now, 'Executable = "a"; Requirements = other.Memory > 2000 && TARGET.Memory < 8000'
    )
    batch.optimize(engine, grid(), [job_id], now=now)
    pool = job(engine, job_id).submit_pool
    assert pool is not None
    assert queues(engine, pool) == ["C.D.ch/ce/middle"]


def test_the_log_names_the_steps(engine: Engine, now: datetime) -> None:
    [job_id] = submit(engine, grid(), now, NEEDS_4000)
    batch.optimize(engine, grid(), [job_id], now=now)
    last = log_of(engine, job_id)[-1]
    assert (last.from_status, last.to_status, last.source) == ("Received", "Waiting", "JobScheduling")
    assert last.application_status == "passed JobPath, JobSanity, Requirements, JobScheduling"


def test_outcomes_are_counted_for_metrics(engine: Engine, now: datetime) -> None:
    config = grid(GRID + "Operations: {Defaults: {JobScheduling: {AllowInvalidSites: false}}}\n")
    ids = submit(engine, config, now, JOB, {**JOB, "Site": "No.Site.org"})
    seen: list[batch.BatchResult] = []
    batch.optimize(engine, config, ids, now=now, observe=seen.append)
    assert seen[0].outcomes["JobSanity", "Done"] == 2
    assert seen[0].outcomes["JobScheduling", "Done"] == 1
    assert seen[0].outcomes["JobScheduling", "Failed"] == 1


def test_more_jobs_than_a_batch_holds(engine: Engine, now: datetime) -> None:
    ids = submit(engine, grid(), now, {**JOB, "Parameters": batch.MOST_AT_ONCE + 7})
    assert len(batch.optimize(engine, grid(), ids, now=now).waiting) == len(ids)


def test_a_step_that_runs_twice_changes_nothing_the_second_time(engine: Engine, now: datetime) -> None:
    ids = submit(engine, grid(), now, NEEDS_4000, JOB)
    batch.optimize(engine, grid(), ids, now=now)
    again = batch.optimize(engine, grid(), ids, now=now + timedelta(hours=1))
    assert (again.waiting, set(again.left)) == ((), set(ids))
    assert [way(engine, job_id) for job_id in ids] == [["Received", "Waiting"]] * 2
    assert waiting(engine) == ids


def test_workers_with_the_same_jobs_do_not_collide(engine: Engine, now: datetime) -> None:
    ids = submit(engine, grid(), now, *([NEEDS_4000, JOB] * 100))
    results = concurrency.at_once(4, lambda _: batch.optimize(engine, grid(), ids, now=now))
    assert sorted(job_id for result in results for job_id in result.waiting) == ids
    assert waiting(engine) == ids
    assert {tuple(way(engine, job_id)) for job_id in ids} == {("Received", "Waiting")}


def test_workers_with_overlapping_jobs_and_new_pools_do_not_wait_for_each_other_crosswise(
    engine: Engine, now: datetime
) -> None:
    wanted = [{**JOB, "Requirements": {"Memory": 100 + number % 10}} for number in range(60)]
    ids = submit(engine, grid(), now, *wanted)
    shuffled = [ids, ids[::-1], ids[30:] + ids[:30]]
    concurrency.at_once(3, lambda number: batch.optimize(engine, grid(), shuffled[number], now=now))
    assert waiting(engine) == ids
    assert {tuple(way(engine, job_id)) for job_id in ids} == {("Received", "Waiting")}
    assert count(engine, submit_pools) == 10
    assert count(engine, pool_mappings) == 10
    assert count(engine, stored_rows.POOL_QUEUES) == 30


def test_a_defect_in_a_step_holds_one_job_alone(engine: Engine, now: datetime) -> None:
    def brittle(candidate: JobContext, context: ChainContext) -> Outcome:
        if candidate.description.job_name == "bad":
            raise RuntimeError("I break")
        return Done(candidate=candidate)

    ids = submit(engine, grid(), now, JOB, {**JOB, "JobName": "bad"}, JOB)
    result = batch.optimize(engine, grid(), ids, now=now, steps=with_step("Requirements", brittle))
    assert (result.waiting, result.held) == ((ids[0], ids[2]), (ids[1],))
    held = job(engine, ids[1])
    assert (held.status, held.minor_status) == ("Checking", "Requirements")
    assert "RuntimeError: I break" in held.application_status


def test_a_job_that_cannot_be_stored_is_held_alone_until_it_can(engine: Engine, now: datetime) -> None:
    def poisonous(candidate: JobContext, context: ChainContext) -> Outcome:
        poisoned = candidate.description.job_name == "bad"
        return Done(candidate=replace(candidate, minor_status=object()) if poisoned else candidate)  # type: ignore[arg-type]

    ids = submit(engine, grid(), now, *([JOB] * 5), {**JOB, "JobName": "bad"}, *([JOB] * 5))
    result = batch.optimize(engine, grid(), ids, now=now, steps=with_step("Requirements", poisonous))
    assert len(result.waiting) == 10
    assert result.held == (ids[5],)
    assert "could not be stored" in job(engine, ids[5]).application_status
    later = now + timedelta(seconds=301)
    assert batch.optimize(engine, grid(), ids, now=later).waiting == (ids[5],)


def test_a_description_that_cannot_be_read_fails_its_job_alone(engine: Engine, now: datetime) -> None:
    good, bad = submit(engine, grid(), now, JOB, {**JOB, "JobName": "x"})
    stored_rows.force(engine, bad, parameters="{not json")
    result = batch.optimize(engine, grid(), [good, bad], now=now)
    assert (result.waiting, result.failed) == ((good,), (bad,))
    assert job(engine, bad).minor_status == "JobSanity optimizer"


#: Descriptions of accepted jobs, and options that would refuse them or fail their jobs.
LATER_OPTIONS: list[tuple[dict[str, object], str]] = [
    ({"CPUTime": 5000}, "JobDescription: {CPUTime: {default: 1000, max: 1000}}"),
    ({"CPUTime": 5000}, "JobDescription: {CPUTime: {default: 9000, min: 9000}}"),
    ({"CPUTime": 5000}, "JobDescription: {Clamp: true, CPUTime: {default: 1000, max: 1000}}"),
    ({"Priority": 7}, "JobDescription: {Priority: {max: 3}}"),
    ({"JobType": "MC"}, "JobDescription: {AllowedJobTypes: [User]}"),
    ({"InputData": ["/lhcb/a", "/lhcb/b"], "JobPath": ["JobSanity"]}, "JobDescription: {MaxInputData: 1}"),
    ({"Wiki": "page"}, "JobDescription: {Extra: [Other]}"),
    ({"Requirements": {"Memory": 4000}}, "JobDescription: {Memory: {type: number, max: 1000}}"),
    ({"Requirements": {"Memory": 4000}}, "JobDescription: {Memory: {type: string}}"),
    ({"Requirements": {"Memory": 9000}}, "JobScheduling: {RejectUnmatchable: true}"),
    ({"Site": "No.Site.org"}, "JobScheduling: {AllowInvalidSites: false}"),
    ({"JobPath": ["Own"]}, "JobPath: {Chain: [JobSanity]}"),
]


@pytest.mark.parametrize("was_taken", [True, False])
@pytest.mark.parametrize(("stated", "options"), LATER_OPTIONS)
def test_a_later_option_neither_fails_nor_changes_an_accepted_job(
    stated: dict[str, object], options: str, engine: Engine, now: datetime, *, was_taken: bool
) -> None:
    def own(candidate: JobContext, context: ChainContext) -> Outcome:
        return Done(candidate=candidate)

    config = grid(GRID + "Operations: {Defaults: {JobDescription: {Extra: [Wiki]}}}\n")
    steps = with_step("Own", own)
    [job_id] = submit(engine, config, now, {**JOB, **stated})
    batch.optimize(engine, config, [job_id], now=now, steps=steps)
    before = asked(engine, job_id)
    with database.writing(engine) as conn:
        if was_taken:  # and is sent back by an operator, who counts its reschedulings anew
            stored_rows.force(conn, job_id, epoch=1)
            assert control.reset_jobs(conn, [job_id], source="ann", now=now)
        else:
            assert control.reschedule_jobs(conn, [job_id], source="ann", now=now, maximum=3)
    stricter = grid(f"{GRID}Operations: {{Defaults: {{{options}}}}}\n", 2)
    for minutes in (0, 10):  # held for the delay after a rescheduling, and then again in the chain
        batch.optimize(engine, stricter, [job_id], now=now + timedelta(minutes=minutes), steps=steps)
        assert job(engine, job_id).status != "Failed"
    assert (job(engine, job_id).status, asked(engine, job_id)) == ("Waiting", before)


def asked(engine: Engine, job_id: int) -> object:
    """What a waiting job asks of its queue, and how it is shown."""
    found = job(engine, job_id)
    assert found.task_queue_id is not None
    with database.reading(engine) as conn:
        asked = listing.read_requirement_class(conn, found.task_queue_id)
    return asked, found.submit_pool, found.priority, found.minor_status


def test_a_job_that_is_back_is_held_where_a_step_would_fail_it(engine: Engine, now: datetime) -> None:
    [job_id] = submit(engine, grid(), now, JOB)
    batch.optimize(engine, grid(), [job_id], now=now)
    stored_rows.reschedule(engine, now, job_id)

    def fail(candidate: JobContext, context: ChainContext) -> Outcome:
        return Failed(reason="its data are gone")

    result = batch.optimize(engine, grid(), [job_id], now=now, steps=with_step("Requirements", fail))
    assert (result.held, job(engine, job_id).application_status) == ((job_id,), "its data are gone")


def test_a_held_job_is_visible_and_goes_on_after_its_delay(engine: Engine, now: datetime) -> None:
    def once(candidate: JobContext, context: ChainContext) -> Outcome:
        if candidate.held_by == "Requirements":
            return Done(candidate=candidate)
        return Hold(reason="not yet", delay=timedelta(seconds=90))

    steps = with_step("Requirements", once)
    [job_id] = submit(engine, grid(), now, JOB)
    assert batch.optimize(engine, grid(), [job_id], now=now, steps=steps).held == (job_id,)
    held = job(engine, job_id)
    assert (held.status, held.minor_status) == ("Checking", "Requirements")
    assert held.application_status == "not yet"
    early = batch.optimize(engine, grid(), [job_id], now=now + timedelta(seconds=89), steps=steps)
    assert early.left == (job_id,)
    with database.reading(engine) as conn:
        assert optimizer_queue.list_due(conn, now=now + timedelta(seconds=90), most=10) == [job_id]
    later = now + timedelta(seconds=90)
    assert batch.optimize(engine, grid(), [job_id], now=later, steps=steps).waiting == (job_id,)
    assert way(engine, job_id) == ["Received", "Checking", "Waiting"]
    assert job(engine, job_id).application_status == ""


def test_the_hold_time_is_configured(engine: Engine, now: datetime) -> None:
    config = grid(GRID + "Operations: {Defaults: {JobScheduling: {HoldTime: 42}}}\n")
    [job_id] = submit(engine, config, now, {**JOB, "InputData": "/lhcb/x"})
    batch.optimize(engine, config, [job_id], now=now)
    assert job(engine, job_id).due_at == now + timedelta(seconds=42)


def test_a_rescheduled_job_waits_for_its_delay_and_comes_again(engine: Engine, now: datetime) -> None:
    [job_id] = submit(engine, grid(), now, NEEDS_4000)
    batch.optimize(engine, grid(), [job_id], now=now)
    stored_rows.reschedule(engine, now, job_id)
    batch.optimize(engine, grid(), [job_id], now=now)
    assert job(engine, job_id).application_status.startswith("rescheduled 1 time,")
    batch.optimize(engine, grid(), [job_id], now=now + timedelta(seconds=60))
    assert way(engine, job_id) == ["Received", "Waiting", "Rescheduled", "Checking", "Waiting"]
    assert waiting(engine) == [job_id]


def test_a_job_that_is_killed_on_its_way_stays_killed(engine: Engine, now: datetime) -> None:
    def kill(candidate: JobContext, context: ChainContext) -> Outcome:
        stored_rows.kill(engine, now, candidate.job_id)
        return Done(candidate=candidate)

    [job_id] = submit(engine, grid(), now, JOB)
    result = batch.optimize(engine, grid(), [job_id], now=now, steps=with_step("Requirements", kill))
    assert result.left == (job_id,)
    assert way(engine, job_id) == ["Received", "Killed"]
    assert waiting(engine) == []


def test_a_job_without_an_eligible_queue_says_so_and_waits(engine: Engine, now: datetime) -> None:
    [job_id] = submit(engine, grid(), now, NEEDS_TOO_MUCH)
    batch.optimize(engine, grid(), [job_id], now=now)
    assert (job(engine, job_id).status, job(engine, job_id).minor_status) == ("Waiting", NO_ELIGIBLE_QUEUE)
    assert waiting(engine) == [job_id]


def test_a_job_without_an_eligible_queue_fails_where_that_is_wanted(engine: Engine, now: datetime) -> None:
    config = grid(GRID + "Operations: {lhcb: {JobScheduling: {RejectUnmatchable: true}}}\n")
    [job_id] = submit(engine, config, now, NEEDS_TOO_MUCH)
    batch.optimize(engine, config, [job_id], now=now)
    found = job(engine, job_id)
    assert (found.status, found.minor_status) == ("Failed", "Requirements optimizer")
    assert found.application_status == NO_ELIGIBLE_QUEUE
    assert count(engine, submit_pools) == 0


def test_an_old_configuration_fails_no_job_but_holds_it(engine: Engine, now: datetime) -> None:
    config = grid(GRID + "Operations: {lhcb: {JobScheduling: {RejectUnmatchable: true}}}\n")
    [job_id] = submit(engine, config, now, NEEDS_TOO_MUCH)
    store_grid(engine, now)
    newest = store_grid(engine, now, f"{GRID}# again").version
    assert newest > config.version
    batch.optimize(engine, config, [job_id], now=now)
    held = job(engine, job_id)
    assert (held.status, held.minor_status) == ("Checking", "Requirements")
    assert "the configuration has changed" in held.application_status
    batch.optimize(engine, grid(version=newest), [job_id], now=now + timedelta(minutes=1))
    assert (job(engine, job_id).status, job(engine, job_id).minor_status) == ("Waiting", NO_ELIGIBLE_QUEUE)


def test_what_is_stored_of_a_pool_counts_more_than_an_older_configuration(
    engine: Engine, now: datetime
) -> None:
    richer = grid(GRID.replace("8000", "16000"), 2)
    for config in (richer, grid()):
        [job_id] = submit(engine, config, now, NEEDS_TOO_MUCH)
        batch.optimize(engine, config, [job_id], now=now)
        assert job(engine, job_id).minor_status == "Pilot Agent Submission"


def test_a_pool_that_an_older_configuration_brings_is_left_to_the_pool_agent(
    engine: Engine, now: datetime
) -> None:
    databases.execute(engine, insert(queue_class_versions).values(vo="lhcb", config_version=7))
    [job_id] = submit(engine, grid(), now, NEEDS_4000)
    batch.optimize(engine, grid(), [job_id], now=now)
    assert waiting(engine) == [job_id]
    with database.reading(engine) as conn:
        assert pools.get_pool(conn, POOL_4000).refreshed_at is None
        assert queue_class_store.read_version(conn, "lhcb") == 7


def test_a_job_without_requirements_has_no_pool(engine: Engine, now: datetime) -> None:
    [job_id] = submit(engine, grid(), now, JOB)
    batch.optimize(engine, grid(), [job_id], now=now)
    assert job(engine, job_id).submit_pool is None
    assert count(engine, submit_pools) == 0


def test_the_inline_optimizer_takes_what_is_rung_for(engine: Engine, now: datetime) -> None:
    done: list[batch.BatchResult] = []
    inline = InlineOptimizer(engine, grid, clock=lambda: now, observe=done.append)
    ids = submit(engine, grid(), now, JOB, JOB, JOB)
    inline.start()
    assert inline.alive
    for job_id in ids:
        inline.notify([job_id])
    inline.stop()
    assert not inline.alive
    assert waiting(engine) == ids


def test_the_inline_optimizer_outlives_a_defect(engine: Engine, now: datetime) -> None:
    failed = threading.Event()

    def current() -> Configuration:
        if not failed.is_set():
            failed.set()
            raise ZeroDivisionError("no configuration")
        return grid()

    inline = InlineOptimizer(engine, current, clock=lambda: now)
    first, second = submit(engine, grid(), now, JOB, JOB)
    inline.notify([first])
    inline.start()
    assert failed.wait(300), "the second is in no batch with the first"
    inline.notify([second])
    inline.stop()
    assert second in waiting(engine)


def test_a_pool_whose_queues_cannot_be_found_holds_its_own_jobs_only(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = QueueClassIndex.resolve_pool

    def fail(self: QueueClassIndex, pool_id: str, requirements: Requirements) -> EligibleSets:
        if pool_id == POOL_4000:
            raise RecursionError("too deep")
        return resolve(self, pool_id, requirements)

    monkeypatch.setattr(QueueClassIndex, "resolve_pool", fail)
    bad, good, plain = submit(engine, grid(), now, NEEDS_4000, NEEDS_TOO_MUCH, JOB)
    result = batch.optimize(engine, grid(), [bad, good, plain], now=now)
    assert (set(result.waiting), result.held) == ({good, plain}, (bad,))


BOUNDED = grid(GRID + "Operations: {Defaults: {Limits: {Pools: 3}, JobScheduling: {HoldTime: 60}}}\n")
NO_POOL = "waits for another SubmitPool of the VO to go: it has 3, as many as Limits/Pools allows"


def _needing(*sizes: int) -> list[dict[str, object]]:
    return [{**JOB, "Requirements": {"Memory": size}} for size in sizes]


def test_jobs_that_need_more_pools_than_their_vo_may_have_wait_until_others_go(
    engine: Engine, now: datetime
) -> None:
    ids = submit(engine, BOUNDED, now, *_needing(1000, 1001, 1002, 1003, 1000, 1004))
    result = batch.optimize(engine, BOUNDED, ids, now=now)
    assert result.waiting == (*ids[:3], ids[4])
    assert result.held == (ids[3], ids[5])
    found = job(engine, ids[3])
    assert (found.status, found.application_status) == ("Checking", NO_POOL)
    later = now + timedelta(seconds=60)
    assert batch.optimize(engine, BOUNDED, ids, now=later).held == (ids[3], ids[5])
    with database.writing(engine) as conn:
        assert control.kill_jobs(conn, [ids[2]], source="test", now=later)
        gone = pools.delete_unused(conn, vo="lhcb", before=later + timedelta(days=1), now=later)
    assert len(gone) == 1
    result = batch.optimize(engine, BOUNDED, ids, now=later + timedelta(seconds=60))
    assert (result.waiting, result.held) == ((ids[3],), (ids[5],))
    assert count(engine, submit_pools) == 3


def test_pools_that_exist_are_used_also_at_the_bound(engine: Engine, now: datetime) -> None:
    for size in range(1000, 1005):
        [job_id] = submit(engine, BOUNDED, now, *_needing(size))
        batch.optimize(engine, BOUNDED, [job_id], now=now)
    assert count(engine, submit_pools) == 3
    [again] = submit(engine, BOUNDED, now, *_needing(1000))
    batch.optimize(engine, BOUNDED, [again], now=now)
    assert job(engine, again).status == "Waiting"


def test_two_batches_at_once_make_no_more_pools_than_allowed(engine: Engine, now: datetime) -> None:
    first = submit(engine, BOUNDED, now, *_needing(1000, 1001))
    second = submit(engine, BOUNDED, now, *_needing(1002, 1003))
    with ThreadPoolExecutor(1) as threads:
        touch, begun = pools.touch_pools, list[Future[batch.BatchResult]]()

        def begin_the_other(conn: Connection, *wanted: Any, **named: Any) -> frozenset[str]:
            if not begun:
                begun.append(threads.submit(batch.optimize, engine, BOUNDED, second, now=now))
                if engine.dialect.name == "postgresql":
                    until(lambda: databases.count_lock_waits(engine))
            return touch(conn, *wanted, **named)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(pools, "touch_pools", begin_the_other)
            assert batch.optimize(engine, BOUNDED, first, now=now).waiting == tuple(first)
            result = begun[0].result(300)
    assert (len(result.waiting), len(result.held)) == (1, 1)
    assert count(engine, submit_pools) == 3
