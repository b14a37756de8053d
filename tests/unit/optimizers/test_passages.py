"""What the chain said about jobs is remembered for those that ask the same, within bounds."""

import json
from datetime import datetime

import pytest

from optimizers import plugins
from optimizers.chain import Passage
from optimizers.context import Context
from optimizers.eligibility import Eligibility
from optimizers.passages import Passages
from taskqueue.preparing import PreparingJob
from taskqueue.states import JobStatus
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
    context = Context(config=config, now=now, eligibility=Eligibility(config), catalogues={})
    known = Passages(config, plugins.installed())
    sites = [f"SITE.{number:020}.ch" for number in range(banned)]
    body = json.dumps({"Executable": "x", "CPUTime": 3600, "Priority": 1, "BannedSites": sites})

    def ask(*job_ids: int) -> list[Passage]:
        return [each for _, each in known.of([_job(job_id, body, now) for job_id in job_ids], context)]

    first, second = ask(1, 2)
    assert first is second
    [third] = ask(3)
    assert (third is first) is kept
