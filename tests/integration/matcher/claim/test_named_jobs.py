"""A request that names a job gets this one or none. Source: DIRAC's matches by JobID."""

from dataclasses import replace
from datetime import datetime

import pytest
from sqlalchemy import Engine

from matcher.claim.claim_request import ClaimResult
from requirements.errors import InvalidResource
from requirements.requirement_class import RequirementClass
from tests.support.factories import queued_jobs
from tests.support.factories.queued_jobs import request

ASKED = RequirementClass(vo="lhcb", cpu_time=21_600)


def look(engine: Engine, now: datetime, count: int = 1, **said: object) -> ClaimResult:
    return queued_jobs.serve(queued_jobs.matcher(engine, now), request(count=count, **said))


def given(engine: Engine, now: datetime, count: int = 1, **said: object) -> list[int]:
    return [each.job_id for each in look(engine, now, count, **said).claimed]


def test_the_named_job_comes_before_better_ones_and_alone(engine: Engine, now: datetime) -> None:
    first, named, last = queued_jobs.put(engine, now, 3, asked=ASKED)
    [urgent] = queued_jobs.put(engine, now, asked=ASKED, priority=9)
    assert given(engine, now, count=3, JobID=named) == [named]
    assert given(engine, now, count=9) == [urgent, first, last]


def test_a_job_that_is_gone_is_not_worth_another_look(engine: Engine, now: datetime) -> None:
    named, _ = queued_jobs.put(engine, now, 2, asked=ASKED)
    assert given(engine, now, JobID=named) == [named]
    for job_id in (named, 10**9):
        found = look(engine, now, JobID=job_id)
        assert (found.claimed, found.in_other_hands) == ((), False)


def test_of_two_requests_for_one_job_one_gets_it(engine: Engine, now: datetime) -> None:
    named, _ = queued_jobs.put(engine, now, 2, asked=ASKED)
    found = queued_jobs.matcher(engine, now).serve([request(JobID=named), request(JobID=named), request()])
    claimed = [[job.job_id for job in each.claimed] for each in found if isinstance(each, ClaimResult)]
    assert claimed.count([named]) == 1
    assert sum(map(len, claimed)) == 2


def test_the_job_of_another_vo_is_not_given(engine: Engine, now: datetime) -> None:
    [named] = queued_jobs.put(engine, now, asked=replace(ASKED, vo="cms"))
    assert given(engine, now, JobID=named) == []


def test_a_throttled_place_lets_a_named_job_in_only_with_room(engine: Engine, now: datetime) -> None:
    throttle = "Throttle: {Policy: level0, MaxSubmittingJobs: 1, Stale: derived}"
    config = queued_jobs.grid(queued_jobs.GRID.replace("A.B.ch:\n", f"A.B.ch:\n      {throttle}\n"))
    _, named, other = queued_jobs.put(engine, now, 3, asked=ASKED)
    matcher = queued_jobs.matcher(engine, now, config)
    for job_id, expected in ((named, [named]), (other, [])):
        found = queued_jobs.serve(matcher, request(JobID=job_id, **queued_jobs.at(queued_jobs.LONG)))
        assert [each.job_id for each in found.claimed] == expected
    assert found.refused == "throttled"


@pytest.mark.parametrize("wrong", ["twelve", 0, -1, 1.5, True])
def test_a_job_is_named_by_its_number(wrong: object) -> None:
    with pytest.raises(InvalidResource, match="JobID"):
        request(JobID=wrong)
