"""What HTCondor says of jobs beyond the checks that every batch system passes; a stand-in answers for it."""

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pilotage.fabric.batch.batch_system import (
    BatchSystemAway,
    Handle,
    JobReport,
    State,
    SubmissionRefused,
    SubmissionUncertain,
)
from pilotage.fabric.batch.conformance.conformance import Bench
from pilotage.fabric.batch.htcondor import HTCondor
from pilotage.fabric.batch.shell import Completed, LocalShell
from pilotage.fabric.batch.work_area import WorkAreas
from tests.stand_ins import commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering(LocalShell):
    """A shell on which some commands have an answer of ours, by their first word."""

    answers: dict[str, Completed] = field(default_factory=dict)

    def run(self, command: Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Completed:
        if (answer := self.answers.get(command[0])) is not None:
            return answer
        return LocalShell.run(self, command, stdin=stdin, seconds=seconds)


@pytest.fixture
def shell(tmp_path: Path) -> Answering:
    environment = commands.environment("htcondor.py", commands.HTCONDOR, tmp_path / "pool")
    return Answering(environment=environment)


@pytest.fixture
def areas(shell: Answering, tmp_path: Path) -> WorkAreas:
    return WorkAreas(directory=str(tmp_path / "jobs"), shell=shell)


@pytest.fixture
def bench(shell: Answering, areas: WorkAreas) -> Iterator[Bench]:
    with closing(Bench(system=HTCondor(areas=areas), queue="htcondor", poll=0.05)) as bench:
        yield bench
        shell.answers.clear()


def said(stdout: str = "", *, status: int = 0, stderr: str = "") -> Completed:
    return Completed(status=status, stdout=stdout, stderr=stderr)


def left_the_queue(bench: Bench, script: str) -> Handle:
    handle = bench.submit(f"#!/bin/sh\n{script}\n")
    while bench.system.find([handle.stamp]):
        time.sleep(0.02)
    return handle


@pytest.mark.parametrize(
    ("script", "state", "exit_code"),
    [("exit 0", State.DONE, 0), ("exit 3", State.FAILED, 3), ("kill -KILL $$", State.FAILED, 137)],
)
def test_a_job_that_the_queue_forgot_is_known_by_its_event_log(
    bench: Bench, shell: Answering, script: str, state: State, exit_code: int
) -> None:
    handle = left_the_queue(bench, script)
    shell.answers["condor_history"] = said(status=1, stderr="no history")

    report = bench.report(handle)

    assert (report.state, report.exit_code, report.reference) == (state, exit_code, handle.reference)


@pytest.mark.parametrize(
    ("script", "state", "exit_code"),
    [("exit 0", State.DONE, 0), ("exit 3", State.FAILED, 3), ("kill -KILL $$", State.FAILED, 137)],
)
def test_a_job_whose_event_log_is_lost_is_known_by_the_history(
    bench: Bench, areas: WorkAreas, script: str, state: State, exit_code: int
) -> None:
    handle = left_the_queue(bench, script)
    Path(areas.path(handle.stamp, "events")).unlink()

    assert (bench.report(handle).state, bench.report(handle).exit_code) == (state, exit_code)


def test_half_an_event_log_proves_nothing(bench: Bench, shell: Answering, areas: WorkAreas) -> None:
    handle = left_the_queue(bench, "exit 0")
    log = Path(areas.path(handle.stamp, "events"))
    log.write_text(log.read_text()[: log.read_text().index("Normal termination")])
    shell.answers["condor_history"] = said(status=1)

    assert bench.report(handle) == JobReport(state=State.MISSING, reference=handle.reference)


@pytest.mark.parametrize(
    ("ad", "state", "message"),
    [
        ({"JobStatus": 1}, State.WAITING, ""),
        ({"JobStatus": 5, "HoldReason": "no such directory"}, State.WAITING, "no such directory"),
        ({"JobStatus": 3, "RemoveReason": "by admin"}, State.RUNNING, "by admin"),
        ({"JobStatus": 7}, State.RUNNING, ""),
        ({"JobStatus": 9}, State.UNKNOWN, ""),
    ],
)
def test_the_queue_says_how_a_job_stands(
    bench: Bench, shell: Answering, ad: dict[str, object], state: State, message: str
) -> None:
    stamp = f"test-{uuid.uuid4()}"
    listed = {"ClusterId": 7, "ProcId": 0, "PilotageStamp": stamp, **ad}
    shell.answers["condor_q"] = said(json.dumps([listed]))

    assert bench.report(Handle(stamp=stamp)) == JobReport(state=state, reference="7.0", message=message)


@pytest.mark.parametrize(
    ("stdout", "stderr"),
    [
        ("", "-- Failed to fetch ads from: <127.0.0.1:9618>"),  # whatever its exit status
        ("[\n{", ""),
        ('[{"ClusterId": 7}]', ""),
    ],
)
def test_from_an_answer_that_is_none_nothing_follows(
    bench: Bench, shell: Answering, stdout: str, stderr: str
) -> None:
    shell.answers["condor_q"] = said(stdout, stderr=stderr)
    with pytest.raises(BatchSystemAway, match="condor_q"):
        bench.report(Handle(stamp=f"test-{uuid.uuid4()}"))


@pytest.mark.parametrize(
    ("stderr", "error"),
    [
        ("ERROR: Failed to connect to local queue manager", SubmissionUncertain),
        ("ERROR: Failed to commit job submission into the queue.", SubmissionUncertain),
        ("ERROR: Parse error in expression", SubmissionRefused),
    ],
)
def test_a_manager_that_is_away_is_told_from_one_that_refuses(
    bench: Bench, shell: Answering, stderr: str, error: type[Exception]
) -> None:
    shell.answers["condor_submit"] = said(status=1, stderr=stderr)
    with pytest.raises(error):
        bench.submit("#!/bin/sh\n")


def test_a_flag_reaches_the_submission(bench: Bench, areas: WorkAreas, tmp_path: Path) -> None:
    job = bench.job("#!/bin/sh\nsleep 60\n")
    flags = ("-append", "requirements = TARGET.Memory > 2000")
    system = HTCondor(areas=areas, flags=flags)

    reference = system.submit(job)

    said = tmp_path / "pool" / "jobs" / reference.partition(".")[0] / "said"
    assert json.loads(said.read_text())["requirements"] == "TARGET.Memory > 2000"
