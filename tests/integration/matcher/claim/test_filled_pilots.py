"""A request for several jobs fills the pilot: never beyond it, and nothing is left that a job could use."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from random import Random

import pytest
from sqlalchemy import Engine, update

from cs_config.options import bounds
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import Matcher
from matcher.request.match_request import MatchRequest
from requirements.requirement_class import RequirementClass
from taskqueue.db import database
from taskqueue.jobs import jobs
from taskqueue.leases import assignment
from taskqueue.leases.opening import ClaimedJob
from taskqueue.schema import tables
from taskqueue.task_queues import task_queues
from tests.support.factories import queued_jobs, submitted_jobs
from tests.support.factories.queued_jobs import EVERYWHERE, request

NODE = {"NumberOfProcessors": 8, "MaxRAM": 16000, "GPUs": 2, "Tag": "ANY"}
SINGLE = EVERYWHERE
FOUR = replace(EVERYWHERE, processors_min=4, processors_max=4)
WHOLE = replace(EVERYWHERE, processors_max=None, whole_node=True)


@pytest.fixture
def matcher(engine: Engine, now: datetime) -> Matcher:
    return queued_jobs.matcher(engine, now)


def _served(matcher: Matcher, *batch: MatchRequest) -> list[tuple[ClaimedJob, ...]]:
    looks = matcher.serve(batch)
    assert all(isinstance(look, ClaimResult) for look in looks), looks
    return [look.claimed for look in looks if isinstance(look, ClaimResult)]


def _cores(claimed: Sequence[ClaimedJob]) -> list[int]:
    return sorted(each.allotment.processors or 0 for each in claimed)


def test_jobs_of_several_cores_and_of_one_share_a_pilot(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    queued_jobs.put(engine, now, 5, asked=FOUR)
    queued_jobs.put(engine, now, 5, asked=replace(SINGLE, min_ram=5000))
    [given] = _served(matcher, request(count=100, **NODE))
    four = _cores(given).count(4)
    single = _cores(given).count(1)
    # Three of 5 GB, then one of four cores; or two of four cores; or one of them first.
    assert (four, single) in {(2, 0), (1, 3)}
    assert all(each.allotment.ram_mb == 5000 for each in given if each.allotment.processors == 1)


def test_a_count_is_the_most_and_not_what_would_fit(engine: Engine, now: datetime, matcher: Matcher) -> None:
    queued_jobs.put(engine, now, 5, asked=SINGLE)
    [given] = _served(matcher, request(count=3, **NODE))
    assert len(given) == 3


def test_where_no_processors_are_stated_as_many_are_given_as_were_wanted(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    queued_jobs.put(engine, now, 5, asked=FOUR)
    [given] = _served(matcher, request(count=5, Tag="ANY"))
    assert _cores(given) == [4] * 5


def test_many_pilots_that_ask_together_are_filled_each_for_itself(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    queued_jobs.put(engine, now, 3, asked=FOUR)
    queued_jobs.put(engine, now, 12, asked=SINGLE)
    given = _served(matcher, *[request(count=100, **NODE) for _ in range(3)])
    assert [sum(_cores(each)) for each in given] == [8, 8, 8]


def test_a_job_that_wants_the_node_for_itself_gets_it_alone(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    [whole] = queued_jobs.put(engine, now, asked=WHOLE)
    queued_jobs.put(engine, now, 3, asked=SINGLE)
    found = _served(matcher, *[request(count=100, WholeNode=True, **NODE) for _ in range(2)])
    by_job = {each.job_id: given for given in found for each in given}
    assert len(by_job) == 4
    assert [each.job_id for each in by_job[whole]] == [whole]
    [alone] = by_job[whole]
    assert (alone.allotment.processors, alone.allotment.ram_mb, alone.allotment.gpus) == (8, 16000, 2)


def test_a_pilot_is_filled_where_each_job_is_asked_who_it_is(engine: Engine, now: datetime) -> None:
    queued_jobs.put(engine, now, 2, asked=FOUR)
    queued_jobs.put(engine, now, 9, asked=SINGLE)
    matcher = _limited(now, engine, "RunningLimit: {A.B.ch: {Owner: {nobody: 1}}}")
    [given] = _served(matcher, request(count=100, **NODE, **queued_jobs.at(queued_jobs.LONG)))
    assert sum(_cores(given)) == 8


@pytest.mark.parametrize(
    ("options", "jobs"),
    [
        ("RunningLimit: {A.B.ch: {Owner: {alice: 2}}}", 2),
        ("MatchingDelay: {A.B.ch: {Owner: {alice: 60}, Burst: {Owner: {alice: 1}}}}", 1),
    ],
)
def test_a_pilot_is_filled_as_far_as_the_limits_of_its_site_let_it(
    engine: Engine, now: datetime, options: str, jobs: int
) -> None:
    queued_jobs.put(engine, now, 9, asked=SINGLE)
    [given] = _served(
        _limited(now, engine, options), request(count=100, **NODE, **queued_jobs.at(queued_jobs.LONG))
    )
    assert _cores(given) == [1] * jobs


def _limited(now: datetime, engine: Engine, options: str) -> Matcher:
    config = queued_jobs.grid(
        f"{queued_jobs.GRID}\nOperations: {{Defaults: {{JobScheduling: {{{options}}}}}}}\n"
    )
    return Matcher(engine, lambda: config, lambda: now, Random(1))


def test_a_lost_answer_says_again_what_each_job_may_use(
    engine: Engine, now: datetime, matcher: Matcher
) -> None:
    queued_jobs.put(engine, now, 3, asked=replace(SINGLE, processors_max=None, min_ram=1000))
    first = _served(matcher, request(request_id="r", count=3, **NODE))
    again = _served(matcher, request(request_id="r", count=3, **NODE))
    assert again == first
    assert _cores(first[0]) == [2, 3, 3]


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_left_that_a_waiting_job_could_use(
    engine: Engine, now: datetime, matcher: Matcher, seed: int
) -> None:
    random = Random(seed)
    for number in range(25):
        asked = replace(
            EVERYWHERE,
            cpu_time=100 + number,
            processors_min=(least := random.choice([1, 1, 2, 3, 5])),
            processors_max=random.choice([least, least + 2, None]),
            min_ram=random.choice([0, 1000, 3000]),
            min_ram_per_core=random.choice([0, 0, 1500]),
            gpus=random.choice([0, 0, 0, 1]),
        )
        queued_jobs.put(engine, now, random.randint(1, 3), asked=asked)
    for _ in range(6):
        [given] = _served(matcher, request(count=100, **NODE))
        assert given
        needed = [_asked(engine, each.job_id) for each in given]
        free = {
            "processors": 8 - sum(each.processors_min for each in needed),
            "ram": 16000 - sum(each.min_ram + each.min_ram_per_core * each.processors_min for each in needed),
            "gpus": 2 - sum(each.gpus for each in needed),
        }
        assert min(free.values()) >= 0
        assert sum(_cores(given)) <= 8
        assert sum(each.allotment.ram_mb or 0 for each in given) <= 16000
        still = submitted_jobs.waiting(engine)
        assert not [job_id for job_id in still if _fits(_asked(engine, job_id), free)]


def _asked(engine: Engine, job_id: int) -> RequirementClass:
    with database.reading(engine) as conn:
        task_queue_id = jobs.get_job(conn, job_id).task_queue_id
        assert task_queue_id is not None
        [found] = task_queues.read_occupied(conn, [task_queue_id])
    return found.requirement_class


def _fits(asked: RequirementClass, free: dict[str, int]) -> bool:
    return (
        asked.processors_min <= free["processors"]
        and asked.min_ram + asked.min_ram_per_core * asked.processors_min <= free["ram"]
        and asked.gpus <= free["gpus"]
    )


_VALUE = 1_000 * "v"


@pytest.mark.parametrize("options", ["", "RunningLimit: {A.B.ch: {Owner: {nobody: 1}}}"])
@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        (f'{{"Arguments":"{60_000 * "x"}"}}', None),
        (f'{{"Arguments":"{90 * "%(A)s "}"}}', f'{{"A":"{_VALUE}"}}'),
        (f'{{"Arguments":"{3_000 * "%j"}"}}', None),
        (f'{{"Arguments":"{400_000 * "%j"}"}}', None),
    ],
    ids=["long", "values", "ids", "ids in a long one"],
)
def test_descriptions_of_one_answer_are_bounded_by_bytes(
    engine: Engine, now: datetime, options: str, body: str, parameters: str | None
) -> None:
    number = 300 if len(body) < 100_000 else 20  # several answers in any case
    jobs_put = queued_jobs.put(engine, now, number, asked=SINGLE)
    with database.writing(engine) as conn:
        conn.execute(update(tables.descriptions).values(body=body))
        conn.execute(update(tables.jobs).values(parameters=parameters))
    matcher = _limited(now, engine, options) if options else queued_jobs.matcher(engine, now)
    asked = request(count=500, Tag="ANY", **queued_jobs.at(queued_jobs.LONG))
    seen = list[int]()
    while given := _served(matcher, asked)[0]:
        size = sum(len(each.description_json) for each in given)
        assert size <= assignment.MOST_BYTES + bounds.FILLED
        seen += [each.job_id for each in given]
        if len(seen) < number:
            assert size + len(given[0].description_json) > assignment.MOST_BYTES / 20
    assert sorted(seen) == jobs_put
