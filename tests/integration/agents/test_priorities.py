"""The priority agent: weights follow shares, what waits and what was used; every matcher learns of it."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, delete, select

from agents import priorities
from agents.effective_shares import UsageCache
from agents.priorities import PriorityResult, PriorityState
from cs_config.options.options import Measure, TimeSlice
from cs_config.tree.configuration import Configuration
from matcher import demand
from matcher.claim.matcher import Matcher
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.schema.tables import attempts, waiting_jobs
from taskqueue.schema.tables import changes as changes_table
from taskqueue.schema.tables import task_queues as table
from taskqueue.task_queues import change_feed, task_queues
from taskqueue.task_queues.shares import ShareHolder
from tests.support import concurrency, databases
from tests.support.factories import stored_rows
from tests.support.factories.queued_jobs import (
    EVERYWHERE,
    GRID,
    claim,
    grid,
    matcher,
    put,
    request,
    task_queue_of,
)

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
SHORT = replace(EVERYWHERE, cpu_time=360)
GPU = replace(EVERYWHERE, tags=frozenset({"gpu"}))
CMS = replace(EVERYWHERE, vo="cms")


class Agent:
    """The priority agent of one process."""

    def __init__(self, engine: Engine, config: Configuration | None = None, name: str = "me") -> None:
        self.engine = engine
        self.config = config or grid()
        self.name = name
        self.memory = PriorityState()

    def cycle(self, now: datetime) -> PriorityResult:
        result = self.try_cycle(now)
        assert result is not None
        return result

    def try_cycle(self, now: datetime) -> PriorityResult | None:
        return priorities.cycle(self.engine, self.config, now=now, holder=self.name, memory=self.memory)


@pytest.fixture
def agent(engine: Engine) -> Agent:
    return Agent(engine)


def add(engine: Engine, now: datetime, count: int = 1, **about: object) -> int:
    """Jobs that wait; their task queue."""
    with database.writing(engine) as conn:
        return task_queue_of(conn, put(conn, now, count, **about)[0])  # type: ignore[arg-type]


def weights(engine: Engine) -> Mapping[int, float]:
    with database.reading(engine) as conn:
        return {row.task_queue_id: row.priority for row in conn.execute(select(table))}


def told(engine: Engine) -> list[str]:
    """The groups whose weights the feed says have changed."""
    statement = (
        select(changes_table.c.key)
        .where(changes_table.c.kind == change_feed.PRIORITY)
        .order_by(changes_table.c.change_id)
    )
    return databases.scalars(engine, statement)


def drain(engine: Engine, task_queue: int) -> None:
    with database.writing(engine) as conn:
        conn.execute(delete(waiting_jobs).where(waiting_jobs.c.task_queue_id == task_queue))
        task_queues.mark_empty(conn, [task_queue], now=datetime.now().astimezone())


def test_groups_owners_and_jobs_weigh_as_the_rules_say(engine: Engine, now: datetime) -> None:
    config = grid(GRID.replace("lhcb_prod: {", "lhcb_prod: {JobShare: 5000, AllowBackgroundTQs: true, "))
    both = [add(engine, now, 3), add(engine, now, asked=SHORT, priority=4)]
    bob = add(engine, now, owner="bob", priority=10)
    shared = [
        add(engine, now, group="lhcb_prod", priority=3),
        add(engine, now, group="lhcb_prod", owner="bob"),
        add(engine, now, group="lhcb_prod", owner="eve", priority=0.1),
    ]
    Agent(engine, config).cycle(now)
    found = weights(engine)
    assert [found[each] for each in [*both, bob, *shared]] == pytest.approx(
        [100, 400, 500, 3750, 1250, 0.001]
    )


def test_a_task_queue_that_gets_jobs_again_is_weighed_in_the_next_cycle(
    engine: Engine, now: datetime, agent: Agent
) -> None:
    first, second = add(engine, now), add(engine, now, asked=SHORT)
    drain(engine, second)
    agent.cycle(now)
    assert weights(engine) == {first: 1000, second: 1}
    assert add(engine, now + SECOND, asked=SHORT) == second
    agent.cycle(now + 2 * SECOND)
    assert weights(engine) == {first: 500, second: 500}


def test_of_a_vo_with_a_new_task_queue_the_other_jobs_are_counted_with_all_weights(
    engine: Engine, now: datetime, agent: Agent
) -> None:
    old = add(engine, now, priority=1)
    agent.cycle(now)
    add(engine, now, 3, priority=5)
    new = add(engine, now + SECOND, asked=SHORT, priority=1)
    agent.cycle(now + 2 * SECOND)
    assert weights(engine) == {old: 500, new: 500}
    agent.cycle(now + 120 * SECOND)
    assert weights(engine) == {old: 800, new: 200}


def test_a_task_queue_that_came_and_went_has_no_part(engine: Engine, now: datetime, agent: Agent) -> None:
    stays = add(engine, now)
    agent.cycle(now)
    gone = add(engine, now, asked=SHORT)
    agent.cycle(now + SECOND)
    drain(engine, gone)
    add(engine, now + 2 * SECOND, asked=GPU, owner="bob")
    agent.cycle(now + 3 * SECOND)
    assert weights(engine)[stays] == 500


def test_a_new_task_queue_of_one_vo_costs_the_others_nothing(
    engine: Engine, now: datetime, agent: Agent
) -> None:
    add(engine, now)
    agent.cycle(now)
    add(engine, now, asked=CMS)
    assert agent.cycle(now + SECOND) == PriorityResult(vos=("cms",), weighed=1, changed=1)


def test_a_cycle_without_news_reads_no_jobs_and_writes_nothing(
    engine: Engine, now: datetime, agent: Agent
) -> None:
    task_queue = add(engine, now)
    agent.cycle(now)
    assert told(engine) == ["lhcb_user"]
    add(engine, now, 5, priority=7)  # into a task queue that has jobs
    drain_one = add(engine, now, asked=SHORT)
    agent.cycle(now + SECOND)
    drain(engine, drain_one)
    for second in range(2, 100, 7):
        assert agent.cycle(now + second * SECOND) == PriorityResult()
    assert told(engine) == ["lhcb_user", "lhcb_user"]
    assert weights(engine)[task_queue] < 1000


def test_what_was_drained_goes_to_the_others_within_two_minutes(
    engine: Engine, now: datetime, agent: Agent
) -> None:
    stays, goes, bobs = (
        add(engine, now),
        add(engine, now, asked=SHORT),
        add(engine, now, owner="bob"),
    )
    agent.cycle(now)
    assert weights(engine) == {stays: 250, goes: 250, bobs: 500}
    drain(engine, goes)
    drain(engine, bobs)
    assert agent.cycle(now + 119 * SECOND) == PriorityResult()
    assert agent.cycle(now + 120 * SECOND) == PriorityResult(vos=("lhcb",), weighed=1, changed=1)
    assert weights(engine)[stays] == 1000


def test_only_groups_with_a_difference_are_told(engine: Engine, now: datetime, agent: Agent) -> None:
    add(engine, now)
    add(engine, now, group="lhcb_prod")
    agent.cycle(now)
    add(engine, now, group="lhcb_prod", owner="bob", asked=SHORT)
    agent.cycle(now + SECOND)
    assert told(engine) == ["lhcb_prod", "lhcb_user", "lhcb_prod"]


def test_a_change_of_the_configuration_is_followed_at_once(
    engine: Engine, now: datetime, agent: Agent
) -> None:
    only = add(engine, now, group="lhcb_prod")
    agent.cycle(now)
    agent.config = grid(GRID.replace("lhcb_prod: {", "lhcb_prod: {JobShare: 5, "), version=2)
    agent.cycle(now + SECOND)
    assert weights(engine) == {only: 5}


def test_one_process_weighs_and_another_takes_over_from_the_beginning(
    engine: Engine, now: datetime, agent: Agent
) -> None:
    other = Agent(engine, name="other")
    first = add(engine, now)
    agent.cycle(now)
    assert other.try_cycle(now) is None
    second = add(engine, now, asked=SHORT)
    assert other.cycle(now + 40 * SECOND) == PriorityResult(vos=("lhcb",), weighed=2, changed=2)
    drain(engine, second)
    assert agent.try_cycle(now + 41 * SECOND) is None
    assert agent.cycle(now + 80 * SECOND).weighed == 1  # not what it remembers, all there is
    assert weights(engine)[first] == 1000


def test_what_could_not_be_written_is_weighed_in_the_next_cycle(
    engine: Engine, now: datetime, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(engine, now)
    agent.cycle(now)
    new = add(engine, now, asked=SHORT)

    def away(*_: object, **__: object) -> None:
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr("taskqueue.task_queues.priorities.store_weights", away)
        assert agent.cycle(now + SECOND).broken == ("lhcb",)
    agent.cycle(now + 2 * SECOND)
    assert weights(engine)[new] == 500


def test_many_task_queues_are_weighed_in_parts(
    engine: Engine, now: datetime, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(priorities, "_BATCH_SIZE", 10)
    for number in range(25):
        add(engine, now, asked=replace(EVERYWHERE, gpus=number))
    assert agent.cycle(now) == PriorityResult(vos=("lhcb",), weighed=25, changed=25)
    assert set(weights(engine).values()) == {40}
    assert told(engine) == ["lhcb_user"] * 3


def test_jobs_that_arrive_meanwhile_lose_nothing(engine: Engine, now: datetime, agent: Agent) -> None:
    """Who puts jobs into a task queue holds its row: the agent waits, and looks again later."""
    first = add(engine, now)

    def arrive(conn: Connection) -> None:
        put(conn, now)
        put(conn, now, asked=SHORT)

    concurrency.meanwhile(engine, arrive, lambda: agent.cycle(now))
    agent.cycle(now + SECOND)
    assert sorted(weights(engine).values()) == [500, 500]
    with database.reading(engine) as conn:
        assert task_queues.count_waiting(conn, [first]) == {first: 2}


def shown(asked: Matcher) -> dict[int, float]:
    """The weights that a matcher draws with."""
    listings = demand.get_matching_task_queues(asked, request(Site="A.B.ch").presented, request().caller)
    return {each.task_queue.task_queue_id: each.task_queue.priority for each in listings}


def test_every_matcher_learns_of_other_weights(engine: Engine, now: datetime, agent: Agent) -> None:
    first = add(engine, now)
    matchers = [matcher(engine, now), matcher(engine, now)]
    assert [shown(each) for each in matchers] == [{first: 1}, {first: 1}]
    agent.cycle(now)
    assert [shown(each) for each in matchers] == [{first: 1000}, {first: 1000}]
    second = add(engine, now, asked=SHORT)
    assert shown(matchers[0]) == {first: 1000, second: 1}
    agent.cycle(now + SECOND)
    assert [shown(each) for each in matchers] == [{first: 500, second: 500}] * 2


def test_matchers_know_which_task_queues_weigh_together(engine: Engine, now: datetime) -> None:
    one = add(engine, now)
    split = add(engine, now, asked=replace(EVERYWHERE, sites=frozenset({"A.B.ch"}), min_ram=2000))
    other, bobs = add(engine, now, asked=SHORT), add(engine, now, owner="bob")
    with database.reading(engine) as conn:
        family = {each.task_queue_id: each.family for each in task_queues.list_occupied(conn)}
    assert family[one] == family[split]
    assert len({family[one], family[other], family[bobs]}) == 3


def test_pilots_are_given_to_groups_in_proportion_to_their_shares(engine: Engine, now: datetime) -> None:
    config = grid(GRID.replace("lhcb_prod: {", "lhcb_prod: {JobShare: 3000, "))
    with database.writing(engine) as conn:
        for number in range(10):
            put(conn, now, 40, asked=replace(EVERYWHERE, sites=frozenset({"A.B.ch", f"S{number}"})))
        put(conn, now, 400, group="lhcb_prod")
    Agent(engine, config).cycle(now)
    asked = matcher(engine, now, config)
    given = [asked.serve([request(Site="A.B.ch")])[0] for _ in range(200)]
    users = sum(1 for each in given if each.claimed[0].job_id <= 400)  # type: ignore[union-attr]
    assert 30 < users < 72, "a quarter, however many task queues they made of it"


def run(
    engine: Engine, began: datetime, *, hours: float | None, group: str, cores: int = 1, owner: str = "alice"
) -> None:
    """A job that was begun then, and ended after some hours; None: it still runs."""
    asked = replace(EVERYWHERE, processors_min=cores, gpus=7)
    with database.writing(engine) as conn:
        [job_id] = put(conn, began, asked=asked, group=group, owner=owner)
        [claimed] = claim(conn, [task_queue_of(conn, job_id)], began)
        assert claimed.job_id == job_id
        attempt = attempts.update().where(attempts.c.job_id == job_id)
        if hours is None:
            conn.execute(attempt.values(started_at=began))
            stored_rows.force(conn, job_id, status=JobStatus.RUNNING.value)
        else:
            ended = began + hours * HOUR
            conn.execute(attempt.values(started_at=began, closed_at=ended, closed_as="finished"))
            stored_rows.force(conn, job_id, status=JobStatus.DONE.value, updated_at=ended)
        task_queues.mark_empty(conn, [task_queue_of(conn, job_id)], now=began)


def slice_of(span: timedelta, half_life: timedelta | None = None) -> TimeSlice:
    stated = {"TimeSpan": span.total_seconds()}
    if half_life is not None:
        stated["HalfLife"] = half_life.total_seconds()
    return TimeSlice.model_validate(stated)


def used(
    engine: Engine,
    now: datetime,
    *,
    span: timedelta = 24 * HOUR,
    measure: Measure = Measure.WALL_TIME,
    half_life: timedelta | None = None,
    history: UsageCache | None = None,
) -> Mapping[ShareHolder, float]:
    part = slice_of(span, half_life)
    with database.reading(engine) as conn:
        found = (history or UsageCache()).read_usage(conn, "lhcb", part, measure=measure, now=now)
    return {who: pytest.approx(amount) for who, amount in found.items()}


USERS = ShareHolder("lhcb", "lhcb_user")
PROD = ShareHolder("lhcb", "lhcb_prod")


def test_use_is_wall_time_times_cores_or_the_number_of_jobs(engine: Engine, now: datetime) -> None:
    run(engine, now - 10 * HOUR, hours=2, group="lhcb_user", cores=8)
    run(engine, now - 10 * HOUR, hours=1, group="lhcb_user", owner="bob")
    run(engine, now - HOUR / 2, hours=None, group="lhcb_prod")
    alice, bob = ShareHolder("lhcb", "lhcb_user", "alice"), ShareHolder("lhcb", "lhcb_user", "bob")
    assert used(engine, now) == {
        alice: 16 * 3600,
        bob: 3600,
        USERS: 17 * 3600,
        PROD: 1800,
        ShareHolder("lhcb", "lhcb_prod", "alice"): 1800,
    }
    assert used(engine, now, measure=Measure.JOBS)[USERS] == 2


def test_only_what_ended_in_the_time_counts_and_only_of_the_vo(engine: Engine, now: datetime) -> None:
    run(engine, now - 10 * HOUR, hours=2, group="lhcb_user")
    assert used(engine, now, span=7 * HOUR) == {}
    assert used(engine, now, span=9 * HOUR)[USERS] == 2 * 3600
    with database.reading(engine) as conn:
        assert UsageCache().read_usage(conn, "cms", slice_of(9 * HOUR), measure=Measure.JOBS, now=now) == {}


def test_what_is_remembered_of_use_is_renewed_and_says_the_same(engine: Engine, now: datetime) -> None:
    history = UsageCache()
    moment = now
    for number in range(30):
        run(engine, moment - HOUR, hours=0.9, group="lhcb_user")
        remembered = used(engine, moment, history=history, span=5 * HOUR)
        if number % 3 == 0:
            # Every 20 minutes a look, and a job; what is older than 15 minutes is read again.
            assert remembered == used(engine, moment, span=5 * HOUR)
        moment += timedelta(minutes=20)
    assert len(history._hours) < 20


def test_use_is_not_read_again_within_a_quarter_of_an_hour(engine: Engine, now: datetime) -> None:
    history = UsageCache()
    assert used(engine, now, history=history) == {}
    run(engine, now, hours=0.1, group="lhcb_user")
    assert used(engine, now + 14 * SECOND * 60, history=history) == {}
    assert used(engine, now + 15 * SECOND * 60, history=history)[USERS] == 360


CORRECTED = GRID + "Operations: {lhcb: {JobScheduling: {EnableSharesCorrection: true}}}\n"


def test_who_used_more_than_the_share_gets_less_where_corrections_are_on(
    engine: Engine, now: datetime
) -> None:
    run(engine, now - 10 * HOUR, hours=8, group="lhcb_user")
    run(engine, now - 10 * HOUR, hours=2, group="lhcb_prod")
    users, prod = add(engine, now), add(engine, now, group="lhcb_prod")
    Agent(engine).cycle(now)
    assert weights(engine)[users] == weights(engine)[prod] == 1000
    Agent(engine, grid(CORRECTED, version=2)).cycle(now)
    found = weights(engine)
    assert (found[users], found[prod]) == pytest.approx((400, 1600))


def test_owners_of_a_group_are_corrected_among_themselves(engine: Engine, now: datetime) -> None:
    text = CORRECTED.replace("true}", "true, ShareCorrections: {users: {Group: lhcb_user, Measure: Jobs}}}")
    for _ in range(3):
        run(engine, now - 10 * HOUR, hours=2, group="lhcb_user")
    run(engine, now - 10 * HOUR, hours=9, group="lhcb_user", owner="bob")
    alice, bob, prod = add(engine, now), add(engine, now, owner="bob"), add(engine, now, group="lhcb_prod")
    Agent(engine, grid(text)).cycle(now)
    found = weights(engine)
    assert (found[alice], found[bob], found[prod]) == pytest.approx((250, 750, 1000))


def test_a_group_that_shares_has_no_owners_to_correct(engine: Engine, now: datetime) -> None:
    text = CORRECTED.replace("true}", "true, ShareCorrections: {prod: {Group: lhcb_prod}}}")
    run(engine, now - 10 * HOUR, hours=2, group="lhcb_prod")
    prod = add(engine, now, group="lhcb_prod")
    Agent(engine, grid(text)).cycle(now)
    assert weights(engine)[prod] == 1000


def test_use_counts_half_after_each_half_life(engine: Engine, now: datetime) -> None:
    at = now.replace(minute=0, second=0, microsecond=0)
    for days in (1, 2, 3):
        run(engine, at - days * 24 * HOUR - 9 * HOUR, hours=8, group="lhcb_user")  # ends in the hour before
    found = used(engine, at, span=30 * 24 * HOUR, half_life=24 * HOUR)
    assert found[USERS] == 8 * 3600 * (1 / 2 + 1 / 4 + 1 / 8)
    assert used(engine, at, span=30 * 24 * HOUR)[USERS] == 3 * 8 * 3600


def test_what_runs_now_and_ended_in_this_hour_has_not_decayed(engine: Engine, now: datetime) -> None:
    run(engine, now - 3 * HOUR, hours=None, group="lhcb_user")
    run(engine, now - 5 * HOUR, hours=5, group="lhcb_prod")
    found = used(engine, now, half_life=HOUR)
    assert (found[USERS], found[PROD]) == (3 * 3600, 5 * 3600)


def test_a_share_recovers_as_its_use_decays_and_a_new_process_agrees(engine: Engine, now: datetime) -> None:
    text = CORRECTED.replace(
        "true}", "true, ShareCorrections: {groups: {TimeSlices: {decay: {HalfLife: 86400}}}}}"
    )
    at = now.replace(minute=0, second=0, microsecond=0)
    run(engine, at - 49 * HOUR, hours=48.5, group="lhcb_user")
    users, prod = add(engine, now), add(engine, now, group="lhcb_prod")
    later = at + 48 * HOUR
    run(engine, later - 2 * HOUR, hours=1.5, group="lhcb_prod", cores=8)  # 12 core hours
    Agent(engine, grid(text), name="first").cycle(later)
    found = weights(engine)
    of_users = 48.5 / 2 ** (48 / 24) / (48.5 / 2 ** (48 / 24) + 12)
    due = {users: 0.5 / of_users, prod: 0.5 / (1 - of_users)}
    assert found[users] / found[prod] == pytest.approx(due[users] / due[prod])
    restarted = Agent(engine, grid(text), name="first").cycle(later + SECOND)
    assert (restarted.weighed, restarted.changed) == (2, 0)
