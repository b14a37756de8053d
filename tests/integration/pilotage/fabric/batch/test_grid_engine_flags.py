"""What a real Grid Engine is told when a slot and flags ask for the same; how its jobs are counted."""

import uuid

import pytest

from examples.servers.starting import wait_until
from pilotage.fabric.batch.batch_system import BatchJob, JobResources
from pilotage.fabric.batch.dialect.command import DialectSystem
from pilotage.fabric.batch.dialect.dialect import Dialect, shipped_dialect
from pilotage.fabric.batch.work_area import WorkAreas
from tests.support.servers.grid_engine import GridEngine as Cell

pytestmark = pytest.mark.debian("gridengine")


def _holding() -> Dialect:
    """The shipped dialect, which may hold jobs: they wait for as long as a test looks at them."""
    shipped = shipped_dialect("gridengine")
    return shipped.model_copy(update={"forbidden": {**shipped.forbidden, "held": None}})


def test_flags_add_to_what_a_slot_has_and_never_take_from_it(grid_engine: Cell) -> None:
    shell = grid_engine.shell
    areas = WorkAreas(directory=f"{shell.home}/flags", shell=shell)
    system = DialectSystem(areas=areas, dialect=shipped_dialect("gridengine"))
    job = BatchJob(
        stamp=f"test-{uuid.uuid4()}",
        script="#!/bin/sh\nsleep 600\n",
        queue="short",
        resources=JobResources(memory=300, wall_time=300),
        flags=("-l", "h_vmem=100M,h_rt=400"),
    )

    reference = system.submit(job)
    told = shell.run(["qstat", "-j", reference]).stdout
    shell.run(["qdel", reference])

    [requests] = [line.split()[-1] for line in told.splitlines() if line.startswith("hard resource_list")]
    assert sorted(requests.split(",")) == ["h_rt=400", "h_vmem=300M"]


def test_administrators_see_what_a_job_is_for(grid_engine: Cell) -> None:
    shell = grid_engine.shell
    areas = WorkAreas(directory=f"{shell.home}/about", shell=shell)
    system = DialectSystem(areas=areas, dialect=_holding())
    about = {"VO": "cms", "Owner": "ada", "Job": "17"}
    job = BatchJob(
        stamp=f"test-{uuid.uuid4()}", script="#!/bin/sh\ntrue\n", queue="short", about=about, flags=("-h",)
    )
    reference = system.submit(job)
    shown = shell.run(["qstat", "-j", reference]).stdout
    shell.run(["qdel", reference])
    assert "pilotage=VO=cms;Owner=ada;Job=17" in shown


def test_jobs_that_wait_are_counted_by_queue(grid_engine: Cell) -> None:
    shell = grid_engine.shell
    areas = WorkAreas(directory=f"{shell.home}/counted", shell=shell)
    system = DialectSystem(areas=areas, dialect=_holding())
    wait_until(lambda: not system.count_jobs(()).waiting)  # those of other tests
    jobs = [
        BatchJob(stamp=f"test-{uuid.uuid4()}", script="#!/bin/sh\nsleep 600\n", queue=queue, flags=("-h",))
        for queue in ("short", "short", "long")
    ]
    references = [system.submit(job) for job in jobs]
    try:
        assert system.count_jobs(()).waiting == 3
        assert system.count_jobs(("short",)).waiting == 2
        with pytest.raises(ValueError, match="no queue shrot"):
            system.count_jobs(("shrot",))
    finally:
        shell.run(["qdel", *references])
