"""Several payloads at once on one slot, and that they do not disturb each other."""

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.fakes.lease_server import LeaseServer, Refusal
from tests.support.pilot_process import PilotProcess, files_of, run, shell


def meeting(place: Path, number: int, of: int) -> dict[str, object]:
    """Ends only when so many of its kind run at the same time."""
    await_all = f"while [ $(ls {place} | wc -l) -lt {of} ]; do sleep 0.05; done"
    return shell(f"touch {place}/{number}; {await_all}; pwd; env")


def variables(output: bytes | None) -> dict[str, str]:
    lines = files_of(output)["std.out"].splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_payloads_run_beside_each_other_each_with_its_own(server: LeaseServer, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    jobs = [server.add(meeting(tmp_path / "place", number, 3)) for number in range(3)]

    words = ("--processors", "3", "--max-ram", "3000", "--gpus", "2")
    ended = run(server.url, tmp_path / "work", *words, environment={"CUDA_VISIBLE_DEVICES": "4,7"})

    assert {job.status for job in jobs} == {"Done"}
    assert len(ended["jobs"]) == 3
    first, *_ = server.bodies("requestJob")
    assert (first["count"], first["NumberOfProcessors"], first["GPUs"]) == (3, 3, 2)
    seen = [variables(job.output) for job in jobs]
    assert len({each["PWD"] for each in seen}) == len({each["TMPDIR"] for each in seen}) == 3
    assert {each["PILOTAGE_JOB_RAM"] for each in seen} == {"1000"}
    assert {each["DIRAC_JOB_PROCESSORS"] for each in seen} == {"1"}
    assert {each["CUDA_VISIBLE_DEVICES"] for each in seen} == {""}, "none of them asked for one"


def test_the_end_of_one_payload_makes_room_for_the_next(server: LeaseServer, tmp_path: Path) -> None:
    long = server.add(shell(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"))
    short = [server.add(shell("true")) for _ in range(3)]
    last = server.add(shell(f"touch {tmp_path}/go"))

    run(server.url, tmp_path / "work", "--processors", "2", "--max-ram", "2000")

    assert {job.status for job in (long, *short, last)} == {"Done"}
    asked = [(each["NumberOfProcessors"], each["MaxRAM"]) for each in server.bodies("requestJob")]
    assert asked[0] == (2, 2000)
    assert (1, 1000) in asked


class LateServer(LeaseServer):
    """Has nothing for half a slot, and says so only when all of it is free again; then there is a job."""

    def __init__(self, go: Path) -> None:
        super().__init__()
        self._go = go  #: for which the first job waits

    def _request_job(self, said: Mapping[str, Any]) -> dict[str, Any]:
        if said["NumberOfProcessors"] == 2 or len(self.jobs) == 2:
            return super()._request_job(said)
        self._go.touch()
        self.wait_for(lambda: all(job.status == "Done" for job in self.jobs.values()))
        self._changed.wait(0.5)  # until the pilot has taken notice
        self.add(shell("true"))
        return {"matches": [], "reason": "no_task_queue", "retry_after": 1}


def test_what_half_a_slot_was_told_does_not_end_all_of_it(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with LateServer(go) as server:
        server.add(shell(f"until [ -e {go} ]; do sleep 0.05; done"))
        run(server.url, tmp_path / "work", "--processors", "2", "--max-ram", "2000")

        assert [job.status for job in server.jobs.values()] == ["Done", "Done"]


def test_a_node_is_offered_whole_only_while_it_is(server: LeaseServer, tmp_path: Path) -> None:
    server.parameters |= {"WholeNode": True, "NumberOfProcessors": 2, "Tag": ["WholeNode", "fast"]}
    server.retry_after = 0
    server.add(shell(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"))

    with PilotProcess(server.url, tmp_path) as pilot:
        server.wait_for(lambda: any(each["NumberOfProcessors"] == 1 for each in server.bodies("requestJob")))
        (tmp_path / "go").touch()
        pilot.end()

    offered = {each["NumberOfProcessors"]: each for each in server.bodies("requestJob")}
    assert offered[2]["WholeNode"] is True
    assert "WholeNode" not in offered[1]
    tags = {
        number: [tag for tag in each["Tag"] if not tag.startswith(("hostfeat:", "cvmfs:"))]
        for number, each in offered.items()
    }
    assert (tags[2], tags[1]) == (["WholeNode", "fast"], ["fast"])


def test_who_has_the_whole_node_is_alone(server: LeaseServer, tmp_path: Path) -> None:
    job = server.add(shell("env", WholeNode=True))
    other = server.add(shell("true"))
    server.refuse("/finish", Refusal(503, "unavailable", retry_after=1))
    words = ("--processors", "4", "--max-ram", "4000", "--max-jobs", "1")

    with PilotProcess(server.url, tmp_path, *words) as pilot:
        server.wait_for(lambda: job.output is not None)
        server.refuse("/finish", None)
        pilot.end()

    assert other.status == "Waiting"
    seen = variables(job.output)
    assert (seen["DIRAC_WHOLENODE"], seen["DIRAC_JOB_PROCESSORS"]) == ("True", "4")
    assert seen["PILOTAGE_JOB_RAM"] == "4000"


def test_one_that_crashes_is_killed_or_takes_too_much_leaves_the_others_alone(
    server: LeaseServer, tmp_path: Path
) -> None:
    greedy = "import os,time; x = bytearray(os.urandom(150 << 20)); time.sleep(600)"
    modest = server.add(shell(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo fine"))
    killed = server.add(shell("echo begun; while :; do sleep 0.1; done"))
    crashes = server.add(shell("kill -SEGV $$"))
    takes = server.add({"Executable": "python3", "Arguments": ["-c", greedy]})

    with PilotProcess(server.url, tmp_path / "work", "--processors", "4", "--max-ram", "120") as pilot:
        server.wait_for(lambda: crashes.status == takes.status == "Failed")
        server.wait_for(lambda: killed.attempts and killed.attempt.heartbeats)
        server.kill(killed)
        server.wait_for(lambda: killed.attempt.report is not None)
        server.wait_for(lambda: modest.status == "Running")
        (tmp_path / "go").touch()
        pilot.end()

    assert takes.minor_status == "Job has exceeded its memory limit"
    assert crashes.application_status == "ended by signal 11 (SIGSEGV)"
    assert (modest.status, files_of(modest.output)["std.out"]) == ("Done", "fine\n")


def test_large_jobs_are_not_kept_out_for_ever(server: LeaseServer, tmp_path: Path) -> None:
    server.retry_after = 0
    server.add(shell(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"))
    words = ("--processors", "2", "--whole-every", "1e-9", "--verbose")

    with PilotProcess(server.url, tmp_path / "work", *words) as pilot:
        server.wait_for(lambda: server.bodies("/heartbeat"))
        waiting = server.add(shell("true"))
        asked = len(server.bodies("requestJob"))
        server.wait_for(lambda: len(server.bodies("/heartbeat")) >= 5)
        assert len(server.bodies("requestJob")) == asked
        (tmp_path / "go").touch()
        pilot.end()

    assert waiting.status == "Done"
    assert {each["NumberOfProcessors"] for each in server.bodies("requestJob")} == {2}


@pytest.mark.parametrize("how", ["signal", "file"])
def test_a_pilot_that_drains_finishes_what_runs(server: LeaseServer, tmp_path: Path, how: str) -> None:
    running = server.add(shell(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo finished"))
    words = ("--processors", "2", "--drain-file", str(tmp_path / "drain"))
    with PilotProcess(server.url, tmp_path / "work", *words) as pilot:
        server.wait_for(lambda: running.status == "Running")
        if how == "file":
            (tmp_path / "drain").touch()
        else:
            pilot.process.send_signal(signal.SIGUSR1)
        pilot.wait_until_it_says("no more jobs")
        waiting = server.add(shell("true"))
        (tmp_path / "go").touch()
        ended = pilot.end()

    assert (running.status, files_of(running.output)["std.out"]) == ("Done", "finished\n")
    assert waiting.status == "Waiting"
    assert (ended["returncode"], ended["reason"]) == (0, "drained")


def test_while_the_service_is_away_what_runs_goes_on_and_then_more_is_taken(
    server: LeaseServer, tmp_path: Path
) -> None:
    running = server.add(shell(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"))
    words = ("--processors", "2", "--patience", "0.1")
    with PilotProcess(server.url, tmp_path / "work", *words) as pilot:
        server.wait_for(lambda: running.status == "Running")
        server.wait_for(lambda: len(server.bodies("requestJob")) >= 2)
        with server.away():
            pilot.wait_until_it_says("heartbeat failed")
            waiting = server.add(shell("true"))
            (tmp_path / "go").touch()
        ended = pilot.end()

    assert (running.status, waiting.status, ended["returncode"]) == ("Done", "Done", 0)


def test_a_job_that_cannot_finish_is_handed_back_before_it_starts(
    server: LeaseServer, tmp_path: Path
) -> None:
    long = server.add({"Executable": "touch", "Arguments": f"{tmp_path}/ran", "CPUTime": 2000})

    ended = run(server.url, tmp_path / "work", "--lifetime", "100", "--cpu-power", "10", "--max-jobs", "1")

    assert (long.status, ended["jobs"][0]["ended"]) == ("Waiting", "Released")
    assert "more than are left of the slot" in ended["jobs"][0]["detail"]
    assert not (tmp_path / "ran").exists()
    assert server.bodies("requestJob")[0]["CPUTime"] == 1000


def test_a_job_that_asks_for_the_whole_slot_is_run_though_seconds_of_it_are_gone(
    server: LeaseServer, tmp_path: Path
) -> None:
    whole = server.add({**shell("true"), "CPUTime": 1000})

    ended = run(server.url, tmp_path / "work", "--lifetime", "1000", "--max-jobs", "1")

    assert server.bodies("requestJob")[0]["CPUTime"] == 1000
    assert (whole.status, [job["ended"] for job in ended["jobs"]]) == ("Done", ["Done"])
