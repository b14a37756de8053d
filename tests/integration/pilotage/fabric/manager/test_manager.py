"""A manager's rounds at a pretended site, whose batch system, directories and disks fail."""

import fcntl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pilotage.fabric.batch.batch_system import (
    BatchJob,
    Evidence,
    State,
    SubmissionRefused,
    SubmissionUncertain,
)
from pilotage.fabric.batch.shell import LocalShell
from pilotage.fabric.manager import journal, submission
from pilotage.fabric.manager.context import Retries
from pilotage.fabric.manager.grid_job import (
    Aggregate,
    AttemptKey,
    GridJob,
    GridJobEntry,
    LocalState,
    ManagerPhase,
    PulledGridJob,
)
from pilotage.fabric.manager.journal import Journal, StateUnusable
from pilotage.fabric.manager.manager import SUBMITTING, Manager
from pilotage.plugins.batch_check.fault_injection import Fault, FaultyShell, FaultySystem
from tests.support.factories.grid_jobs import QUEUE, Sandboxes, Site, ended, output, taken
from tests.support.fakes.pretended_batch import PretendedBatch

LOCAL_JOBS = 3


@pytest.fixture
def batch(tmp_path: Path) -> PretendedBatch:
    return PretendedBatch(tmp_path)


@pytest.fixture
def site(tmp_path: Path, batch: PretendedBatch) -> Iterator[Site]:
    site = Site(directory=tmp_path, system=batch, shared=tmp_path / "shared", sandboxes=Sandboxes())
    yield site
    site.close()


def the_one(manager: Manager) -> GridJob:
    (job,) = manager.grid_jobs()
    return job


@pytest.mark.parametrize("fault", list(Fault))
def test_glitches_of_minutes_neither_fail_nor_double_anything(
    site: Site, batch: PretendedBatch, fault: Fault
) -> None:
    faulty, shell = FaultySystem(system=batch), FaultyShell(shell=LocalShell())
    site.system, site.shell = faulty, shell
    site.evidence = Evidence(listings=3, seconds=300)
    now = [0.0]
    manager = site.manager()
    manager.context.systems["farm"].system.clock = lambda: now[0]
    manager.journal.take(taken(LocalJobs=LOCAL_JOBS))

    for round_ in range(300):
        faulty.fault = shell.fault = fault if round_ % 12 < 8 else None
        manager.advance()
        now[0] += 30  # the fault lasts for four minutes
        if round_ % 3 == 0:
            batch.run()
        if ended(the_one(manager)):
            break

    job = the_one(manager)
    assert job.outcome is not None, manager.journal.log(AttemptKey(7, 1))
    assert (job.outcome.status, job.local) == ("Done", {LocalState.DONE: LOCAL_JOBS})
    assert batch.executed == dict.fromkeys(range(1, LOCAL_JOBS + 1), 1)
    assert set(batch.submissions.values()) == {1}
    assert {f"std.out.{n}" for n in (1, 2, 3)} <= output(job).keys()


def test_a_kill_reaches_a_local_job_whose_reference_never_arrived(site: Site, batch: PretendedBatch) -> None:
    faulty = FaultySystem(system=batch, fault=Fault.LATE)
    site.system = faulty
    manager = site.manager()
    manager.journal.take(taken())
    manager.advance()
    assert set(batch.states.values()) == {State.WAITING}

    manager.journal.cancel(AttemptKey(7, 1))
    manager.advance()

    assert set(batch.states.values()) == {State.KILLED}


def test_local_jobs_state_for_whom_they_are(
    site: Site, batch: PretendedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, stated = batch.submit, []

    def note(job: BatchJob) -> str:
        stated.append(job.about)
        return submit(job)

    monkeypatch.setattr(batch, "submit", note)
    manager = site.manager()
    manager.journal.take(taken(LocalJobs=2))
    manager.journal.take(replace(taken(8), owner=""))
    manager.advance()
    assert sorted(stated, key=str) == [
        {"VO": "cms", "Job": "8", "LocalJob": "1"},
        *({"VO": "cms", "Owner": "ada", "Job": "7", "LocalJob": number} for number in ("1", "2")),
    ]


def test_a_grid_job_is_submitting_until_its_last_local_job_was_submitted(
    site: Site, batch: PretendedBatch
) -> None:
    site.habits = {"max_jobs_per_cycle": 1}
    manager = site.manager()
    manager.journal.take(taken(LocalJobs=LOCAL_JOBS))
    phases = [the_one(manager).phase]
    for _ in range(LOCAL_JOBS):
        manager.advance()
        phases.append(the_one(manager).phase)
    assert phases == [ManagerPhase.SUBMITTING] * LOCAL_JOBS + [ManagerPhase.POLLING]


def test_local_jobs_that_the_site_loses_are_submitted_again_and_that_is_no_submitting(
    site: Site, batch: PretendedBatch
) -> None:
    manager = site.manager()
    manager.journal.take(taken(LocalJobs=2))
    manager.advance()
    first = next(iter(batch.states))
    batch.states[first] = State.FAILED  # no mark of its own: a node has died

    manager.advance()

    assert the_one(manager).phase is ManagerPhase.RESUBMITTING
    manager.advance()
    assert the_one(manager).phase is ManagerPhase.POLLING
    assert len(batch.submissions) == 3


def test_a_grid_job_whose_submissions_are_all_refused_is_given_back_and_its_queue_rests(
    site: Site, batch: PretendedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(job: BatchJob) -> str:
        raise SubmissionRefused(f"{job.stamp}: no such account")

    monkeypatch.setattr(batch, "submit", refuse)
    manager = site.manager()
    manager.journal.take(taken())
    for _ in range(4):
        manager.advance()

    job = the_one(manager)
    assert job.outcome is not None
    assert job.outcome.status == "Released"
    assert "no such account" in job.outcome.application_status
    assert [each.tries for each in manager.journal.local_jobs(AttemptKey(7, 1))][:1] == [3]
    assert manager.is_refusing(job.taken.queue, "CMS")
    assert not manager.is_refusing(job.taken.queue, "lhcb")


def test_a_grid_job_of_which_some_was_submitted_is_not_given_back(
    site: Site, batch: PretendedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = batch.submit

    def refuse(job: BatchJob) -> str:
        if batch.submissions:
            raise SubmissionRefused(f"{job.stamp}: no such account")
        return submit(job)

    monkeypatch.setattr(batch, "submit", refuse)
    manager = site.manager()
    manager.journal.take(taken(LocalJobs=2))
    for _ in range(4):
        manager.advance()
    assert the_one(manager).outcome is None
    assert the_one(manager).local[LocalState.FAILED] == 1
    assert not manager.is_refusing(the_one(manager).taken.queue, "cms")


def test_a_local_job_that_is_there_though_its_submission_looked_refused_is_not_submitted_again(
    site: Site, batch: PretendedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = batch.submit

    def lie(job: BatchJob) -> str:
        submit(job)
        raise SubmissionRefused(f"{job.stamp}: no such account")

    monkeypatch.setattr(batch, "submit", lie)
    manager = site.manager()
    manager.journal.take(taken(LocalJobs=1))
    for _ in range(4):
        manager.advance()

    assert len(batch.submissions) == 1
    assert the_one(manager).phase is ManagerPhase.POLLING


def test_a_handler_that_refuses_ends_the_job_with_its_words(site: Site) -> None:
    manager = site.manager()
    manager.journal.take(taken(LocalJobs=0))
    manager.advance()
    job = the_one(manager)
    assert job.outcome is not None
    assert job.outcome.minor_status == "Illegal job description"
    assert job.outcome.application_status == "LocalJobs: 0 is not allowed, only 1 to 1000000000000"


def test_a_job_type_without_a_handler_is_refused_by_name(site: Site) -> None:
    manager = site.manager()
    manager.journal.take(taken(JobType="alchemy"))
    manager.advance()
    job = the_one(manager)
    assert job.outcome is not None
    assert "no handler for 'alchemy', only for generic, montecarlo" in job.outcome.application_status


def test_while_the_service_is_away_a_grid_job_waits_for_its_sandbox(site: Site) -> None:
    site.sandboxes.away = True
    manager = site.manager()
    manager.journal.take(taken())
    manager.advance()
    assert the_one(manager).phase is ManagerPhase.SUBMITTING
    assert "does not answer" in the_one(manager).problem
    site.sandboxes.away = False
    manager.advance()
    assert (the_one(manager).phase, the_one(manager).problem) == (ManagerPhase.POLLING, "")


def test_a_gathering_waits_for_its_permit(site: Site, batch: PretendedBatch) -> None:
    manager = site.manager()
    asked: list[PulledGridJob] = []

    def may_gather(wants: PulledGridJob) -> bool:
        asked.append(wants)
        return len(asked) > 2

    object.__setattr__(manager.context, "may_gather", may_gather)
    manager.journal.take(taken())
    phases = []
    for _ in range(5):
        manager.advance()
        batch.run()
        phases.append(the_one(manager).phase)
    assert phases == [ManagerPhase.POLLING] * 4 + [ManagerPhase.ENDED]
    assert asked == [taken()] * 3


def test_a_full_disk_is_told_and_nothing_is_lost(
    site: Site, batch: PretendedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = site.manager()
    manager.journal.take(taken())
    full = OSError(28, "No space left on device")
    with monkeypatch.context() as patched:
        patched.setattr(
            "pilotage.fabric.bundle.local_job_bundle", lambda _sandbox: (_ for _ in ()).throw(full)
        )
        manager.advance()
    assert "No space left" in the_one(manager).problem

    while not ended(the_one(manager)):
        manager.advance()
        batch.run()
    assert batch.executed == {1: 1}


def test_a_state_that_cannot_be_read_is_an_error_that_names_it(site: Site, tmp_path: Path) -> None:
    manager = site.manager()
    manager.journal.take(taken())
    site.close()
    book = tmp_path / "state" / "book.sqlite"
    content = book.read_bytes()
    book.write_bytes(b"nonsense" * 1000)
    with pytest.raises(StateUnusable, match=r"book\.sqlite: file is not a database"):
        site.manager()
    book.write_bytes(content)
    assert the_one(site.manager()).taken.queue == QUEUE


def test_a_second_manager_of_one_directory_is_refused(site: Site) -> None:
    site.manager()
    with pytest.raises(StateUnusable, match="another manager has it open"):
        Journal(site.directory / "state")


def test_what_a_killed_manager_was_starting_does_not_keep_the_next_one_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_PATIENCE", 300.0)
    state = tmp_path / "state"
    state.mkdir()
    left = (state / "lock").open("w")
    fcntl.flock(left, fcntl.LOCK_EX)
    threading.Timer(0.2, left.close).start()
    Journal(state).close()


def test_a_batch_system_that_hangs_is_asked_once_in_a_round_for_all_grid_jobs(
    site: Site, batch: PretendedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def hang(job: BatchJob) -> str:
        asked.append(job.stamp)
        raise SubmissionUncertain(f"{job.stamp}: no answer")

    manager = site.manager()
    for job_id in (1, 2, 3):
        manager.journal.take(taken(job_id))
    with monkeypatch.context() as patched:
        patched.setattr(batch, "submit", hang)
        manager.advance()

    assert len(asked) == 1
    assert ["no answer" in each.problem for each in manager.grid_jobs()] == [True] * 3
    for _ in range(10):
        manager.advance()
        batch.run()
    assert [each.aggregate for each in manager.grid_jobs()] == [Aggregate.DONE] * 3


def test_slow_submissions_leave_time_for_polls_and_cancellations(
    site: Site, batch: PretendedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    submit = batch.submit

    def submit_slowly(job: BatchJob) -> str:
        now[0] += 1
        return submit(job)

    monkeypatch.setattr(batch, "submit", submit_slowly)
    manager = site.manager()
    manager._clock = lambda: now[0]
    for job_id in (1, 2, 3):
        manager.journal.take(taken(job_id, LocalJobs=10))
    manager.advance()
    assert now[0] == SUBMITTING

    batch.run()
    cancelled = next(each for each in manager.grid_jobs() if each.local.get(LocalState.WAITING))
    manager.journal.cancel(cancelled.taken.key)
    manager.advance()

    stamps = {each.stamp for each in manager.journal.local_jobs(cancelled.taken.key)}
    assert {batch.states[each] for each in stamps & batch.states.keys()} == {State.KILLED}
    assert now[0] <= 2 * SUBMITTING
    while not all(map(ended, manager.grid_jobs())):
        batch.run()
        manager.advance()
    assert set(batch.submissions.values()) == {1}


def test_a_batch_system_that_hangs_holds_up_the_grid_jobs_of_no_other(
    site: Site, batch: PretendedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = PretendedBatch(site.directory)
    begun, go = threading.Event(), threading.Event()
    submit = batch.submit

    def hang(job: BatchJob) -> str:
        begun.set()
        assert go.wait(300)
        return submit(job)

    monkeypatch.setattr(batch, "submit", hang)
    site.others = {"barn": other}
    manager = site.manager()
    manager.journal.take(taken(1))
    manager.journal.take(taken(2, queue="LCG.A.org/ce/barn"))
    hanging = threading.Thread(target=manager.advance_system, args=("farm",))
    hanging.start()
    try:
        assert begun.wait(300)
        while not ended(manager.grid_jobs()[1]):
            manager.advance_system("barn")
            other.run()
    finally:
        go.set()
        hanging.join()
    assert manager.grid_jobs()[0].local == {LocalState.WAITING: 1}


def test_marks_that_a_shared_directory_shows_late_are_waited_for(site: Site, batch: PretendedBatch) -> None:
    site.habits = {"settle": 60}
    now = [0.0]
    manager = site.manager()
    manager._polling.monotonic = lambda: now[0]
    manager.journal.take(taken(LocalJobs=2))
    manager.advance()
    batch.run()
    manager.advance()
    late, never = batch.states
    batch.run(exit_code=1)  # both end, and their marks say so
    hidden = [Path(batch.order_of(each).marks, "end") for each in (late, never)]
    for mark in hidden:
        mark.rename(mark.with_suffix(".hidden"))

    manager.advance()
    assert the_one(manager).local == {LocalState.RUNNING: 2}
    hidden[0].with_suffix(".hidden").rename(hidden[0])
    now[0] += 59
    manager.advance()
    assert the_one(manager).local == {LocalState.FAILED: 1, LocalState.RUNNING: 1}
    now[0] += 1
    manager.advance()

    assert the_one(manager).local == {LocalState.FAILED: 1, LocalState.UNSUBMITTED: 1}


def test_a_shared_directory_that_is_not_mounted_costs_no_output(site: Site, batch: PretendedBatch) -> None:
    manager = site.manager()
    manager.journal.take(taken())
    manager.advance()
    batch.run()
    manager.advance()
    batch.run()
    elsewhere = site.shared.rename(site.directory / "not-mounted")

    for _ in range(3):
        manager.advance()
    assert the_one(manager).local == {LocalState.RUNNING: 1}
    site.shared.mkdir()
    manager.advance()
    assert the_one(manager).local == {LocalState.RUNNING: 1}
    site.shared.rmdir()
    elsewhere.rename(site.shared)
    manager.advance()

    assert "std.out.1" in output(the_one(manager))


def test_a_book_that_cannot_grow_refuses_a_grid_job_and_keeps_what_it_has(site: Site) -> None:
    manager = site.manager()
    manager.journal.take(taken(1))
    manager.journal._connection.execute(
        "PRAGMA max_page_count = 1"
    )  # SQLite takes the number of pages there are

    with pytest.raises(StateUnusable, match=r"book\.sqlite: database or disk is full"):
        manager.journal.take(taken(2, Arguments="x" * 100_000))

    manager = site.manager()
    assert [each.taken.job_id for each in manager.grid_jobs()] == [1]
    manager.journal.take(taken(2, Arguments="x" * 100_000))
    assert [each.taken.job_id for each in manager.grid_jobs()] == [1, 2]


def test_of_a_local_job_that_was_cut_off_comes_what_the_batch_system_has(
    site: Site, batch: PretendedBatch
) -> None:
    site.habits = {"retries": Retries(tries=1)}
    manager = site.manager()
    manager.journal.take(taken(LocalJobs=2))
    manager.advance()
    batch.run()
    lost, _ = batch.states
    batch.states[lost] = State.FAILED  # its node has died
    while not ended(the_one(manager)):
        batch.run()
        manager.advance()

    job = the_one(manager)
    assert job.outcome is not None
    assert job.outcome.minor_status == "Partially Done"
    assert "1: batch system: failed" in job.outcome.application_status
    files = output(job)
    assert files["batch.out.1"] == f"{lost}\n"
    assert files["std.out.2"] == "ok"
    assert "local job 1: it left no output" in files["manager.log"]


def test_grid_jobs_of_a_queue_that_is_not_in_the_file_any_more_wait_until_it_is(
    site: Site, batch: PretendedBatch
) -> None:
    site.habits = {"max_jobs_per_cycle": 1}
    manager = site.manager()
    manager.journal.take(taken(7, LocalJobs=LOCAL_JOBS))
    manager.advance()

    site.queue = "LCG.A.org/ce/other"
    manager = site.manager()
    manager.journal.take(taken(8, queue=site.queue))
    manager.advance()
    old, new = manager.grid_jobs()
    assert old.problem == f"{QUEUE}: this gateway does not serve that queue"
    assert old.local == {LocalState.WAITING: 1, LocalState.UNSUBMITTED: LOCAL_JOBS - 1}
    assert new.local == {LocalState.WAITING: 1}

    site.queue = QUEUE
    manager = site.manager()
    for _ in range(2 * LOCAL_JOBS):
        manager.advance()
        batch.run()
    assert manager.grid_jobs()[0].local == {LocalState.DONE: LOCAL_JOBS}


def test_a_fault_of_the_gateway_over_one_grid_job_holds_up_no_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = site.manager()
    manager.journal.take(taken(7))
    manager.journal.take(taken(8))
    text = submission.script_text

    def faulty(entry: GridJobEntry, *rest: Any) -> str:
        if entry.taken.job_id == 7:
            raise KeyError("on purpose")
        return text(entry, *rest)

    monkeypatch.setattr(submission, "script_text", faulty)
    manager.advance()
    faulty_one, other = manager.grid_jobs()
    assert faulty_one.problem == "a fault of the gateway: KeyError('on purpose')"
    assert (other.problem, other.local) == ("", {LocalState.WAITING: 1})
