"""What a pilot does with its jobs: real payloads, a service in the test."""

import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.fakes.lease_server import QUEUE, TOKEN, Job, LeaseServer, Refusal
from tests.support.pilot_process import PilotProcess, files_of, run, sandbox


def shell(script: str, **more: object) -> dict[str, object]:
    return {"Executable": "/bin/sh", "Arguments": f"-c '{script}'", **more}


def test_a_job_is_run_and_its_output_delivered(server: LeaseServer, tmp_path: Path) -> None:
    job = server.add(shell("echo out; echo err >&2; echo data > x.dat", OutputSandbox=["x.dat"]))

    ended = run(server.url, tmp_path)

    assert (job.status, job.minor_status, job.exit_code) == ("Done", "Execution Complete", 0)
    assert files_of(job.output) == {"std.out": "out\n", "std.err": "err\n", "x.dat": "data\n"}
    assert ended["returncode"] == 0
    assert ended["jobs"][0]["ended"] == "Done"
    assert list(tmp_path.iterdir()) == []


def test_a_pilot_ends_after_as_many_jobs_as_it_was_told(server: LeaseServer, tmp_path: Path) -> None:
    jobs = [server.add({"Executable": "true"}) for _ in range(3)]

    ended = run(server.url, tmp_path, "--max-jobs", "2")

    assert [job.status for job in jobs] == ["Done", "Done", "Waiting"]
    assert ended["reason"] == "reached --max-jobs"


class Ended(NamedTuple):
    """How a job ends."""

    minor_status: str
    text: str = ""  #: in the application status
    exit_code: int | None = None
    output: Mapping[str, str] | None = None  #: files of it


def make_hostile_sandbox() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../../evil"))
    return data.getvalue()


RAN, FAILED = "Execution Complete", "Application Finished With Errors"
MISSING, ILLEGAL = "Application not found", "Illegal job description"
NO_SANDBOX = "Failed Downloading InputSandbox"
FILES = sandbox(
    run__sh="#!/bin/sh\ncat input.txt\nprintf '[%s]' \"$@\"\n",
    plain__sh="case $0 in /*) echo ran ;; esac\n",
    input__txt="from the sandbox\n",
    broken="#!/no/such/interpreter\n",
)
ALL = "logs/all.txt"
#: Jobs with their sandboxes, and their ends.
JOBS: Mapping[str, tuple[dict[str, object], bytes | None, Ended]] = {
    "exit code": (
        shell("echo partial; exit 7"),
        None,
        Ended(FAILED, "exit code 7", 7, {"std.out": "partial\n", "std.err": ""}),
    ),
    "signal": (shell("kill -SEGV $$"), None, Ended(FAILED, "ended by signal 11 (SIGSEGV)", 139)),
    "program of the sandbox": (
        {"Executable": "run.sh", "Arguments": "a 'b c' \"d\"", "InputSandbox": ["run.sh", "input.txt"]},
        FILES,
        Ended(RAN, "", 0, {"std.out": "from the sandbox\n[a][b c][d]", "std.err": ""}),
    ),
    "script without a first line": (
        {"Executable": "plain.sh"},
        FILES,
        Ended(RAN, "", 0, {"std.out": "ran\n", "std.err": ""}),
    ),
    "one file for output and error": (
        shell("echo one; echo two >&2; echo three", StdOutput=ALL, StdError=ALL),
        None,
        Ended(RAN, "", 0, {ALL: "one\ntwo\nthree\n"}),
    ),
    "no such program": ({"Executable": "no-such-program"}, FILES, Ended(MISSING, "no-such-program")),
    "no such path": ({"Executable": "/no/such/program"}, FILES, Ended(MISSING, "/no/such/program")),
    "program outside": ({"Executable": "../../escape"}, FILES, Ended(MISSING, "escape")),
    "no such interpreter": ({"Executable": "broken"}, FILES, Ended(MISSING, "broken")),
    "open quote": ({"Executable": "true", "Arguments": "it's"}, FILES, Ended(ILLEGAL, "it's")),
    "output outside": ({"Executable": "true", "StdOutput": "../out"}, FILES, Ended(ILLEGAL, "../out")),
    "output elsewhere": ({"Executable": "true", "StdOutput": "/tmp/out"}, FILES, Ended(ILLEGAL, "/tmp/out")),
    "no program": ({}, FILES, Ended(ILLEGAL, "Executable")),
    "no sandbox": ({"Executable": "true", "InputSandbox": ["gone.sh"]}, None, Ended(NO_SANDBOX, "no more")),
    "hostile sandbox": (
        {"Executable": "true"},
        make_hostile_sandbox(),
        Ended(NO_SANDBOX, "leaves its directory"),
    ),
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Job]:
    """All of them, taken by one pilot one after the other."""
    work = tmp_path_factory.mktemp("work")
    with LeaseServer() as server:
        added = {name: server.add(description, files) for name, (description, files, _) in JOBS.items()}
        ended = run(server.url, work)
    assert len(ended["jobs"]) == len(JOBS)
    assert ended["reason"].startswith("no work")
    assert list(work.iterdir()) == []
    assert not (work.parent / "evil").exists()
    return added


@pytest.mark.parametrize("name", JOBS)
def test_a_job_ends_as_its_payload_did_or_with_the_reason_why_it_cannot_run(
    jobs: Mapping[str, Job], name: str
) -> None:
    job, (_, _, end) = jobs[name], JOBS[name]
    assert (job.status, job.minor_status) == ("Done" if end.exit_code == 0 else "Failed", end.minor_status)
    assert end.text in job.application_status
    assert job.exit_code == end.exit_code
    if end.output is not None:
        assert files_of(job.output) == end.output


def test_a_sandbox_beyond_the_limit_fails_the_job(server: LeaseServer, tmp_path: Path) -> None:
    job = server.add({"Executable": "true"}, sandbox(zeros="0" * 100_000))

    run(server.url, tmp_path, "--sandbox-limit", "10000")

    assert job.minor_status == "Failed Downloading InputSandbox"
    assert "more bytes" in job.application_status


def test_output_cannot_be_taken_from_outside(server: LeaseServer, tmp_path: Path) -> None:
    script = "ln -s /etc/passwd stolen; ln -s / all; ln -s std.out mine; mkfifo pipe"
    names = ["stolen", "all/etc/passwd", "mine", "pipe", "/etc/passwd", "../../x", "gone"]
    job = server.add(shell(script, OutputSandbox=names))

    run(server.url, tmp_path)

    assert job.status == "Done"
    assert set(files_of(job.output)) == {"std.out", "std.err", "mine"}
    assert "missing from OutputSandbox: gone" in job.application_status
    assert "stolen" in job.application_status


def test_output_beyond_the_limit_fails_the_job_and_keeps_the_rest(
    server: LeaseServer, tmp_path: Path
) -> None:
    job = server.add(shell("echo log; head -c 100000 /dev/zero > big", OutputSandbox=["big"]))

    run(server.url, tmp_path, "--output-limit", "1000")

    assert (job.status, job.minor_status) == ("Failed", "Failed Uploading OutputSandbox")
    assert "too large: big" in job.application_status
    assert files_of(job.output)["std.out"] == "log\n"


def test_output_that_the_service_refuses_fails_the_job(server: LeaseServer, tmp_path: Path) -> None:
    job = server.add({"Executable": "true"})
    server.refuse("/output", Refusal(413, "body_too_large", "has more than 10 bytes"))

    run(server.url, tmp_path)

    assert (job.status, job.minor_status) == ("Failed", "Failed Uploading OutputSandbox")
    assert "more than 10 bytes" in job.application_status


def test_a_payload_sees_what_dirac_tells_and_nothing_of_the_pilot(
    server: LeaseServer, tmp_path: Path
) -> None:
    job = server.add(shell("env; pwd; ls -A", ExecutionEnvironment={"MINE": "1"}))

    run(server.url, tmp_path, environment={"X509_USER_PROXY": "/secret", "SSH_AUTH_SOCK": "/secret"})

    output = files_of(job.output)["std.out"]
    assert {"JOBID=1", "DIRACSITE=LCG.Test.org", "DIRAC_PROCESSORS=1", "MINE=1"} <= set(output.splitlines())
    assert TOKEN not in output
    assert "PILOTAGE_TOKEN" not in output
    assert "/secret" not in output
    assert str(tmp_path) in output


def test_a_payload_finds_no_token_in_the_processes_above_it(server: LeaseServer, tmp_path: Path) -> None:
    """Even as root, whom the kernel lets read the environment that the pilot was started with."""
    script = (
        "import os\n"
        "pid = os.getpid()\n"
        "while pid > 1:\n"
        "    for name in ('environ', 'cmdline'):\n"
        "        try:\n"
        "            print(pid, open(f'/proc/{pid}/{name}', 'rb').read())\n"
        "        except OSError as error:\n"
        "            print(error)\n"
        "    pid = int(open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[1])\n"
        "    if pid == int(os.environ['STOP_AT']): break\n"
    )
    job = server.add(
        {
            "Executable": "python3",
            "Arguments": "look.py",
            "ExecutionEnvironment": {"STOP_AT": str(os.getpid())},
        },
        sandbox(look__py=script),
    )

    run(server.url, tmp_path)

    output = files_of(job.output)["std.out"]
    assert job.status == "Done"
    assert "supervisor" in output
    assert "PILOTAGE_TOKEN=xxx" in output or "Permission denied" in output
    assert TOKEN not in output


def test_heartbeats_tell_the_end_of_the_output_and_the_progress(server: LeaseServer, tmp_path: Path) -> None:
    script = "echo first; echo 3 of 7 > $PILOTAGE_PROGRESS_FILE; while [ ! -e go ]; do sleep 0.05; done"
    job = server.add(shell(script, OutputSandbox=["go"]))

    with PilotProcess(server.url, tmp_path) as pilot:
        server.wait_for(
            lambda: job.attempts and any("3 of 7" in beat["progress"] for beat in job.attempt.heartbeats)
        )
        (next(tmp_path.glob("job-*")) / "work" / "go").write_text("")
        pilot.end()

    assert job.attempt.heartbeats[-1]["output_tail"] == "first"
    assert job.status == "Done"


def test_progress_is_measured_where_the_payload_says_none(server: LeaseServer, tmp_path: Path) -> None:
    job = server.add(shell(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"))

    with PilotProcess(server.url, tmp_path) as pilot:
        server.wait_for(lambda: job.attempts and job.attempt.heartbeats)
        (tmp_path / "go").touch()
        pilot.end()

    assert "CPU" in job.attempt.heartbeats[0]["progress"]


def test_pools_are_asked_for_when_there_are_none(server: LeaseServer, tmp_path: Path) -> None:
    server.pools = ["b" * 64]

    run(server.url, tmp_path)

    assert server.bodies("/getSubmitPoolsForQueue") == [{"queues": [QUEUE]}]
    assert server.bodies("/requestJob")[0]["SubmitPool"] == ["b" * 64]


def test_pools_of_several_pages_are_all_offered(server: LeaseServer, tmp_path: Path) -> None:
    server.pools = [each * 64 for each in "abcde"]
    server.pool_page = 2

    run(server.url, tmp_path)

    assert server.bodies("/getSubmitPoolsForQueue") == [{"queues": [QUEUE]}] * 3
    assert server.bodies("/requestJob")[0]["SubmitPool"] == server.pools


def test_pools_that_were_handed_over_are_not_asked_for(server: LeaseServer, tmp_path: Path) -> None:
    run(server.url, tmp_path, "--pools", "c" * 64)

    assert server.bodies("/getSubmitPoolsForQueue") == []
    assert server.bodies("/requestJob")[0]["SubmitPool"] == ["c" * 64]


def test_an_idle_pilot_asks_as_often_as_it_was_told_and_says_why_it_ends(
    server: LeaseServer, tmp_path: Path
) -> None:
    server.retry_after = 0

    ended = run(server.url, tmp_path, "--max-empty", "3")

    requests = server.bodies("/requestJob")
    assert len(requests) == 3
    assert len({body["request_id"] for body in requests}) == 3
    assert ended["reason"] == "no work in the last 3 answers: no_task_queue"
    assert ended["returncode"] == 0


def test_a_pilot_ends_when_it_was_idle_for_long(server: LeaseServer, tmp_path: Path) -> None:
    server.retry_after = 0

    ended = run(server.url, tmp_path, "--max-empty", "0", "--max-idle", "0.5")

    assert ended["reason"] == "no work for 0.5 s"


def test_a_wrong_token_ends_the_pilot(server: LeaseServer, tmp_path: Path) -> None:
    ended = run(server.url, tmp_path, token="wrong")

    assert ended["returncode"] == 1
    assert "401" in ended["reason"]


def test_an_unknown_queue_ends_the_pilot_with_what_was_meant(server: LeaseServer, tmp_path: Path) -> None:
    ended = run(server.url, tmp_path, queue="LCG.Test.org/ce01/lng")

    assert ended["returncode"] == 1
    assert f"did you mean {QUEUE}" in ended["reason"]


def test_without_a_token_it_is_told_how_to_give_one(server: LeaseServer, tmp_path: Path) -> None:
    with PilotProcess(server.url, tmp_path, token="") as pilot:
        _, log = pilot.process.communicate(timeout=300)

    assert pilot.process.returncode == 2
    assert "PILOTAGE_TOKEN" in log.splitlines()[-1]
