"""Job managers in front of real batch systems."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from examples.servers.slurm import Slurm
from pilotage.fabric.batch.batch_system import BatchSystem, Evidence, JobResources
from pilotage.fabric.batch.dialect.command import DialectSystem
from pilotage.fabric.batch.dialect.dialect import shipped_dialect
from pilotage.fabric.batch.shell import LocalShell, Shell
from pilotage.fabric.batch.work_area import WorkAreas
from pilotage.fabric.manager.grid_job import AttemptKey, GridJob, LocalState
from tests.support.factories.grid_jobs import Site, ended, montecarlo, output, sandbox, until
from tests.support.servers.grid_engine import GridEngine

_WAIT = """\
#!/bin/sh
echo "$FIRST_EVENT $EVENTS" >events.txt
pilotage-progress generated $EVENTS $EVENTS
sleep ${1:-0}
"""


@pytest.fixture
def cluster(slurm: Slurm) -> Iterator[Slurm]:
    """A real Slurm, whose jobs end with the test."""
    yield slurm
    slurm.end_jobs()


@pytest.mark.debian("slurm")
def test_a_montecarlo_job_runs_on_slurm_and_a_second_one_is_killed_there(
    cluster: Slurm, tmp_path: Path
) -> None:
    shell = LocalShell(environment=cluster.environment)
    areas = WorkAreas(directory=str(tmp_path / "batch"), shell=shell)
    system = DialectSystem(areas=areas, dialect=shipped_dialect("slurm"))
    site = _site(tmp_path, system, shell, tmp_path / "shared", memory=200)
    _runs_one_and_kills_another(site)


@pytest.mark.debian("gridengine")
def test_a_montecarlo_job_runs_on_grid_engine_and_a_second_one_is_killed_there(
    grid_engine: GridEngine, tmp_path: Path
) -> None:
    shell = grid_engine.shell
    areas = WorkAreas(directory=f"{shell.home}/batch", shell=shell)
    system = DialectSystem(areas=areas, dialect=shipped_dialect("gridengine"))
    site = _site(tmp_path, system, shell, Path(shell.home, "shared"), memory=300)
    _runs_one_and_kills_another(site)


def _site(directory: Path, system: BatchSystem, shell: Shell, shared: Path, *, memory: int) -> Site:
    return Site(
        directory=directory,
        system=system,
        shell=shell,
        shared=shared,
        batch_queue="short",
        resources=JobResources(wall_time=600, memory=memory),
        evidence=Evidence(listings=3, seconds=20),
    )


def _runs_one_and_kills_another(site: Site) -> None:
    site.sandboxes.content = sandbox(run__sh=_WAIT)
    manager = site.manager()
    try:
        manager.journal.take(montecarlo(500, 250))
        manager.journal.take(replace(montecarlo(500, 250, Arguments="3000"), job_id=8))
        job = until(manager, ended)
        assert job.local == {LocalState.DONE: 2}, job.outcome
        assert sorted(_events(job)) == ["1 250\n", "251 250\n"]

        # Each payload reports its progress after it has written its file.
        until(manager, lambda job: sum(each.done for each in job.progress) == 500, job_id=8)
        manager.journal.cancel(AttemptKey(8, 1))
        killed = until(manager, ended, job_id=8)
        assert killed.local == {LocalState.KILLED: 2}
        assert len(_events(killed)) == 2, "what it had written came back"
        for each in manager.grid_jobs():
            manager.journal.forget(each.taken.key)
        manager.advance()
        assert not list(site.shared.glob("grid-*"))
    finally:
        site.close()


def _events(job: GridJob) -> list[str]:
    return [text for name, text in output(job).items() if name.startswith("events.txt.")]
