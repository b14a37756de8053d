"""A manager killed between any two acts, at a pretended site."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pilotage.fabric.batch.batch_system import BatchJob, Handle, JobReport, Output, State
from pilotage.fabric.manager.grid_job import AttemptKey, GridJob, LocalState
from pilotage.fabric.manager.journal import Journal
from pilotage.fabric.manager.manager import Manager
from tests.support.factories.grid_jobs import Sandboxes, Site, ended, output, taken
from tests.support.fakes.pretended_batch import PretendedBatch

LOCAL_JOBS = 3


class Crash(BaseException):
    """The end of the process."""


class Fuse:
    """Burns through at one instant, the acts before and after which are counted."""

    def __init__(self) -> None:
        self.left = 0  #: instants; never again once it has burnt through

    def tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash


FUSE = Fuse()


class CrashingBook(Journal):
    @contextmanager
    def _writing(self) -> Iterator[Any]:
        FUSE.tick()
        with super()._writing() as database:
            yield database
        FUSE.tick()


class CrashingBatch(PretendedBatch):
    """It does what it is asked, whether the manager lives to hear of it or not."""

    def submit(self, job: BatchJob) -> str:
        FUSE.tick()
        reference = super().submit(job)
        FUSE.tick()
        return reference

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        FUSE.tick()
        return super().status(handles)

    def find(self, stamps: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        FUSE.tick()
        return super().find(stamps)

    def kill(self, handles: Sequence[Handle]) -> None:
        FUSE.tick()
        super().kill(handles)
        FUSE.tick()

    def output(self, handle: Handle) -> Output:
        FUSE.tick()
        return super().output(handle)

    def forget(self, handles: Sequence[Handle]) -> None:
        super().forget(handles)
        FUSE.tick()


@pytest.fixture
def batch(tmp_path: Path) -> PretendedBatch:
    return CrashingBatch(tmp_path)


@pytest.fixture
def site(tmp_path: Path, batch: PretendedBatch) -> Iterator[Site]:
    FUSE.left = 0
    site = Site(
        directory=tmp_path, system=batch, shared=tmp_path / "shared", book=CrashingBook, sandboxes=Sandboxes()
    )
    yield site
    FUSE.left = 0
    site.close()


def the_one(manager: Manager) -> GridJob:
    (job,) = manager.grid_jobs()
    return job


def lives_on(site: Site, batch: PretendedBatch, job_id: int, *, cancel: bool = False) -> GridJob:
    """A grid job from its arrival to its end, however often the manager is started anew."""
    manager = None
    for _ in range(200):
        try:
            manager = manager or site.manager()
            manager.journal.take(taken(job_id, LocalJobs=LOCAL_JOBS))
            if cancel and any(batch.states):
                manager.journal.cancel(AttemptKey(job_id, 1))
            manager.advance()
            batch.run()
            if ended(the_one(manager)):
                return the_one(manager)
        except Crash:
            manager = None
    raise AssertionError(job_id)


def instants(site: Site, batch: PretendedBatch, job_id: int, **how: bool) -> int:
    """How many instants there are at which it may crash, in a life without a crash."""
    FUSE.left = 0
    lives_on(site, batch, job_id, **how)
    return -FUSE.left


def forgotten(site: Site, job_id: int) -> None:
    FUSE.left = 0
    manager = site.manager()
    manager.journal.forget(AttemptKey(job_id, 1))
    manager.advance()
    assert manager.grid_jobs() == []


def test_killed_at_any_instant_a_manager_neither_loses_nor_doubles_a_local_job(
    site: Site, batch: PretendedBatch
) -> None:
    number = instants(site, batch, 1)
    forgotten(site, 1)
    assert number > 25
    for instant in range(1, number + 1):
        batch.executed.clear()
        batch.submissions.clear()
        FUSE.left = instant
        job_id = 1 + instant

        job = lives_on(site, batch, job_id)

        assert job.outcome is not None
        assert (instant, job.outcome.status, job.local) == (instant, "Done", {LocalState.DONE: LOCAL_JOBS})
        assert (instant, batch.executed) == (instant, dict.fromkeys(range(1, LOCAL_JOBS + 1), 1))
        assert (instant, set(batch.submissions.values())) == (instant, {1})
        assert {f"std.out.{n}" for n in (1, 2, 3)} <= output(job).keys()
        forgotten(site, job_id)


def test_killed_at_any_instant_a_manager_that_cancels_leaves_nothing_running(
    site: Site, batch: PretendedBatch
) -> None:
    number = instants(site, batch, 1, cancel=True)
    forgotten(site, 1)
    for instant in range(1, number + 1):
        FUSE.left = instant

        job = lives_on(site, batch, 1 + instant, cancel=True)

        assert job.outcome is not None
        assert (instant, job.outcome.minor_status) == (instant, "Received Kill signal")
        assert {State.WAITING, State.RUNNING}.isdisjoint(batch.states.values()), instant
        forgotten(site, 1 + instant)
