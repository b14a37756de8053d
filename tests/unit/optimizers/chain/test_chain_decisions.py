"""Jobs that ask the same share a decision of the chain."""

import json
from datetime import datetime

import pytest

from cs_config import validate
from optimizers.chain import chain, decisions
from optimizers.chain.chain import ChainContext, Done, Failed, Hold, Outcome
from optimizers.description import description
from optimizers.description.parametric import JobMember
from optimizers.submit.submitter import Ownership
from requirements.states import JobStatus
from taskqueue.jobs.optimizer_queue import PreparingJob
from tests.support.factories.submitted_jobs import grid


def _job(job_id: int, body: str, now: datetime) -> PreparingJob:
    return PreparingJob(
        job_id=job_id,
        vo="lhcb",
        owner="ann",
        owner_group="lhcb_user",
        priority=1.0,
        status=JobStatus.RECEIVED,
        step=None,
        due_at=now,
        reschedules=0,
        epoch=0,
        body=body,
        parameters=None,
        sandbox_gone=False,
    )


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ({}, {}, True),
        ({"Arguments": "1", "JobName": "a"}, {"Arguments": "2", "Seed": 3}, True),
        ({"Site": ["LCG.A.ch"]}, {"Site": ["LCG.B.ch"]}, False),
        ({"Seed": 1, "Requirements": "other.Memory > MY.Seed"}, {"Seed": 1}, False),
        (
            {"Seed": 1, "Requirements": "other.Memory > MY.Seed"},
            {"Seed": 2, "Requirements": "other.Memory > MY.Seed"},
            False,
        ),
    ],
)
def test_stored_jobs_that_ask_the_same_share_a_result(
    one: dict[str, object], other: dict[str, object], shared: bool, now: datetime
) -> None:
    context = ChainContext(config=grid(), now=now, catalogues={})
    stated = {"Executable": "x", "CPUTime": 3600, "Priority": 1}
    jobs = [_job(number, json.dumps(stated | own), now) for number, own in enumerate((one, other))]
    decided = decisions.decide_stored(jobs, chain.installed_steps(), context)
    assert [job for job, _ in decided] == jobs
    assert (decided[0][1] is decided[1][1]) is shared


def _outcome(body: dict[str, object], described: str, now: datetime) -> Outcome:
    config = validate.parse(f"Operations: {{lhcb: {{JobDescription: {{{described}}}}}}}")
    context = ChainContext(config=config, now=now, catalogues={})
    text = json.dumps({"Executable": "x", "CPUTime": 3600, "Priority": 1} | body)
    [(_, passage)] = decisions.decide_stored([_job(1, text, now)], chain.installed_steps(), context)
    return passage.outcome


def test_a_job_waits_where_only_a_configured_default_contradicts_what_it_states(now: datetime) -> None:
    found = _outcome({"MaxRAM": 2000}, "MinRAM: {default: 4000}", now)
    assert isinstance(found, Hold)
    assert "configured defaults" in found.reason
    assert "MinRAM: 4000 MB is more than MaxRAM, 2000 MB" in found.reason


def test_a_job_fails_where_it_is_wrong_by_itself(now: datetime) -> None:
    found = _outcome({"MaxRAM": 2000, "MinRAM": 3000}, "MinRAM: {default: 4000}", now)
    assert isinstance(found, Failed)
    assert "3000 MB is more than MaxRAM" in found.reason


@pytest.mark.parametrize(
    ("own", "results"),
    [
        ([{}, {}], 1),
        ([{"arguments": "1", "seed": 1}, {"arguments": "2", "seed": 2}], 1),
        ([{"input_data": ("/lhcb/a",)}, {"input_data": ("/lhcb/b",)}], 2),
    ],
)
def test_new_jobs_that_differ_in_particular_keywords_only_share_a_result(
    own: list[dict[str, object]], results: int, now: datetime
) -> None:
    config = grid()
    context = ChainContext(config=config, now=now, catalogues={})
    stated = {"Executable": "x", "CPUTime": 3600}
    read = description.parse_description(stated, context.operations("lhcb"))
    whose = Ownership(vo="lhcb", owner="ann", owner_group="lhcb_user")
    members = [(whose, JobMember(description=read, own=values, parameters={})) for values in own]
    steps = chain.installed_steps() | {
        "InputData": chain.pure(lambda candidate, _: Done(candidate=candidate))
    }
    decided = decisions.decide(members, steps, context)
    found = [
        each.outcome.candidate.description for each in decided if each and isinstance(each.outcome, Done)
    ]
    assert len(decided) == len(found) == 2
    assert len({id(each) for each in decided}) == results
    assert [each.input_data for each in found] == [each.get("input_data", ()) for each in own]
