"""A manager's grid jobs as processes of this host."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pilotage.fabric.batch.batch_system import Handle, JobReport, State
from pilotage.fabric.batch.local_host import LocalHost
from pilotage.fabric.batch.shell import LocalShell
from pilotage.fabric.manager.context import Retries
from pilotage.fabric.manager.grid_job import Aggregate, AttemptKey, LocalState, ManagerPhase
from tests.support.factories.grid_jobs import Site, ended, montecarlo, output, sandbox, taken, until
from tests.support.namespaces import userns

#: Seconds: however slow the host is, a local job that is ended can say so.
GRACE = 300.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    shared = tmp_path / "shared"
    site = Site(
        directory=tmp_path,
        system=LocalHost(directory=str(shared / "batch"), cores=8, memory=8000),
        shared=shared,
    )
    yield site
    site.close()


def test_a_montecarlo_job_comes_back_as_one_tar_with_every_event_once(site: Site) -> None:
    job = site.run(montecarlo(1000, 300, Seed=40, FirstEvent=0))

    assert job.outcome is not None
    assert (job.outcome.status, job.outcome.application_status) == ("Done", "4 of 4 local jobs done")
    assert (job.aggregate, job.local) == (Aggregate.DONE, {LocalState.DONE: 4})
    assert [str(each) for each in job.progress] == ["generated 1000 of 1000"]
    files = output(job)
    parts = [files[f"events.txt.{n}"].strip() for n in (1, 2, 3, 4)]
    assert parts == ["0 250 40", "250 250 41", "500 250 42", "750 250 43"]
    assert {"manager.log", "local-jobs.json", "std.out.1", "std.err.4"} <= files.keys()
    assert "local job 3: done" in files["manager.log"]
    assert [row["state"] for row in json.loads(files["local-jobs.json"])] == ["done"] * 4


def test_a_file_that_a_local_job_did_not_write_is_named_in_the_managers_log(site: Site) -> None:
    manager = site.manager()
    manager.journal.take(taken(JobType="generic", OutputSandbox=["events.txt", "plots.root"]))
    log = output(until(manager, ended))["manager.log"]
    assert "local job 1: done: missing from OutputSandbox: plots.root" in log


def test_progress_and_the_end_of_the_output_are_seen_while_it_runs(site: Site) -> None:
    script = """#!/bin/sh
    echo "reading the geometry"
    pilotage-progress generated $((EVENTS / 2)) $EVENTS
    until test -e "$0.go" || test -e {go}; do sleep 0.05; done
    """
    go = site.directory / "go"
    site.sandboxes.content = sandbox(run__sh=script.format(go=go))
    manager = site.manager()
    manager.journal.take(montecarlo(500, 250))

    job = until(manager, lambda job: any(each.done for each in job.progress) and bool(job.tail))

    assert (job.phase, job.aggregate) == (ManagerPhase.POLLING, Aggregate.ACTIVE)
    assert job.progress[0].of == 500
    assert job.progress[0].done in (125, 250)
    assert job.tail == "reading the geometry"
    go.touch()
    assert until(manager, ended).local == {LocalState.DONE: 2}


class Tampering(LocalShell):
    """Behind which a job of another VO replaces archives."""

    def write(self, name: str, content: bytes, *, below: str, executable: bool = False) -> None:
        content = b"raise SystemExit(0)\n" if name.endswith("job.pyz") else content
        LocalShell.write(self, name, content, below=below, executable=executable)


def test_an_archive_that_somebody_changed_is_not_run(site: Site) -> None:
    site.shell = Tampering()
    site.habits = {"retries": Retries(tries=1)}
    job = site.run(taken(JobType="generic"))

    assert job.local == {LocalState.FAILED: 1}
    assert "job.pyz was changed since this job was submitted" in output(job)["batch.err.1"]


def test_partial_success_is_reported_as_such_with_the_output_of_all(site: Site) -> None:
    site.sandboxes.content = sandbox(
        run__sh="#!/bin/sh\necho part >events.txt; exit $((LOCAL_JOB == 2 ? 3 : 0))\n"
    )
    job = site.run(taken(LocalJobs=3))

    assert job.outcome is not None
    assert (job.outcome.status, job.outcome.minor_status, job.outcome.exit_code) == (
        "Failed",
        "Partially Done",
        3,
    )
    assert (
        "2 of 3 local jobs done; 2: Application Finished With Errors: exit code 3"
        in job.outcome.application_status
    )
    assert {f"events.txt.{n}" for n in (1, 2, 3)} <= output(job).keys()


def test_an_exit_status_is_tried_again_only_if_the_policy_says_so(site: Site) -> None:
    site.sandboxes.content = sandbox(
        run__sh=f"#!/bin/sh\nmkdir {site.directory}/tried && exit 1\necho $LOCAL_JOB >events.txt\n"
    )
    site.habits = {"retries": Retries(tries=2, exit_codes=True)}
    job = site.run(taken())

    assert job.outcome is not None
    assert job.outcome.status == "Done"
    log = output(job)["manager.log"]
    assert "local job 1, try 1" in log
    assert "it is tried again" in log


def test_a_payload_that_cannot_run_where_it_is_is_tried_again(site: Site) -> None:
    site.sandboxes.content = sandbox(run__sh="#!/bin/sh\nexit 222\n")
    job = site.run(taken())

    assert job.outcome is not None
    assert job.outcome.minor_status == "Application Finished With Errors"
    assert json.loads(output(job)["local-jobs.json"])[0]["tries"] == 3


def test_a_local_job_whose_slot_was_ended_by_a_signal_names_the_batch_system_and_its_words(
    site: Site,
) -> None:
    begun, lost = site.directory / "begun", "PREEMPTED: Priority"

    class Preempting(LocalHost):
        def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
            found = LocalHost.status(self, handles)
            return {
                stamp: replace(each, message=lost) if each.state is State.KILLED else each
                for stamp, each in found.items()
            }

    site.system = Preempting(directory=str(site.shared / "batch"), cores=8, memory=8000, grace=GRACE)
    site.sandboxes.content = sandbox(run__sh=f"#!/bin/sh\ntouch {begun}; sleep 300\n")
    site.habits = {"retries": Retries(tries=1)}
    manager = site.manager()
    manager.journal.take(taken())
    until(manager, lambda _: begun.exists())
    [local] = manager.journal.local_jobs(AttemptKey(7, 1))

    site.system.kill([local.handle])
    job = until(manager, ended)

    assert job.outcome is not None
    why = job.outcome.application_status
    assert "1: ended by the batch system: missing from OutputSandbox: events.txt; " in why
    assert f"batch system: {lost}" in why


def test_a_killed_grid_job_ends_all_local_jobs_and_brings_what_they_wrote(site: Site) -> None:
    site.sandboxes.content = sandbox(
        run__sh="#!/bin/sh\necho half >events.txt\npilotage-progress begun 1 2\nsleep 300\n"
    )
    site.system = LocalHost(directory=str(site.shared / "batch"), cores=2, memory=8000, grace=GRACE)
    manager = site.manager()
    manager.journal.take(taken(LocalJobs=4))  # two run, two wait
    until(manager, lambda job: sum(each.done for each in job.progress) == 2)

    manager.journal.cancel(AttemptKey(7, 1))
    assert manager.grid_jobs()[0].phase is ManagerPhase.CANCELLING
    job = until(manager, ended)

    assert job.outcome is not None
    assert job.outcome.minor_status == "Received Kill signal"
    assert job.local == {LocalState.KILLED: 4}
    rows = json.loads(output(job)["local-jobs.json"])
    assert {row["message"] for row in rows} == {"its grid job was killed"}
    assert {name for name in output(job) if name.startswith("events")} == {"events.txt.1", "events.txt.2"}


def test_nothing_of_a_grid_job_stays_once_it_is_forgotten(site: Site) -> None:
    manager = site.manager()
    manager.journal.take(taken(LocalJobs=2))
    job = until(manager, ended)
    assert job.output is not None

    manager.journal.forget(AttemptKey(7, 1))
    assert manager.grid_jobs() == []
    manager.advance()

    left = [path for path in site.directory.rglob("*") if path.is_file()]
    assert {path.name for path in left} <= {
        "lock",
        "number",
        "book.sqlite",
        "book.sqlite-wal",
        "book.sqlite-shm",
    }
    assert not job.output.exists()


LOOK = """#!/bin/sh
ls {shared} >seen 2>&1; touch {shared}/mark; pilotage-progress looked 1 1; echo $PATH >path
"""


def look_around(site: Site, directory: Path, **habits: object) -> dict[str, str]:
    """What a payload of a local job finds in the shared directory."""
    site.habits = habits
    site.sandboxes.content = sandbox(run__sh=LOOK.format(shared=site.shared))
    job = site.run(taken(JobType="generic", Executable="run.sh", OutputSandbox=["seen", "path"]))
    assert [str(each) for each in job.progress] == ["looked 1 of 1"]
    return output(job)


@userns
def test_a_payload_does_not_see_the_files_of_other_local_jobs(site: Site, tmp_path: Path) -> None:
    files = look_around(site, tmp_path, isolation="strongest")
    assert "grid-" not in files["seen.1"]
    assert not (site.shared / "mark").exists()
    assert "not isolated" not in files["manager.log"]


def refuse_namespaces(directory: Path, monkeypatch: pytest.MonkeyPatch, *, message: str) -> None:
    tools = directory / "tools"
    tools.mkdir()
    (tools / "unshare").write_text(f"#!/bin/sh\necho 'unshare: unshare failed: {message}' >&2; exit 1\n")
    (tools / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")


def test_where_payloads_cannot_be_isolated_the_log_states_it(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_namespaces(tmp_path, monkeypatch, message="Operation not permitted")
    files = look_around(site, tmp_path, isolation="strongest")
    assert "grid-" in files["seen.1"]
    assert "local job 1: done: not isolated: --isolation userns does not work here" in files["manager.log"]


def test_isolation_that_fails_for_the_moment_is_not_replaced_by_less(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_namespaces(tmp_path, monkeypatch, message="No space left on device")
    site.habits = {"isolation": "strongest", "retries": Retries(tries=1)}
    job = site.run(taken(JobType="generic"))
    assert job.outcome is not None
    assert job.outcome.status == "Failed"
    assert "--isolation userns does not work here" in output(job)["manager.log"]


def test_a_stated_isolation_is_never_replaced_by_less(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.habits = {"isolation": "command", "isolation_command": "/bin/false", "retries": Retries(tries=1)}
    job = site.run(taken(JobType="generic"))
    assert job.outcome is not None
    assert job.outcome.status == "Failed"
    assert "--isolation command does not work here" in output(job)["manager.log"]
