"""What a pilot does while the service is away, loses answers, or has given its job to another."""

from datetime import timedelta
from pathlib import Path

import pytest

from examples.servers.starting import wait_until
from tests.support.fakes.lease_server import LeaseServer, Refusal
from tests.support.pilot_process import PilotProcess, alive, files_of, run, shell, wait_until_gone

#: Bytes of the longest path that a work directory may have, but for a few.
_LONGEST_PATH = 4080


def gate(work: Path) -> dict[str, object]:
    """A payload that waits for a file `go` in its directory."""
    script = f"echo begun; while [ ! -e go ]; do sleep 0.05; done; echo through {mark(work)}"
    return {"Executable": "/bin/sh", "Arguments": ["-c", script]}


def mark(work: Path) -> str:
    """Stands in the command line of a payload that waits, by which it is found."""
    return f"# gate at {work}"


def open_gate(work: Path) -> None:
    (next(work.glob("job-*")) / "work" / "go").write_text("")


def test_a_payload_runs_on_while_the_service_is_away_and_is_reported_then(
    server: LeaseServer, tmp_path: Path
) -> None:
    job = server.add(gate(tmp_path))
    with PilotProcess(server.url, tmp_path) as pilot:
        server.wait_for(lambda: job.attempts and job.attempt.heartbeats)
        with server.away():
            pilot.wait_until_it_says("the payload runs on")
            open_gate(tmp_path)
            pilot.wait_until_it_says("trying again")
        ended = pilot.end()

    assert job.status == "Done"
    assert files_of(job.output)["std.out"] == "begun\nthrough\n"
    assert ended["returncode"] == 0


def test_a_payload_is_ended_when_the_service_has_been_away_for_as_long_as_it_set(
    server: LeaseServer, tmp_path: Path
) -> None:
    job = server.add(gate(tmp_path))
    with PilotProcess(server.url, tmp_path) as pilot:
        server.wait_for(lambda: job.attempts and job.attempt.heartbeats)
        server.run_on_seconds = 5.0
        answered = len(job.attempt.heartbeats)
        # A host may stand still for as long as that: then it is ended already.
        wait_until(lambda: len(job.attempt.heartbeats) > answered + 1 or not alive(mark(tmp_path)))
        with server.away():
            wait_until_gone(mark(tmp_path))
        ended = pilot.end()

    assert job.status == "Running", "nothing is reported: the service gives the job away by itself"
    assert [each["ended"] for each in ended["jobs"]] == ["Lost"]


#: Requests about a job, and statuses of answers; that each status means trouble is tested with the transport.
_TROUBLES = [
    *(
        (name, status)
        for name in ("/sandbox", "/start", "/heartbeat", "/output", "/finish")
        for status in (401, 503)
    ),
    *(("/sandbox", 302), ("/start", 408), ("/heartbeat", 425), ("/output", 429), ("/finish", 302)),
]


@pytest.mark.parametrize(("request_name", "status"), _TROUBLES)
def test_a_service_in_trouble_is_asked_again(
    server: LeaseServer, tmp_path: Path, request_name: str, status: int
) -> None:
    go = tmp_path / "go"
    job = server.add(shell(f"until [ -e {go} ]; do sleep 0.05; done"))
    if request_name != "/heartbeat":
        go.touch()
    server.refuse(request_name, Refusal(status, "not_now", "compare the clocks", retry_after=1))
    with PilotProcess(server.url, tmp_path) as pilot:
        server.wait_for(lambda: any(path.endswith(request_name) for _, path, _ in server.requests))
        server.refuse(request_name, None)
        go.touch()
        pilot.end()

    assert job.status == "Done"
    assert len(job.attempts) == 1


@pytest.mark.parametrize("request_name", ["/requestJob", "/start", "/output", "/finish"])
def test_a_lost_answer_costs_nothing(server: LeaseServer, tmp_path: Path, request_name: str) -> None:
    job = server.add({"Executable": "true"})
    server.lose_answers(request_name, 2)

    ended = run(server.url, tmp_path, "--max-jobs", "1")

    bodies = server.bodies(request_name)
    assert len(bodies) == 3
    if request_name == "/requestJob":
        assert [body.pop("said_before") for body in bodies] == [False, True, True]
    assert bodies[0] == bodies[1] == bodies[2]
    assert job.status == "Done"
    assert len(job.attempts) == 1
    assert ended["jobs"][0]["ended"] == "Done"


def test_a_job_that_was_given_to_another_is_dropped_and_the_pilot_goes_on(
    server: LeaseServer, tmp_path: Path
) -> None:
    job, after = server.add(gate(tmp_path)), server.add({"Executable": "true"})
    with PilotProcess(server.url, tmp_path) as pilot:
        server.wait_for(lambda: job.attempts and job.attempt.heartbeats)
        server.close(job)
        ended = pilot.end()

    wait_until_gone(mark(tmp_path))
    assert job.status == "Rescheduled"
    assert job.output is None
    assert after.status == "Done"
    assert [each["ended"] for each in ended["jobs"]] == ["Lost", "Done"]


_OVER = [
    Refusal(409, "stale_lease", "attempt 1 is closed: expired"),
    Refusal(404, "lease_not_found", "lease-1-1"),
    Refusal(401, "revoked", "the token was revoked"),
]


@pytest.mark.parametrize(
    ("request_name", "refusal"),
    [
        *((name, _OVER[0]) for name in ("/start", "/output", "/finish")),
        ("/finish", _OVER[1]),
        ("/start", _OVER[2]),
    ],
    ids=str,
)
def test_a_lease_that_is_over_before_a_report_drops_the_job(
    server: LeaseServer, tmp_path: Path, request_name: str, refusal: Refusal
) -> None:
    job, after = server.add({"Executable": "true"}), server.add({"Executable": "true"})
    server.refuse(f"lease-1-1{request_name}", refusal)

    ended = run(server.url, tmp_path)

    assert job.status in ("Matched", "Running")
    assert after.status == "Done"
    assert [each["ended"] for each in ended["jobs"]] == ["Lost", "Done"]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_report_that_is_refused_is_repeated_once_without_its_details(
    server: LeaseServer, tmp_path: Path, status: int
) -> None:
    job = server.add({"Executable": "/bin/sh", "Arguments": ["-c", "exit 3"]})
    server.refuse("/finish", Refusal(status, "invalid_request", "cpu_seconds: too many"), count=1)

    ended = run(server.url, tmp_path)

    assert len(server.bodies("/finish")) == 2
    assert (job.status, job.minor_status) == ("Failed", "Application Finished With Errors")
    assert job.application_status == (
        f"the full report was refused: cpu_seconds: too many ({status} invalid_request)"
    )
    assert server.bodies("/finish")[1].keys() == {
        *("status", "exit_code", "minor_status", "application_status")
    }
    assert ended["jobs"][0]["ended"] == "Failed"


def test_a_report_that_is_refused_in_any_form_is_given_up(server: LeaseServer, tmp_path: Path) -> None:
    server.add({"Executable": "true"})
    server.refuse("/finish", Refusal(422, "invalid_request", "no"))

    ended = run(server.url, tmp_path)

    assert len(server.bodies("/finish")) == 2
    assert ended["jobs"][0]["ended"] == "Lost"


def test_a_job_that_was_killed_before_it_began_is_not_run(server: LeaseServer, tmp_path: Path) -> None:
    job = server.add({"Executable": "/bin/sh", "Arguments": ["-c", "echo ran"]})
    server.refuse("/start", Refusal(503, "unavailable", "", retry_after=1))
    with PilotProcess(server.url, tmp_path) as pilot:
        server.wait_for(lambda: server.bodies("/start"))
        server.kill(job)
        server.refuse("/start", None)
        pilot.end()

    assert job.status == "Killed"
    assert job.output is None
    assert job.attempt.closed_as == "finished"


def test_a_short_lease_makes_the_heart_beat_faster(server: LeaseServer, tmp_path: Path) -> None:
    server.lease_time = timedelta(seconds=3)
    job = server.add(gate(tmp_path))
    with PilotProcess(server.url, tmp_path, "--heartbeat", "300") as pilot:
        server.wait_for(lambda: job.attempts and job.attempt.heartbeats)
        open_gate(tmp_path)
        pilot.end()

    assert job.status == "Done"


def test_a_pilot_without_a_job_gives_up_when_the_service_stays_away(
    server: LeaseServer, tmp_path: Path
) -> None:
    with server.away():
        ended = run(server.url, tmp_path, "--patience", "1")

    assert ended["returncode"] == 3
    assert ended["reason"].startswith("the service stays away")


def test_a_pilot_whose_token_is_not_accepted_for_a_while_asks_again(
    server: LeaseServer, tmp_path: Path
) -> None:
    job = server.add({"Executable": "true"})
    server.refuse("/requestJob", Refusal(401, "not_authenticated", "the token is not one of ours"))
    with PilotProcess(server.url, tmp_path) as pilot:
        pilot.wait_until_it_says("trying again: the token is not one of ours")
        server.refuse("/requestJob", None)
        pilot.end()

    assert job.status == "Done"


def test_a_pilot_without_a_job_gives_up_when_its_token_is_not_accepted_any_more(
    server: LeaseServer, tmp_path: Path
) -> None:
    server.refuse("/requestJob", Refusal(401, "not_authenticated", "the token is not one of ours"))

    ended = run(server.url, tmp_path, "--patience", "1")

    assert ended["returncode"] == 3
    assert "the token is not one of ours (401 not_authenticated)" in ended["reason"]


def test_a_pilot_that_starts_before_the_service_waits_for_it(server: LeaseServer, tmp_path: Path) -> None:
    job = server.add({"Executable": "true"})
    server.go_away()
    with PilotProcess(server.url, tmp_path) as pilot:
        pilot.wait_until_it_says("trying again")
        server.come_back()
        pilot.end()

    assert job.status == "Done"


def test_a_host_without_a_work_directory_requests_no_job(server: LeaseServer, tmp_path: Path) -> None:
    job = server.add({"Executable": "true"})
    (tmp_path / "file").write_text("in the way")

    ended = run(server.url, tmp_path / "file" / "work")

    assert (job.status, job.attempts) == ("Waiting", [])
    assert ended["returncode"] == 4
    assert "trouble with this host" in ended["reason"]


def test_a_host_without_room_gives_the_job_back_and_ends_the_pilot(
    server: LeaseServer, tmp_path: Path
) -> None:
    job = server.add({"Executable": "true"})
    work = tmp_path
    while len(str(work)) < _LONGEST_PATH:  # what is made in it has too long a path
        work /= "x" * min(200, max(1, _LONGEST_PATH - 1 - len(str(work))))

    ended = run(server.url, work)

    assert job.status == "Waiting"
    assert job.attempt.closed_as == "released"
    assert ended["returncode"] == 4
    assert "trouble with this host" in ended["reason"]
