"""Grid jobs in front of a batch system that carries files: no directory is shared."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import cast

import pytest

from pilotage.fabric.batch.batch_system import BatchSystemAway, ReliableSystem, State
from pilotage.fabric.batch.local_host import LocalHost
from pilotage.fabric.batch.shell import LocalShell, NoAnswer
from pilotage.fabric.manager.context import Retries
from pilotage.fabric.manager.grid_job import ENDED, AttemptKey, LocalJob, LocalState
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.manager.shared_area import CarryingSystem, LookedAt
from pilotage.fabric.runner import status_files
from tests.support.factories.grid_jobs import Site, ended, montecarlo, output, sandbox, taken, until
from tests.support.fakes.carrying_host import CarryingHost


@pytest.fixture
def host(tmp_path: Path) -> CarryingHost:
    return CarryingHost(directory=str(tmp_path / "elsewhere"), cores=8, memory=8000)


@pytest.fixture
def site(tmp_path: Path, host: CarryingHost) -> Iterator[Site]:
    site = Site(directory=tmp_path, system=host, shared=tmp_path / "none")
    yield site
    site.close()


def test_a_montecarlo_job_comes_back_whole_and_nothing_is_left_after_it(
    site: Site, host: CarryingHost
) -> None:
    manager = site.manager()
    manager.journal.take(montecarlo(1000, 300, Seed=40, FirstEvent=0))

    job = until(manager, ended)

    assert job.outcome is not None
    assert (job.outcome.status, job.outcome.application_status) == ("Done", "4 of 4 local jobs done")
    assert [str(each) for each in job.progress] == ["generated 1000 of 1000"]
    files = output(job)
    parts = [files[f"events.txt.{n}"].strip() for n in (1, 2, 3, 4)]
    assert parts == ["0 250 40", "250 250 41", "500 250 42", "750 250 43"]
    assert [row["state"] for row in json.loads(files["local-jobs.json"])] == ["done"] * 4
    assert not site.shared.exists()

    manager.journal.forget(job.taken.key)
    manager.advance()
    assert manager.grid_jobs() == []
    assert not list((site.directory / "carried").iterdir())
    assert not host.find([*host.kept]), "the jobs at the other grid are removed"


def test_progress_is_seen_while_it_runs(site: Site) -> None:
    go = site.directory / "go"
    script = f"#!/bin/sh\npilotage-progress generated 100 250\nuntil test -e {go}; do sleep 0.05; done\n"
    site.sandboxes.content = sandbox(run__sh=script)
    manager = site.manager()
    farm = cast("CarryingSystem", manager.context.systems["farm"])
    systems = {"farm": replace(farm, monotonic=count(0, 61).__next__)}  # each poll is a minute later
    manager = Manager(replace(manager.context, systems=systems))
    manager.journal.take(montecarlo(250, 250))
    until(manager, lambda job: any(each.done == 100 for each in job.progress))
    go.touch()
    assert until(manager, ended).local == {LocalState.DONE: 1}


def test_a_local_job_that_fails_is_tried_again_in_a_directory_of_its_own(site: Site) -> None:
    tried = site.directory / "tried"
    site.sandboxes.content = sandbox(
        run__sh=f"#!/bin/sh\nmkdir {tried} 2>/dev/null && exit 1\necho again >events.txt\n"
    )
    site.habits = {"retries": Retries(tries=2, exit_codes=True)}
    job = site.run(taken())

    assert job.local == {LocalState.DONE: 1}
    assert output(job)["events.txt.1"] == "again\n"


def test_a_manager_that_was_killed_goes_on_with_files_that_it_has_not_read_yet(site: Site) -> None:
    manager = site.manager()
    manager.journal.take(taken(LocalJobs=2))
    until(manager, lambda job: bool(job.local.get(LocalState.RUNNING, 0) + job.local.get(LocalState.DONE, 0)))
    job = until(site.manager(), ended)
    assert job.local == {LocalState.DONE: 2}
    assert {"events.txt.1", "events.txt.2"} <= output(job).keys()


@pytest.mark.parametrize("number", [1, 2])
def test_an_archive_that_was_lost_is_made_again_for_those_that_still_need_it(site: Site, number: int) -> None:
    site.habits = {"max_jobs_per_cycle": 1}
    manager = site.manager()
    manager.journal.take(taken(LocalJobs=number))
    manager.advance()
    shutil.rmtree(site.directory / "carried")

    job = until(manager, ended)

    assert job.local == {LocalState.DONE: number}
    assert f"events.txt.{number}" in output(job)
    assert (site.directory / "carried").exists() == (number > 1)


@pytest.mark.parametrize("error", [BatchSystemAway("answered with 500"), NoAnswer("gave no answer")])
def test_files_that_cannot_be_read_hold_up_their_own_grid_job_only_and_prove_nothing(
    site: Site, host: CarryingHost, error: BatchSystemAway
) -> None:
    site.habits = {"settle": 0}
    host.unreadable["test.1."] = error
    manager = site.manager()
    manager.journal.take(taken(1))
    manager.journal.take(taken(2))

    deadline = time.monotonic() + 300
    while not ended(manager.grid_jobs()[1]) or not manager.grid_jobs()[0].problem:
        manager.advance()
        assert time.monotonic() < deadline, manager.grid_jobs()

    held_up, other = manager.grid_jobs()
    assert held_up.problem == f"local job 1: its status files cannot be read: {error}"
    assert not set(held_up.local) & ENDED, "neither done nor failed"
    assert (other.local, other.problem) == ({LocalState.DONE: 1}, "")
    host.unreadable.clear()
    while not ended(manager.grid_jobs()[0]):
        manager.advance()
        assert time.monotonic() < deadline, manager.grid_jobs()
    assert manager.grid_jobs()[0].local == {LocalState.DONE: 1}


def test_a_cancelled_local_job_ends_though_its_files_cannot_be_read(site: Site, host: CarryingHost) -> None:
    site.habits = {"settle": 0}
    host.unreadable["test.1."] = BatchSystemAway("answered with 500")
    site.sandboxes.content = sandbox(run__sh="#!/bin/sh\nsleep 600\n")
    manager = site.manager()
    manager.journal.take(taken(1))
    until(manager, lambda job: job.local == {LocalState.RUNNING: 1}, job_id=1)
    manager.journal.cancel(AttemptKey(1, 1))
    until(manager, lambda job: job.local == {LocalState.KILLED: 1}, job_id=1)


def carrying(tmp_path: Path, host: CarryingHost, clock: Callable[[], float]) -> CarryingSystem:
    return CarryingSystem(
        system=ReliableSystem(system=LocalHost(directory=str(tmp_path), cores=1, memory=1)),
        shell=LocalShell(),
        directory=str(tmp_path),
        files=host,
        monotonic=clock,
    )


def many_jobs(number: int, state: State, system: CarryingSystem, host: CarryingHost) -> list[LookedAt]:
    jobs = [LocalJob(key=AttemptKey(7, 1), number=n, stamp=f"test-{n:04}") for n in range(number)]
    host.kept.update({job.stamp: () for job in jobs})
    return [LookedAt(job=each, area=system.area("grid"), state=state) for each in jobs]


def test_of_many_jobs_that_ended_together_some_are_read_and_the_others_later(
    tmp_path: Path, host: CarryingHost
) -> None:
    system = carrying(tmp_path, host, lambda: 0.0)
    texts = system.read_status(many_jobs(130, State.DONE, system, host))
    read = {stamp for stamp, each in texts.items() if each.is_read}
    assert (len(texts), len(read)) == (130, 100)
    assert {stamp for stamp, _ in host.reads} == read


def test_the_progress_of_many_jobs_is_read_in_turns_and_once_a_minute(
    tmp_path: Path, host: CarryingHost
) -> None:
    now = 0.0
    system = carrying(tmp_path, host, lambda: now)
    looked_at = many_jobs(30, State.RUNNING, system, host)

    def read() -> set[str]:
        host.reads.clear()
        system.read_status(looked_at)
        assert {name for _, name in host.reads} <= {f"status/{status_files.NEWS}"}
        return {stamp for stamp, _ in host.reads}

    first, second = read(), read()
    assert (len(first), len(second), first & second) == (20, 10, set())
    assert read() == set()
    now = 61.0
    assert len(read()) == 20
