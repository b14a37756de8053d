"""Waiting jobs by the thousand, the same for the same seed."""

import random
from datetime import UTC, datetime

from sqlalchemy import Engine, insert

from requirements.errors import PilotageError
from taskqueue import database, task_queues
from taskqueue.classes import RequirementClass
from taskqueue.states import JobStatus
from taskqueue.tables import descriptions, jobs
from taskqueue.task_queues import WaitingEntry

NOW = datetime(2026, 3, 28, tzinfo=UTC)
VO = "lhcb"
SITES = tuple(f"LCG.Site{number:02d}.org" for number in range(60))
CPU_TIMES = (21_600, 43_200, 86_400, 172_800, 259_200, 345_600, 518_400, 691_200, 864_000, 1_080_000)
JOB_TYPES = ("MCSimulation", "MCFastSimulation", "WGProduction", "Sprucing", "Merge")
_AT_ONCE = 5_000


class TooFewJobs(PilotageError):
    """A class without a job would not be matched at all."""


def requirement_classes(count: int, seed: int = 0) -> list[RequirementClass]:
    """Distinct classes, shaped as those of LHCb: most of the sites, a CPU time, a job type, a production."""
    draw = random.Random(seed)
    return [
        RequirementClass(
            vo=VO,
            cpu_time=draw.choice(CPU_TIMES),
            sites=frozenset(draw.sample(SITES, draw.randint(45, 55))),
            job_types=frozenset({draw.choice(JOB_TYPES)}),
            min_ram=number % 997,
            min_ram_per_core=number // 997,
        )
        for number in range(count)
    ]


def fill(engine: Engine, *, classes: int, waiting: int) -> None:
    """Put `waiting` jobs into task queues of `classes` requirement classes, spread evenly."""
    if waiting < classes:
        raise TooFewJobs(f"{waiting} jobs do not fill {classes} classes")
    asked = requirement_classes(classes)
    with database.writing(engine) as conn:
        description = conn.execute(
            insert(descriptions).values(source="", body='{"Executable": "/bin/true"}')
        ).inserted_primary_key
        assert description is not None
    for start in range(0, waiting, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, waiting))
        with database.writing(engine) as conn:
            ids = conn.execute(
                insert(jobs).returning(jobs.c.job_id, sort_by_parameter_order=True),
                [_job(description.description_id) for _ in numbers],
            ).scalars()
            task_queues.enqueue(
                conn,
                [
                    _entry(job_id, asked[number % classes])
                    for number, job_id in zip(numbers, ids, strict=True)
                ],
                now=NOW,
            )


def _job(description_id: int) -> dict[str, object]:
    return {
        "vo": VO,
        "owner": "lbprods",
        "owner_group": "lhcb_prod",
        "status": JobStatus.WAITING.value,
        "description_id": description_id,
        "submitted_at": NOW,
        "updated_at": NOW,
    }


def _entry(job_id: int, asked: RequirementClass) -> WaitingEntry:
    return WaitingEntry(
        job_id=job_id, requirement_class=asked, owner="lbprods", owner_group="lhcb_prod", priority=1.0
    )
