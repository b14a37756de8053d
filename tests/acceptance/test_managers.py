"""Job managers as processes that are killed, and in front of real batch systems."""

import random
import subprocess
import sys
import time
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
from pilotage.fabric.manager import journal
from pilotage.fabric.manager.grid_job import AttemptKey, GridJob, LocalState
from tests.support.factories.grid_jobs import Site, ended, montecarlo, output, sandbox, until
from tests.support.scripts import job_manager
from tests.support.servers.grid_engine import GridEngine

_WAIT = """\
#!/bin/sh
echo "$FIRST_EVENT $EVENTS" >events.txt
pilotage-progress generated $EVENTS $EVENTS
sleep ${1:-0}
"""
_WAIT_ONCE = """\
#!/bin/sh
[ -e {begun} ] || {{ touch {begun}; sleep 3000 & wait; }}
echo "$FIRST_EVENT $EVENTS" >events.txt
"""
_COUNT = """\
#!/bin/sh
echo $LOCAL_JOB >>{executed}
sleep 0.5
echo "$FIRST_EVENT $EVENTS" >events.txt
"""


def test_local_jobs_run_once_whenever_their_manager_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_PATIENCE", 300.0)  # for what a killed one was starting
    executed = tmp_path / "executed"
    site = job_manager.site(tmp_path)
    site.sandboxes.content = sandbox(run__sh=_COUNT.format(executed=executed))
    manager = site.manager()
    manager.journal.take(montecarlo(2000, 250))
    manager.advance()  # the sandbox is packed: the service is not needed any more
    site.close()
    chance = random.Random(3)
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.support.scripts.job_manager", str(tmp_path)]
        ) as process:
            time.sleep(chance.uniform(0.5, 1.5))
            process.kill()

    job = until(site.manager(), ended)
    site.close()

    assert job.outcome is not None
    assert job.outcome.application_status == "8 of 8 local jobs done"
    assert sorted(executed.read_text().split()) == [str(n) for n in range(1, 9)]
    assert sum(int(text.split()[1]) for text in _events(job)) == 2000


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


@pytest.mark.debian("slurm")
def test_a_local_job_that_is_cancelled_in_slurm_is_tried_again(cluster: Slurm, tmp_path: Path) -> None:
    shell = LocalShell(environment=cluster.environment)
    areas = WorkAreas(directory=str(tmp_path / "batch"), shell=shell)
    system = DialectSystem(areas=areas, dialect=shipped_dialect("slurm"))
    site = _site(tmp_path, system, shell, tmp_path / "shared", memory=200)
    begun = tmp_path / "begun"
    site.sandboxes.content = sandbox(run__sh=_WAIT_ONCE.format(begun=begun))
    manager = site.manager()
    try:
        manager.journal.take(montecarlo(250, 250))
        until(manager, lambda _: begun.exists())
        [local] = manager.journal.local_jobs(AttemptKey(7, 1))
        assert local.reference is not None
        cluster.ask("scancel", local.reference)
        job = until(manager, ended)
    finally:
        site.close()

    assert job.outcome is not None
    assert (job.outcome.status, job.local) == ("Done", {LocalState.DONE: 1})
    assert _events(job) == ["1 250\n"]


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
