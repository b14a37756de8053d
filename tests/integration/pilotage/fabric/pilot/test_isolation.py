"""What payloads are kept from: real user namespaces, a stand-in for a container, and any command."""

import os
import shutil
import signal
import uuid
from pathlib import Path

import pytest

from pilotage.fabric import bundle
from pilotage.fabric.pilot.payload.isolation import choose_isolation
from taskqueue.pilots import isolation
from tests.support.fakes.lease_server import STAMPED_TOKEN, TOKEN, LeaseServer
from tests.support.namespaces import userns
from tests.support.pilot_process import (
    PilotProcess,
    alive,
    files_of,
    run,
    sandbox,
    shell,
    wait_until_gone,
    wait_until_there,
)


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def said(output: bytes | None) -> str:
    return files_of(output)["std.out"]


@userns
def test_a_payload_sees_neither_its_neighbours_nor_what_is_the_pilots(
    server: LeaseServer, tmp_path: Path
) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    work, private = tmp_path / "work", tmp_path / "private"
    private.mkdir()
    (private / "token").write_text(TOKEN)
    owner = server.add(
        shell(f"echo mine > {marker}; touch $TMPDIR/{marker}; while :; do sleep 0.1; done # {marker}")
    )
    looks = (
        f"cat {private}/token; ls {work}; ls /tmp; find {work} /tmp -name '{marker}*'; ps ax; umount {work}"
    )
    curious = server.add(shell(f"{looks}; cat /proc/*/environ; echo end"))

    words = ("--isolation", "userns", "--processors", "2", "--token-file", str(private / "token"))
    with PilotProcess(server.url, work, *words, "--hide", str(private)) as pilot:
        wait_until_there(marker)
        server.wait_for(lambda: curious.status == "Done")
        server.kill(owner)
        pilot.end()

    seen = said(curious.output)
    assert seen.endswith("end\n")
    assert TOKEN not in seen
    assert marker not in seen.replace(f"'{marker}*'", "")
    assert str(owner.attempt.lease) not in seen
    wait_until_gone(marker)


@userns
def test_cgroups_and_terminals_of_the_account_are_out_of_reach(server: LeaseServer, tmp_path: Path) -> None:
    master, terminal = os.openpty()
    place = os.ttyname(terminal)
    opens = "import os; _, own = os.openpty(); print(os.isatty(own))"
    asks = (
        f"ls -i {place} | cut -d ' ' -f 1; ls /dev/pts; python3 -c '{opens}'; "
        "grep ' /sys/fs/cgroup' /proc/self/mountinfo | cut -d ' ' -f 6 | grep -v '^ro,'; "
        "unshare --user --map-root-user --cgroup true && echo other cgroups; "
        "unshare --user --map-root-user true && echo nested"
    )
    job = server.add(shell(asks))
    try:
        run(server.url, tmp_path, "--isolation", "userns")
    finally:
        os.close(terminal)
        os.close(master)
    assert said(job.output) == "ptmx\nTrue\nnested\n"


@userns
def test_a_payload_in_namespaces_works_as_any_other(server: LeaseServer, tmp_path: Path) -> None:
    script = "#!/bin/sh\ncat input__txt; echo $1 $WISH; id -u; pwd; echo out > out__txt; exit 7\n".replace(
        "__", "."
    )
    job = server.add(
        {
            "Executable": "run.sh",
            "Arguments": "'a b'",
            "InputSandbox": ["run.sh", "input.txt"],
            "OutputSandbox": ["out.txt"],
            "ExecutionEnvironment": {"WISH": "it's $HOME"},
        },
        sandbox(run__sh=script, input__txt="input\n"),
    )

    run(server.url, tmp_path, "--isolation", "userns")

    lines = said(job.output).splitlines()
    assert lines[:3] == ["input", "a b it's $HOME", str(os.getuid())]
    assert lines[3].startswith(str(tmp_path))
    assert files_of(job.output)["out.txt"] == "out\n"
    assert job.application_status == "exit code 7"
    assert list(tmp_path.iterdir()) == []


@userns
def test_a_payload_in_namespaces_gets_time_to_end_well(server: LeaseServer, tmp_path: Path) -> None:
    job = server.add(shell("trap 'echo saved; exit 0' TERM; echo begun; while :; do sleep 0.05; done"))

    with PilotProcess(server.url, tmp_path, "--isolation", "userns", "--grace", "300") as pilot:
        server.wait_for(lambda: job.attempts and any(each["output_tail"] for each in job.attempt.heartbeats))
        server.kill(job)
        pilot.end()

    assert said(job.output) == "begun\nsaved\n"


@userns
def test_a_payload_in_namespaces_is_ended_like_any_other(server: LeaseServer, tmp_path: Path) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    loop = f"while :; do sleep 0.05; done # {marker}"
    stubborn = server.add(shell(f"trap '' TERM; (setsid setsid sh -c '{loop}' &); {loop}"))
    greedy = "import os,time; x = bytearray(os.urandom(150 << 20)); time.sleep(600)"
    takes = server.add({"Executable": "/usr/bin/python3", "Arguments": ["-c", greedy], "MaxRAM": 100})

    with PilotProcess(server.url, tmp_path, "--isolation", "userns", "--processors", "2") as pilot:
        wait_until_there(marker, 2)
        server.kill(stubborn)
        pilot.end()

    wait_until_gone(marker)
    assert takes.minor_status == "Job has exceeded its memory limit"


@userns
def test_with_its_pilot_a_payload_in_namespaces_dies(server: LeaseServer, tmp_path: Path) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    server.add(shell(f"while :; do sleep 0.05; done # {marker}"))
    with PilotProcess(server.url, tmp_path, "--isolation", "userns") as pilot:
        wait_until_there(marker, 1)
        os.kill(pilot.process.pid, signal.SIGKILL)
        wait_until_gone(marker)


@userns
@pytest.mark.root
def test_namespaces_need_no_rights(server: LeaseServer, tmp_path: Path) -> None:
    nobody = 65534
    work, zipapp = Path(f"/var/tmp/pilot-{uuid.uuid4().hex}"), tmp_path / "pilot.pyz"
    bundle.build(zipapp)
    work.mkdir(mode=0o755)
    shutil.copy(zipapp, work / "pilot.pyz")
    (work / "jobs").mkdir()
    os.chown(work / "jobs", nobody, nobody)
    job = server.add(shell(f"id -u; ls {work}/jobs | wc -l; ls /var/tmp | grep -c pilot.pyz; touch x"))
    user = ("setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups", "/usr/bin/python3")
    try:
        command = (*user, str(work / "pilot.pyz"))
        ended = run(server.url, work / "jobs", "--isolation", "userns", command=command)
        assert job.status == "Done", ended["log"]
        assert said(job.output) == "65534\n1\n0\n"
    finally:
        shutil.rmtree(work)


def test_a_container_is_run_as_apptainer_is(server: LeaseServer, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    # Says how it was called, and runs what it is to run: all that follows the image.
    stand_in = f"""
env > {tmp_path}/environment
printf '%s\\n' "$@" > {tmp_path}/arguments
while [ "$1" != /images/el9.sif ]; do shift; done
shift
exec "$@"
"""
    program(tools / "apptainer", stand_in)
    job = server.add({"Executable": "echo", "Arguments": "hello", "ExecutionEnvironment": {"LD_DEBUG": "x"}})
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "APPTAINER_CACHEDIR": "/cache", "HOST_ONLY": "1"}

    words = ("--isolation", "apptainer", "--image", "/images/el9.sif")
    run(server.url, tmp_path / "work", *words, environment=environment)

    assert said(job.output) == "hello\n"
    arguments = (tmp_path / "arguments").read_text().splitlines()
    home = arguments[arguments.index("--pwd") + 1]
    scratch = home.removesuffix("work") + "tmp"
    assert arguments[:5] == ["exec", "--containall", "--no-home", "--pwd", home]
    assert [arguments[at + 1] for at, word in enumerate(arguments) if word == "--bind"] == [
        f"{scratch}:/tmp",
        f"{scratch}:/var/tmp",
        home,
        scratch,
    ]
    assert arguments[-2:] == ["echo", "hello"], "what the image calls so"
    seen = (tmp_path / "environment").read_text()
    assert "APPTAINER_CACHEDIR=/cache" in seen
    assert not [name for name in ("LD_DEBUG", "HOST_ONLY", "JOBID", TOKEN) if name in seen]


def test_a_command_stands_before_the_payload(server: LeaseServer, tmp_path: Path) -> None:
    wrapper = program(tmp_path / "wrapper", f'echo "$1 $2" > {tmp_path}/said; shift 2; exec "$@"')
    job = server.add(shell("pwd; exit 3"))

    run(
        server.url,
        tmp_path / "work",
        "--isolation",
        "command",
        "--isolation-command",
        f"{wrapper} -w {{home}}",
    )

    assert job.application_status == "exit code 3"
    assert (tmp_path / "said").read_text() == f"-w {said(job.output)}"


@pytest.mark.parametrize(
    ("kind", "command", "image", "message"),
    [
        ("command", None, None, "needs --isolation-command"),
        ("command", "'", None, "No closing quotation"),
        ("command", "no-such-program", None, "there is no no-such-program on this host"),
        ("apptainer", None, None, "--image goes with apptainer"),
        ("userns", None, "x", "--image goes with apptainer"),
        ("none", "x", None, "takes no --isolation-command"),
    ],
)
def test_what_makes_no_sense_is_told(kind: str, command: str | None, image: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_isolation(kind, command=command, image=image, hidden=(), own=os.environ)


def test_what_makes_no_sense_is_wrong_usage(server: LeaseServer, tmp_path: Path) -> None:
    ended = run(server.url, tmp_path, "--isolation", "apptainer")
    assert ended["returncode"] == 2
    assert "--image goes with apptainer" in ended["log"]


def test_where_it_cannot_be_had_no_job_is_asked_for(server: LeaseServer, tmp_path: Path) -> None:
    job = server.add({"Executable": "true"})
    command = program(tmp_path / "broken", "echo not permitted >&2; exit 1")

    ended = run(server.url, tmp_path / "work", "--isolation", "command", "--isolation-command", str(command))

    assert ended["returncode"] == 4
    assert "--isolation command does not work here (1): not permitted" in ended["reason"]
    assert (job.status, server.bodies("requestJob")) == ("Waiting", [])
    assert not alive(str(command))


@pytest.mark.parametrize(
    ("kind", "message", "status", "why_empty"),
    [
        ("strongest", "Operation not permitted", "Done", None),
        ("strongest", "No space left on device", "Waiting", None),
        ("userns", "Operation not permitted", "Waiting", f"{isolation.NO_ISOLATION}userns"),
        ("userns", "No space left on device", "Waiting", None),
    ],
)
def test_the_strongest_is_none_only_where_namespaces_are_not_possible(
    server: LeaseServer, tmp_path: Path, kind: str, message: str, status: str, why_empty: str | None
) -> None:
    """A failure that passes, which another payload may bring about, opens nothing.

    The service learns where namespaces are not possible.
    """
    tools = tmp_path / "bin"
    tools.mkdir()
    program(tools / "unshare", f"echo 'unshare: unshare failed: {message}' >&2; exit 1")
    job = server.add({"Executable": "true"})
    wishes = {"environment": {"PATH": f"{tools}:{os.environ['PATH']}"}, "token": STAMPED_TOKEN}

    ended = run(server.url, tmp_path / "work", "--isolation", kind, **wishes)

    assert job.status == status
    assert (f"{isolation.NOT_ISOLATED}: " in ended["log"]) == (status == "Done")
    end = server.pilot_status
    assert (isolation.NOT_ISOLATED in end["reason"]) == (status == "Done")
    assert (end.get("empty_reason"), end.get("host_trouble", False)) == (why_empty, status == "Waiting")


@userns
def test_the_strongest_is_user_namespaces_where_they_are_possible(
    server: LeaseServer, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    job = server.add(shell(f"ls {work}; echo $$"))

    run(server.url, work, "--isolation", "strongest")

    assert job.status == "Done"
    assert "job-" in said(job.output), "only its own"
    assert len(said(job.output).split()) == 2
    assert int(said(job.output).split()[1]) < 100, "in a process namespace"
