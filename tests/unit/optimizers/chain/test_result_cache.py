"""What the chain said about jobs is remembered for those that ask the same, within bounds."""

import json
from datetime import datetime

import pytest

from cs_config import validate
from optimizers.chain import chain, result_cache
from optimizers.chain.chain import ChainContext, ChainResult, Done, Failed, Hold, Outcome
from optimizers.description import description
from optimizers.description.parametric import JobMember
from optimizers.submit.submitter import Ownership
from requirements.states import JobStatus
from taskqueue.jobs.optimizer_queue import PreparingJob
from tests.submitted import grid


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


@pytest.mark.parametrize(("banned", "kept"), [(1, True), (1000, False)])
def test_what_asks_much_is_remembered_for_its_batch_only(banned: int, kept: bool, now: datetime) -> None:
    config = grid()
    context = ChainContext(config=config, now=now, catalogues={})
    sites = [f"SITE.{number:020}.ch" for number in range(banned)]
    body = json.dumps({"Executable": "x", "CPUTime": 3600, "Priority": 1, "BannedSites": sites})

    def ask(*job_ids: int) -> list[ChainResult]:
        jobs = [_job(job_id, body, now) for job_id in job_ids]
        return [each for _, each in result_cache.run_or_reuse(jobs, chain.installed_steps(), context)]

    first, second = ask(1, 2)
    assert first is second
    [third] = ask(3)
    assert (third is first) is kept


def _outcome(body: dict[str, object], described: str, now: datetime) -> Outcome:
    config = validate.parse(f"Operations: {{lhcb: {{JobDescription: {{{described}}}}}}}")
    context = ChainContext(config=config, now=now, catalogues={})
    text = json.dumps({"Executable": "x", "CPUTime": 3600, "Priority": 1} | body)
    [(_, passage)] = result_cache.run_or_reuse([_job(1, text, now)], chain.installed_steps(), context)
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
    decided = result_cache.decide(members, steps, context)
    found = [
        each.outcome.candidate.description for each in decided if each and isinstance(each.outcome, Done)
    ]
    assert len(decided) == len(found) == 2
    assert len({id(each) for each in decided}) == results
    assert [each.input_data for each in found] == [each.get("input_data", ()) for each in own]
