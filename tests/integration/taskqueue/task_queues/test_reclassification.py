"""Jobs that wait follow the configured defaults of what they do not state; what they state stays."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, delete, select, update

from agents import pools as pool_agent
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from optimizers.submit import submission
from requirements.requirement_class import RequirementClass
from taskqueue.db import database
from taskqueue.jobs import descriptions
from taskqueue.schema.tables import jobs, waiting_jobs
from taskqueue.schema.tables import task_queues as task_queue_table
from taskqueue.task_queues import listing, reclassification, task_queues
from tests.support import databases, wait
from tests.support.factories.submitted_jobs import ANN, GRID, grid, job

SECOND = timedelta(seconds=1)


def with_defaults(version: int, **defaults: object) -> Configuration:
    stated = ", ".join(f"{name}: {{default: {value}}}" for name, value in defaults.items())
    return grid(f"{GRID}Operations: {{Defaults: {{JobDescription: {{{stated}}}}}}}\n", version)


def arrive(engine: Engine, config: Configuration, now: datetime, *stated: dict[str, object]) -> list[int]:
    sources = [{"Executable": "a", **each} for each in stated]
    accepted = submission.submit(engine, config, ANN, sources, now=now)
    assert len(accepted.decided.waiting) == len(sources)
    return accepted.job_ids


def cycle(engine: Engine, config: Configuration, now: datetime) -> int:
    result = pool_agent.cycle(engine, config, now=now, holder="me")
    assert result is not None
    assert not result.broken
    return result.reclassified


def asked(engine: Engine, job_id: int) -> RequirementClass:
    task_queue_id = job(engine, job_id).task_queue_id
    assert task_queue_id is not None
    with database.reading(engine) as conn:
        assert task_queues.find_by_job(conn, job_id) == task_queue_id
        found = listing.read_requirement_class(conn, task_queue_id)
    assert found is not None
    return found


def test_a_waiting_job_gets_the_defaults_of_today(engine: Engine, now: datetime) -> None:
    [job_id] = arrive(engine, with_defaults(1, MinRAM=1000, Site="A.B.ch", JobType="User"), now, {})
    assert (asked(engine, job_id).min_ram, asked(engine, job_id).sites) == (1000, {"A.B.ch"})
    later = with_defaults(2, MinRAM=3000, CPUTime=7200, JobType="Merge", Tags="fast")
    assert cycle(engine, later, now + SECOND) == 1
    found = asked(engine, job_id)
    assert (found.min_ram, found.cpu_time, found.sites) == (3000, 21_600, frozenset())
    assert (found.job_types, found.tags) == ({"Merge"}, {"fast"})
    assert (job(engine, job_id).job_type, job(engine, job_id).site) == ("Merge", "ANY")
    assert cycle(engine, later, now + 2 * SECOND) == 0


def test_what_a_job_states_stays(engine: Engine, now: datetime) -> None:
    stated: dict[str, object] = {"MinRAM": 0, "WholeNode": False, "GPUs": 0, "Priority": 2, "JobType": "MC"}
    [job_id] = arrive(engine, with_defaults(1), now, {**stated, "Site": "ANY", "CPUTime": 100})
    later = with_defaults(2, MinRAM=9, WholeNode=True, GPUs=1, Priority=7, Site="C.D.ch", CPUTime=90_000)
    before = asked(engine, job_id)
    assert cycle(engine, later, now + SECOND) == 1
    assert asked(engine, job_id) == before
    assert (job(engine, job_id).priority, job(engine, job_id).job_type) == (2, "MC")


def test_priorities_that_are_not_stated_follow_the_default(engine: Engine, now: datetime) -> None:
    one, two = arrive(engine, with_defaults(1), now, {}, {"Priority": 1})
    assert cycle(engine, with_defaults(2, Priority=7), now + SECOND) == 2
    with database.reading(engine) as conn:
        stored = conn.execute(
            select(jobs.c.job_id, jobs.c.priority, waiting_jobs.c.priority).join(
                waiting_jobs, waiting_jobs.c.job_id == jobs.c.job_id
            )
        ).all()
    assert sorted(map(tuple, stored)) == [(one, 7, 7), (two, 1, 1)]


def test_priorities_are_put_aside_and_come_back_as_they_were_stated(engine: Engine, now: datetime) -> None:
    off = grid(f"{GRID}Operations: {{lhcb: {{JobScheduling: {{EnableUserPriority: false}}}}}}\n", 2)
    stated = ({}, {"Priority": 7}, {"Priority": 0.5}, {"UserPriority": 3}, {"UserPriority": 3})
    every = arrive(engine, with_defaults(1, Priority=2), now, *stated)
    before = [(0.5, 0.5), (2, 2), (3, 3), (3, 3), (7, 7)]
    assert read_priorities(engine) == before
    assert cycle(engine, off, now + SECOND) == 2, "classes"
    assert read_priorities(engine) == [(1, 1)] * 5
    late = arrive(engine, off, now, {"Priority": 9})
    assert read_priorities(engine) == [(1, 1)] * 6
    assert cycle(engine, off, now + timedelta(minutes=1)) == 0
    with database.reading(engine) as conn:
        assert descriptions.read_description(conn, late[0]).body["Priority"] == 9
        assert "Priority" not in descriptions.read_description(conn, every[0]).body
    assert cycle(engine, with_defaults(3, Priority=2), now + timedelta(minutes=2)) == 2
    assert read_priorities(engine) == [*before, (9, 9)]
    assert cycle(engine, with_defaults(3, Priority=2), now + timedelta(minutes=3)) == 0


def test_jobs_of_both_configurations_come_together(engine: Engine, now: datetime) -> None:
    """A process with the older configuration may store jobs late."""
    first, second = with_defaults(1, MinRAM=1000), with_defaults(2, MinRAM=3000)
    early, new = arrive(engine, first, now, {}), arrive(engine, second, now, {})
    cycle(engine, second, now + SECOND)
    late = arrive(engine, first, now, {})
    cycle(engine, second, now + timedelta(minutes=1))
    every = [*early, *new, *late]
    assert {asked(engine, job_id).min_ram for job_id in every} == {3000}
    assert len({job(engine, job_id).task_queue_id for job_id in every}) == 1
    with database.reading(engine) as conn:
        assert list(task_queues.count_waiting(conn, [job(engine, new[0]).task_queue_id or 0]).values()) == [3]


def read_priorities(engine: Engine) -> list[tuple[float, float]]:
    """Of each waiting job, in both tables."""
    both = select(jobs.c.priority, waiting_jobs.c.priority)
    with database.reading(engine) as conn:
        found = conn.execute(both.join(waiting_jobs, waiting_jobs.c.job_id == jobs.c.job_id))
        return sorted(map(tuple, found))


def test_the_priority_of_a_late_job_follows_too(engine: Engine, now: datetime) -> None:
    """Its class is the same with both configurations."""
    first, second = with_defaults(1), with_defaults(2, Priority=7)
    arrive(engine, first, now, {})
    assert cycle(engine, second, now + SECOND) == 1
    arrive(engine, first, now, {})
    assert cycle(engine, second, now + timedelta(minutes=1)) == 1
    assert read_priorities(engine) == [(7, 7), (7, 7)]
    assert cycle(engine, second, now + timedelta(minutes=2)) == 0


def test_classes_that_come_together_are_derived_whole_after_a_crash(engine: Engine, now: datetime) -> None:
    first, second = with_defaults(1, MinRAM=1000), with_defaults(2, MinRAM=3000)
    arrive(engine, first, now, {})
    arrive(engine, second, now, {})
    third = with_defaults(3, MinRAM=3000, Priority=7)
    options = options_for(third, "lhcb")
    with database.writing(engine) as conn:
        known = dict(reclassification.list_outdated(conn, "lhcb", options, after=0, most=1))
        assert len(known) == 1
        reclassification.derive_again(
            conn,
            known={class_id: each for class_id, each in known.items() if each},
            options=options,
            now=now,
            most=1000,
        )
    cycle(engine, third, now + SECOND)
    cycle(engine, third, now + timedelta(minutes=1))
    assert read_priorities(engine) == [(7, 7), (7, 7)]


def finish_beside(engine: Engine, config: Configuration, now: datetime, end: Callable[[], object]) -> int:
    """Run a cycle that has to wait for a transaction, which ends meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(cycle, engine, config, now)
        wait.until(lambda: done.done() or databases.count_lock_waits(engine) > 0)
        end()
        return done.result()


def test_a_job_whose_claim_is_rolled_back_gets_the_defaults_of_today(
    postgresql: Engine, now: datetime
) -> None:
    arrive(postgresql, with_defaults(1), now, {})
    with postgresql.connect() as claim:
        claim.execute(select(waiting_jobs).with_for_update())
        finish_beside(postgresql, with_defaults(2, Priority=7), now + SECOND, claim.rollback)
    assert read_priorities(postgresql) == [(7, 7)]


def test_a_task_queue_that_arrives_meanwhile_is_used(postgresql: Engine, now: datetime) -> None:
    second = with_defaults(2, MinRAM=3000)
    [other] = arrive(postgresql, second, now, {})
    wanted = asked(postgresql, other), ANN.owner_group, ANN.owner
    with database.writing(postgresql) as conn:
        conn.execute(delete(waiting_jobs))
        conn.execute(update(jobs).values(task_queue_id=None))
        conn.execute(delete(task_queue_table))
    [job_id] = arrive(postgresql, with_defaults(1, MinRAM=1000), now, {})
    with postgresql.connect() as arriving:
        task_queues.hold_task_queues(arriving, [wanted], now=now)
        assert finish_beside(postgresql, second, now + SECOND, arriving.commit) == 1
    assert asked(postgresql, job_id).min_ram == 3000


def test_another_division_of_cpu_times_applies_to_jobs_that_state_none(engine: Engine, now: datetime) -> None:
    def divided(version: int, *segments: int) -> Configuration:
        options = f"JobScheduling: {{taskQueueCPUTimeIntervals: {list(segments)}}}"
        default = "JobDescription: {CPUTime: {default: 500}}"
        return grid(f"{GRID}Operations: {{Defaults: {{{options}, {default}}}}}\n", version)

    none, some = arrive(engine, divided(1, 86_400), now, {}, {"CPUTime": 600})
    assert asked(engine, none).cpu_time == asked(engine, some).cpu_time == 86_400
    cycle(engine, divided(2, 600, 100_000), now + SECOND)
    assert (asked(engine, none).cpu_time, asked(engine, some).cpu_time) == (600, 100_000)


@pytest.mark.parametrize(
    ("body", "added"),
    [
        ('{"Executable": "a"}', {"CPUTime": 1, "Priority": 2}),
        ('{"Executable": "a", "CPUTime": 9}', {"Priority": 2}),
        ('{"Executable": "a", "Requirements": {"CPUTime": 9}}', {"CPUTime": 1, "Priority": 2}),
        ('{"Executable": "\\"CPUTime\\": 9"}', {"CPUTime": 1, "Priority": 2}),
        ('{"CPUTime": 8, "Priority": 9}', {}),
    ],
)
def test_a_pilot_gets_the_defaults_of_today(body: str, added: dict[str, object]) -> None:
    defaults = {"CPUTime": '"CPUTime": 1', "Priority": '"Priority": 2'}
    filled = json.loads(descriptions.add_defaults(body, defaults))
    assert filled == {**json.loads(body), **added}
