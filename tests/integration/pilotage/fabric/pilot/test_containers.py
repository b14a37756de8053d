"""Jobs that name an image, with a stand-in for apptainer: REAL APPTAINER IS NOT TESTED.

The stand-in (`tests/support/fakes/apptainer.sh`) makes real namespaces and takes apptainer's options.
"""

import os
import uuid
from pathlib import Path

import pytest

from pilotage.fabric.pilot.payload import payload
from tests.support.fakes.lease_server import LeaseServer
from tests.support.namespaces import userns
from tests.support.pilot_process import (
    PilotProcess,
    files_of,
    run,
    sandbox,
    shell,
    wait_until_gone,
    wait_until_there,
)

STAND_IN = Path(__file__).parents[4] / "support/fakes/apptainer.sh"
ANY = "docker://alma9"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "apptainer").symlink_to(STAND_IN)
    log = str(tmp_path / "arguments")
    return {"PATH": f"{tools}:{os.environ['PATH']}", "APPTAINER_LOG": log, "OF_HOST": "1"}


@userns
@pytest.mark.parametrize("kind", ["none", "userns"])
def test_a_payload_runs_in_its_image_with_its_directories_only(
    server: LeaseServer, tmp_path: Path, environment: dict[str, str], kind: str
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    script = (
        f"cat in.txt; echo $JOBID $OF_IMAGE $OF_HOST $MODE $PATH; pwd; ls {private}; ls -d /tmp/x $TMPDIR/x; "
        "echo out > out.txt; ls /proc | grep -c '^[0-9]'; exit 7"
    )
    job = server.add(
        shell(f"touch /tmp/x; {script}", Image=ANY, OutputSandbox=["out.txt"], Environment={"MODE": "fast"})
        | {"InputSandbox": ["in.txt"]},
        sandbox(in__txt="input\n"),
    )

    run(server.url, tmp_path / "work", "--isolation", kind, environment=environment)

    said = files_of(job.output)
    lines = said["std.out"].splitlines()
    assert lines[:2] == ["input", f"{job.job_id} 1 fast /usr/bin:/bin"], "PATH is the image's"
    assert lines[2].startswith(str(tmp_path / "work"))
    assert set(lines[3:5]) == {"/tmp/x", f"{lines[2].removesuffix('work')}tmp/x"}
    assert int(lines[5]) < 8, "only its own processes"
    assert said["out.txt"] == "out\n"
    assert (job.status, job.application_status) == ("Failed", "exit code 7")
    assert list((tmp_path / "work").iterdir()) == []


@userns
def test_a_payload_in_a_container_gets_time_to_end_well(
    server: LeaseServer, tmp_path: Path, environment: dict[str, str]
) -> None:
    script = "trap 'echo saved; exit 0' TERM; echo begun; while :; do sleep 0.05; done"
    job = server.add(shell(script, Image=ANY))

    with PilotProcess(server.url, tmp_path / "work", "--grace", "300", environment=environment) as pilot:
        server.wait_for(lambda: job.attempts and any(each["output_tail"] for each in job.attempt.heartbeats))
        server.kill(job)
        pilot.end()

    assert files_of(job.output)["std.out"] == "begun\nsaved\n"


@userns
def test_limits_and_signals_reach_into_the_container(
    server: LeaseServer, tmp_path: Path, environment: dict[str, str]
) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    loop = f"while :; do sleep 0.05; done # {marker}"
    stubborn = server.add(shell(f"trap '' TERM; (setsid setsid sh -c '{loop}' &); {loop}", Image=ANY))
    slow = server.add(shell("while :; do sleep 0.05; done", Image=ANY, MaxWallClockTime=1))
    greedy = "import os,time; x = bytearray(os.urandom(150 << 20)); time.sleep(600)"
    takes = server.add(
        {"Executable": "/usr/bin/python3", "Arguments": ["-c", greedy], "MaxRAM": 100, "Image": ANY}
    )

    with PilotProcess(server.url, tmp_path / "work", "--processors", "3", environment=environment) as pilot:
        wait_until_there(marker, 2)
        server.kill(stubborn)
        pilot.end()

    wait_until_gone(marker)
    assert takes.minor_status == "Job has exceeded its memory limit"
    assert slow.minor_status == "Job has exceeded maximum wall clock time"


def test_an_image_that_no_host_starts_fails_its_job(
    server: LeaseServer, tmp_path: Path, environment: dict[str, str]
) -> None:
    reasons = {
        "docker://missing": "manifest unknown",
        "no.sif": "no.sif: is not in the input sandbox",
        "/no/such.sif": "/no/such.sif: is not on this host",
        "text.sif": "image format not recognized",
        "/": "/: is a directory, which is allowed below /cvmfs and in the sandbox",
    }
    files = sandbox(text__sif="no picture")
    jobs = {image: server.add(shell("echo ran", Image=image), files) for image in reasons}

    words = ("--isolation", "command", "--isolation-command", "env")
    ended = run(server.url, tmp_path / "work", *words, environment=environment)

    for image, job in jobs.items():
        assert (job.status, job.minor_status) == ("Failed", payload.NO_IMAGE)
        assert reasons[image] in job.application_status
    assert (ended["exit_status"], len(ended["jobs"])) == (0, len(reasons)), "the pilot goes on"


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("docker://full", "no space left on device"),
        ("/cvmfs/no.such.repository/el9", "/cvmfs/no.such.repository is not mounted"),
    ],
)
def test_a_host_that_starts_no_container_gives_the_job_back_and_is_told(
    server: LeaseServer, tmp_path: Path, environment: dict[str, str], image: str, reason: str
) -> None:
    job = server.add(shell("echo ran", Image=image))
    ended = run(server.url, tmp_path / "work", environment=environment)

    assert job.attempt.closed_as == "released"
    assert "trouble with the host" in job.application_status
    assert f"Image {image}" in job.application_status
    assert reason in job.application_status
    assert "trouble with this host" in ended["reason"]


@userns
def test_a_payload_cannot_pretend_that_its_container_did_not_start(
    server: LeaseServer, tmp_path: Path, environment: dict[str, str]
) -> None:
    text = "while mounting: no space left on device"
    writes = (
        "rm -f $TMPDIR/.environment; export -p > $TMPDIR/.environment",
        "rm -f $TMPDIR/.environment; mkfifo $TMPDIR/.environment",
        "ln -sf /proc/self/environ $TMPDIR/.environment",
    )
    jobs = [server.add(shell(f"{each}; echo FATAL: {text} >&2; exit 255", Image=ANY)) for each in writes]

    run(server.url, tmp_path / "work", environment=environment)

    for job in jobs:
        assert job.status == "Failed", "it is not given back as trouble with the host"
        assert job.application_status == "exit code 255"


def test_a_registry_that_is_away_is_neither_the_jobs_nor_the_hosts_fault(
    server: LeaseServer, tmp_path: Path, environment: dict[str, str]
) -> None:
    job = server.add(shell("echo ran", Image="docker://away"))
    ended = run(server.url, tmp_path / "work", "--max-jobs", "1", environment=environment)

    assert job.attempt.closed_as == "released"
    assert "i/o timeout" in job.application_status
    assert ended["reason"] == "reached --max-jobs"


def test_a_node_without_apptainer_gives_the_job_back(server: LeaseServer, tmp_path: Path) -> None:
    job = server.add(shell("echo ran", Image=ANY))
    ended = run(server.url, tmp_path / "work")

    assert job.attempt.closed_as == "released"
    assert "neither apptainer nor singularity is in the PATH" in ended["reason"]


@userns
def test_an_image_of_the_sandbox_replaces_that_of_the_site(
    server: LeaseServer, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "site.sif").write_text("an image")
    job = server.add(shell("echo ran", Image="own.sif"), sandbox(own__sif="an image"))
    words = ("--isolation", "apptainer", "--image", str(tmp_path / "site.sif"))
    run(server.url, tmp_path / "work", *words, environment=environment)

    assert files_of(job.output)["std.out"] == "ran\n"
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[arguments.index("/bin/sh") - 1].endswith("/own.sif")


@userns
@pytest.mark.parametrize("gpus", [0, 1])
def test_a_container_has_the_drivers_of_the_gpus_that_its_job_has(
    server: LeaseServer, tmp_path: Path, environment: dict[str, str], gpus: int
) -> None:
    server.add(shell("true", Image=ANY, GPUs=gpus))
    run(server.url, tmp_path / "work", "--gpus", "1", environment=environment)

    assert ("--nv" in (tmp_path / "arguments").read_text().splitlines()) is bool(gpus)


def test_an_image_of_the_site_that_does_not_start_is_the_hosts_fault(
    server: LeaseServer, tmp_path: Path, environment: dict[str, str]
) -> None:
    image, used = tmp_path / "site.sif", tmp_path / "used"
    script = f"test -e {used} && {{ echo 'FATAL: no such image' >&2; exit 255; }}; touch {used}"
    (tmp_path / "container").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "container").chmod(0o755)
    failing = str(tmp_path / "container")  # it works when the pilot tries it, and not later
    job = server.add(shell("echo ran"))
    words = ("--isolation", "apptainer", "--isolation-command", failing, "--image", str(image))
    ended = run(server.url, tmp_path / "work", *words, environment=environment)

    assert job.attempt.closed_as == "released"
    assert "the container of the site was not started: FATAL: no such image" in ended["reason"]
