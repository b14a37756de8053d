"""How payloads are ended, by whomever, and that nothing of them is left."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from examples.servers.starting import wait_until
from pilotage.fabric.pilot.node import linux
from tests.support.fakes.lease_server import LeaseServer
from tests.support.pilot_process import PilotProcess, files_of, run, shell, wait_until_gone, wait_until_there


@pytest.fixture
def marker() -> str:
    """Stands in the command lines of a payload, by which its processes are found."""
    return f"marker-{uuid.uuid4().hex}"


def family(marker: str, *, obstinate: bool = False) -> dict[str, object]:
    """A payload of three: itself, a child, and a grandchild that left session and parents.

    What is obstinate is so before there is a child, which inherits it.
    """
    ignore = 'trap "" TERM; ' if obstinate else ""
    child = f"while :; do sleep 0.1; done # {marker}"
    script = f"{ignore}echo begun; (setsid setsid sh -c '{child}' &) ; sh -c '{child}' & {child}"
    return {"Executable": "/bin/sh", "Arguments": ["-c", script]}


#: A pilot that waits for its own signal however late that comes after those of its payloads.
_PATIENT = """
import os, sys
from pilotage.fabric.pilot import main
from pilotage.fabric.pilot.payload import monitor
monitor._ORDERED_TOGETHER = 300.0
sys.exit(main.main(sys.argv[1:], os.environ))
"""


def signal_all(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and everything below it, the youngest first."""
    for each in (*reversed(linux.descendants(pid)), pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, number)


def test_a_killed_job_is_ended_with_all_its_processes_and_its_output_kept(
    server: LeaseServer, tmp_path: Path, marker: str
) -> None:
    job = server.add(family(marker))
    with PilotProcess(server.url, tmp_path) as pilot:
        wait_until_there(marker, 3)
        server.kill(job)
        ended = pilot.end()

    wait_until_gone(marker)
    assert job.status == "Killed"
    assert job.attempt.report is not None
    assert job.attempt.report["minor_status"] == "Received Kill signal"
    assert files_of(job.output)["std.out"] == "begun\n"
    assert ended["jobs"][0]["detail"] == "Received Kill signal"


def test_a_payload_gets_time_to_end_well(server: LeaseServer, tmp_path: Path) -> None:
    script = "trap 'echo saved > result; exit 0' TERM; echo begun; while :; do sleep 0.05; done"
    job = server.add({"Executable": "/bin/sh", "Arguments": ["-c", script], "OutputSandbox": "result"})
    with PilotProcess(server.url, tmp_path, "--grace", "120") as pilot:
        server.wait_for(lambda: job.attempts and any(b["output_tail"] for b in job.attempt.heartbeats))
        server.kill(job)
        pilot.end()

    assert files_of(job.output)["result"] == "saved\n"


def test_a_payload_that_ignores_term_is_killed(server: LeaseServer, tmp_path: Path, marker: str) -> None:
    job = server.add(family(marker, obstinate=True))
    with PilotProcess(server.url, tmp_path) as pilot:
        wait_until_there(marker, 3)
        server.kill(job)
        pilot.end()

    wait_until_gone(marker)
    assert job.attempt.report is not None
    assert job.attempt.report["exit_code"] == 137


def test_a_stopped_payload_is_ended_too(server: LeaseServer, tmp_path: Path, marker: str) -> None:
    job = server.add({"Executable": "/bin/sh", "Arguments": ["-c", f"kill -STOP $$; echo # {marker}"]})
    with PilotProcess(server.url, tmp_path) as pilot:
        wait_until_there(marker)
        server.kill(job)
        pilot.end()

    wait_until_gone(marker)


def test_what_a_payload_leaves_running_ends_with_it(server: LeaseServer, tmp_path: Path, marker: str) -> None:
    loop = f"while :; do sleep 0.1; done # {marker}"
    job = server.add({"Executable": "/bin/sh", "Arguments": ["-c", f"setsid sh -c '{loop}' & echo main"]})

    run(server.url, tmp_path)

    wait_until_gone(marker)
    assert (job.status, files_of(job.output)["std.out"]) == ("Done", "main\n")


def test_a_job_that_runs_too_long_is_ended(server: LeaseServer, tmp_path: Path, marker: str) -> None:
    output, seconds = "", 1
    while not output:  # on a busy host its time may be over before it has begun
        job = server.add({**family(marker), "MaxWallClockTime": seconds})
        run(server.url, tmp_path)

        wait_until_gone(marker)
        assert (job.status, job.minor_status) == ("Failed", "Job has exceeded maximum wall clock time")
        assert job.application_status == f"allowed {seconds} s"
        output = files_of(job.output).get("std.out", "")
        seconds *= 2
    assert output == "begun\n"


def test_a_job_ends_before_its_slot_does(server: LeaseServer, tmp_path: Path, marker: str) -> None:
    job = server.add(family(marker))
    lifetime, ended = 2, {}

    # On a busy host the slot may be over before the pilot has requested a job, or has begun it.
    while job.status == "Waiting":
        ended = run(server.url, tmp_path, "--lifetime", str(lifetime))
        lifetime *= 2

    wait_until_gone(marker)
    assert job.minor_status == "Job has exceeded maximum wall clock time"
    assert ended["reason"].endswith("s of the slot are left")
    assert ended["returncode"] == 0


def test_a_job_that_takes_too_much_memory_is_ended(server: LeaseServer, tmp_path: Path) -> None:
    script = "import os,time; os.fork(); x = bytearray(os.urandom(80 << 20)); time.sleep(600)"
    job = server.add({"Executable": "python3", "Arguments": ["-c", script], "MaxRAM": 120})

    run(server.url, tmp_path)

    assert (job.status, job.minor_status) == ("Failed", "Job has exceeded its memory limit")
    assert re.fullmatch(r"memory limit 120 MB of MaxRAM: peak \d{3} MB", job.application_status)


def test_memory_beyond_the_limit_of_a_document_is_told_with_its_parts(
    server: LeaseServer, tmp_path: Path
) -> None:
    script = "import os,time; x = bytearray(os.urandom(150 << 20)); time.sleep(600)"
    limit = {"overhead": 60, "per_core": 20}
    body = {"Executable": "python3", "Arguments": ["-c", script], "NumberOfProcessors": 2}
    job = server.add({**body, "requirements": {"cpu": {"ram_mb": {"limit": limit}}}})

    run(server.url, tmp_path, "--processors", "2", "--max-ram", "4000")

    assert (job.status, job.minor_status) == ("Failed", "Job has exceeded its memory limit")
    told = re.fullmatch(r"memory limit 100 MB of 60 \+ 20 × 2 cores: peak (\d+) MB", job.application_status)
    assert told is not None
    assert job.attempt.report is not None
    # The detail is rounded up, and the payload may grow until it has ended.
    assert job.attempt.report["memory_mb"] >= int(told[1]) - 1 > 99


def test_a_job_that_writes_too_much_is_ended(server: LeaseServer, tmp_path: Path) -> None:
    job = server.add(shell("head -c 30000000 /dev/zero > large; sleep 600", MinScratch=20))

    run(server.url, tmp_path)

    assert (job.status, job.minor_status) == ("Failed", "Job has exceeded its scratch space limit")
    assert re.fullmatch(r"scratch limit 20 MB of the job: peak \d\d MB", job.application_status)
    assert job.attempt.report is not None
    assert job.attempt.report["scratch_mb"] > 20


def test_the_end_reports_what_the_payload_used(server: LeaseServer, tmp_path: Path) -> None:
    script = "import os; x = os.urandom(90 << 20); open('file', 'wb').write(x[: 7 << 20])"
    job = server.add({"Executable": "python3", "Arguments": ["-c", script]})

    run(server.url, tmp_path)

    report = job.attempt.report
    assert report is not None
    assert 90 <= report["memory_mb"] < 300
    assert 7 <= report["scratch_mb"] < 20
    assert 0 < report["cpu_seconds"] < 60


def test_memory_that_is_shared_counts_once(server: LeaseServer, tmp_path: Path) -> None:
    script = "import os,time; x = os.urandom(60 << 20); os.fork(); os.fork(); time.sleep(1.5)"
    # Counted for each of the four it would be more than 240 MB; those that end as they are measured add some.
    job = server.add({"Executable": "python3", "Arguments": ["-c", script], "MaxRAM": 200})

    run(server.url, tmp_path)

    assert job.status == "Done"


def test_a_pilot_told_to_end_gives_its_job_back(server: LeaseServer, tmp_path: Path, marker: str) -> None:
    job = server.add(family(marker))
    with PilotProcess(server.url, tmp_path) as pilot:
        wait_until_there(marker, 3)
        pilot.process.send_signal(signal.SIGTERM)
        ended = pilot.end()

    wait_until_gone(marker)
    assert job.status == "Rescheduled"
    assert job.attempt.closed_as == "released"
    assert ended["jobs"][0]["ended"] == "Released"
    assert (ended["returncode"], ended["reason"]) == (0, "ended by a signal")
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_is_given_back_reports_what_it_used_until_then(
    server: LeaseServer, tmp_path: Path
) -> None:
    job = server.add(shell("head -c 8000000 /dev/zero > large; touch written; while :; do sleep 0.1; done"))
    with PilotProcess(server.url, tmp_path, "--heartbeat", "600") as pilot:
        wait_until(lambda: any(tmp_path.glob("job-*/work/written")))
        pilot.process.send_signal(signal.SIGTERM)
        pilot.end()

    assert job.attempt.closed_as == "released"
    assert job.attempt.heartbeats[-1]["scratch_mb"] >= 7


@pytest.mark.parametrize(
    ("lifetime", "when"), [("3000", "before the end of its slot"), ("60", "at the time limit of its slot")]
)
def test_a_job_that_is_given_back_has_whether_the_time_of_its_slot_was_over(
    server: LeaseServer, tmp_path: Path, marker: str, lifetime: str, when: str
) -> None:
    server.add(family(marker))
    with PilotProcess(server.url, tmp_path, "--lifetime", lifetime) as pilot:
        wait_until_there(marker, 3)
        pilot.process.send_signal(signal.SIGTERM)
        ended = pilot.end()
    assert ended["jobs"][0]["detail"] == f"a signal ended the pilot {when}; the payload was ended"


def test_a_signal_to_the_whole_group_ends_it_as_well(
    server: LeaseServer, tmp_path: Path, marker: str
) -> None:
    """What a terminal does for Ctrl-C, and many batch systems."""
    job = server.add(family(marker))
    with PilotProcess(server.url, tmp_path) as pilot:
        wait_until_there(marker, 3)
        os.killpg(pilot.process.pid, signal.SIGINT)
        pilot.end()

    wait_until_gone(marker)
    assert job.attempt.closed_as == "released"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_every_process_of_the_slot_gives_its_jobs_back(
    server: LeaseServer, tmp_path: Path, marker: str, number: signal.Signals
) -> None:
    """What Slurm does for `scancel`, at the time limit and for preemption: payloads are gone at once."""
    loop = f"while :; do sleep 0.1; done # {marker}"
    jobs = [server.add(shell(f"{trap}{loop}")) for trap in ("", "trap 'exit 3' TERM INT; ")]
    with PilotProcess(
        server.url, tmp_path, "--processors", "2", command=(sys.executable, "-c", _PATIENT)
    ) as pilot:
        server.wait_for(lambda: all(job.attempts and job.attempt.heartbeats for job in jobs))
        signal_all(pilot.process.pid, number)
        ended = pilot.end()

    wait_until_gone(marker)
    assert [job.status for job in jobs] == ["Rescheduled"] * 2
    assert [each["ended"] for each in ended["jobs"]] == ["Released"] * 2
    assert (ended["returncode"], ended["reason"]) == (0, "ended by a signal")


def test_an_idle_pilot_ends_at_once_when_told(server: LeaseServer, tmp_path: Path) -> None:
    server.retry_after = 600
    with PilotProcess(server.url, tmp_path, "--max-empty", "0") as pilot:
        server.wait_for(lambda: server.bodies("/requestJob"))
        pilot.process.send_signal(signal.SIGTERM)
        ended = pilot.end()

    assert (ended["returncode"], ended["reason"]) == (0, "ended by a signal")


def test_a_pilot_told_to_end_while_the_service_is_away_ends_all_the_same(
    server: LeaseServer, tmp_path: Path, marker: str
) -> None:
    server.add(family(marker))
    with PilotProcess(server.url, tmp_path) as pilot:
        wait_until_there(marker, 3)
        with server.away():
            pilot.process.send_signal(signal.SIGTERM)
            ended = pilot.end(timeout=300)

    wait_until_gone(marker)
    assert ended["jobs"][0]["ended"] == "Lost"
    assert ended["returncode"] == 0


@pytest.mark.parametrize("whom", ["pilot", "group"])
def test_a_killed_pilot_leaves_no_payload_and_no_files(
    server: LeaseServer, tmp_path: Path, marker: str, whom: str
) -> None:
    server.add(family(marker))
    with PilotProcess(server.url, tmp_path) as pilot:
        wait_until_there(marker, 3)
        if whom == "pilot":
            pilot.process.kill()
        else:
            os.killpg(pilot.process.pid, signal.SIGKILL)

        wait_until_gone(marker)
        # Removed by who has ended the payload, after its end.
        wait_until(lambda: not list(tmp_path.iterdir()))


def test_a_payload_is_ended_whose_pilot_died_before_it_read_of_the_start(tmp_path: Path, marker: str) -> None:
    words = ["/bin/sh", "-c", f"while :; do sleep 0.05; done # {marker}"]
    with (tmp_path / "out").open("wb") as out:
        out_number = out.fileno()
        order = {
            "words": words,
            "directory": str(tmp_path),
            "environment": {},
            "area": str(tmp_path / "area"),
        }
        read, write = os.pipe()
        os.close(read)  # the pilot reads no news
        code = "from pilotage.fabric.pilot.payload import supervisor; supervisor.main()"
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=write, pass_fds=[out_number]
        )
        os.close(write)
    with process:
        assert process.stdin is not None
        process.stdin.write(json.dumps({**order, "output": out_number, "error": out_number}).encode() + b"\n")
        process.stdin.flush()
        process.wait(timeout=300)
    wait_until_gone(marker)


def test_a_payload_that_kills_its_supervisor_gains_nothing(
    server: LeaseServer, tmp_path: Path, marker: str
) -> None:
    loop = f"while :; do sleep 0.1; done # {marker}"
    job = server.add(
        {"Executable": "/bin/sh", "Arguments": ["-c", f"sh -c '{loop}' & kill -9 $PPID; {loop}"]}
    )

    run(server.url, tmp_path)

    wait_until_gone(marker)
    assert (job.status, job.exit_code) == ("Failed", 137)


def test_protected_directories_of_a_payload_are_removed(server: LeaseServer, tmp_path: Path) -> None:
    server.add({"Executable": "/bin/sh", "Arguments": ["-c", "mkdir -p a/b; touch a/b/c; chmod 0 a/b a"]})

    run(server.url, tmp_path)

    assert list(tmp_path.iterdir()) == []
