"""Pilots that come with a one-use secret: how they get their token, keep it, and know that they are twins."""

import os
import re
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.client.api import ServiceClient
from pilotage.fabric import bundle, node_script
from pilotage.fabric.node_script import PilotScript
from tests.support.fakes.lease_server import SECRET, LeaseServer, Refusal
from tests.support.pilot_process import PilotProcess, files_of, run
from tests.support.service import Service

CONFIG = """
Resources:
  Sites:
    LCG.Test.org:
      CEs: {ce01: {Queues: {long: {CPUTime: 100000, MaxRAM: 4000}}}}
Operations:
  cms: {JobScheduling: {MaxRescheduling: 1, RescheduleDelays: [0]}}
Registry:
  VO: {cms: {}}
"""
pytestmark = pytest.mark.config(CONFIG)
QUEUE = "LCG.Test.org/ce01/long"
SECRET_ALREADY_USED = 5
#: Looks for what it should not find: its environment, the command lines of its ancestors, the pilot's files.
SPY = """env
process=$PPID
while [ "$process" -gt 1 ]
do
  tr '\\0' ' ' </proc/$process/cmdline
  process=$(sed 's/.*) //' /proc/$process/stat | cut -d' ' -f2)
done
grep -rs . {spool}
true
"""


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    return "--secret-file", str(file), "--stamp", "p 1"


def test_it_exchanges_its_secret_and_leaves_no_file_of_it(
    server: LeaseServer, tmp_path: Path, words: tuple[str, ...]
) -> None:
    job = server.add({"Executable": "/bin/true"})

    ended = run(server.url, tmp_path, *words, token="not this one")

    assert (ended["returncode"], job.status) == (0, "Done")
    assert SECRET not in ended["log"]
    assert not Path(words[1]).exists()
    assert server.requests[0][1] == "/api/v1/pilots/p%201/token"


def test_a_lost_answer_costs_nothing(server: LeaseServer, tmp_path: Path, words: tuple[str, ...]) -> None:
    server.lose_answers("/token", 2)

    assert run(server.url, tmp_path, *words)["returncode"] == 0
    assert len({body["request_id"] for body in server.bodies("/token")}) == 1


def test_a_twin_ends_with_a_status_of_its_own_and_touches_nothing(
    server: LeaseServer, tmp_path: Path, words: tuple[str, ...]
) -> None:
    job = server.add({"Executable": "/bin/true"})
    server.redeemed_by = "another process"

    ended = run(server.url, tmp_path / "work", *words)

    assert ended["returncode"] == SECRET_ALREADY_USED
    assert [path for _, path, _ in server.requests] == ["/api/v1/pilots/p%201/token"]
    assert (job.status, (tmp_path / "work").exists()) == ("Waiting", False)


def test_a_secret_that_is_refused_ends_it(server: LeaseServer, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("wrong")

    ended = run(server.url, tmp_path, "--secret-file", str(file), "--stamp", "p1")

    assert ended["returncode"] == 1
    assert "401" in ended["reason"]


@pytest.mark.parametrize(
    "said",
    [("--secret-file", "x"), ("--stamp", "x"), ("--secret-file", "x", "--stamp", "y", "--token-file", "z")],
)
def test_a_secret_needs_a_stamp_and_no_token(
    server: LeaseServer, tmp_path: Path, said: tuple[str, ...]
) -> None:
    assert run(server.url, tmp_path, *said)["returncode"] == 2
    assert not server.requests


def test_a_secret_is_kept_when_the_pilot_cannot_even_start(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert run("nonsense", tmp_path, *words)["returncode"] == 2
    assert Path(words[1]).read_text().strip() == SECRET


def test_it_renews_its_token_in_time(server: LeaseServer, tmp_path: Path, words: tuple[str, ...]) -> None:
    server.token_life = timedelta(seconds=2)
    go_on = tmp_path / "go on"
    job = server.add(
        {"Executable": "/bin/sh", "Arguments": ["-c", f"until test -e '{go_on}'; do sleep 0.1; done"]}
    )
    with PilotProcess(server.url, tmp_path / "work", *words) as pilot:
        server.wait_for(lambda: len(server.bodies("/renew")) > 1)
        go_on.touch()
        ended = pilot.end()

    assert (ended["returncode"], job.status) == (0, "Done")


def test_when_its_token_is_not_renewed_it_finishes_what_it_runs_and_ends(
    server: LeaseServer, tmp_path: Path, words: tuple[str, ...]
) -> None:
    server.token_life = timedelta(seconds=2)
    go_on = tmp_path / "go on"
    job = server.add(
        {"Executable": "/bin/sh", "Arguments": ["-c", f"until test -e '{go_on}'; do sleep 0.1; done"]}
    )
    more = server.add({"Executable": "/bin/true"})
    with PilotProcess(server.url, tmp_path / "work", *words) as pilot:
        server.wait_for(lambda: job.status == "Running")
        server.refuse("/renew", Refusal(403, "not_allowed", "the pilot is Deleted"))
        pilot.wait_until_it_says("the token is not renewed")
        go_on.touch()
        ended = pilot.end()

    assert (job.status, more.status) == ("Done", "Waiting")
    assert ended["returncode"] == 1
    assert "the pilot is Deleted" in ended["reason"]


def test_a_payload_that_asks_for_it_is_rescheduled_with_its_output_kept(
    server: LeaseServer, tmp_path: Path
) -> None:
    job = server.add({"Executable": "/bin/sh", "Arguments": ["-c", "echo not here; exit 1502"]})

    run(server.url, tmp_path)

    assert job.status == "Rescheduled"
    assert job.application_status == "exit status 222: the payload requests to be rescheduled"
    assert files_of(job.output)["std.out"] == "not here\n"


def script(service: Service, directory: Path) -> Path:
    """What a director would submit, as a file."""
    with ServiceClient(service.url, service.token("director", vo="cms")) as director:
        secret = director.register_pilots([{"stamp": "p1", "queue": QUEUE}], vo="cms")["p1"]
        pools = director.pilot_groups([QUEUE])["pools"][QUEUE]
    about = PilotScript(
        stamp="p1",
        secret=secret,
        queue=QUEUE,
        pools=tuple(pools),
        words=("--max-empty=1", "--grace=1", f"--work-dir={directory / 'work'}"),
    )
    file = directory / "script"
    text = node_script.pilot_text(about, bundle.pilot_bundle(), url=service.url)
    file.write_text(text, encoding="ascii")
    file.chmod(0o700)
    return file


def secret_of(file: Path) -> str:
    """The secret in a script."""
    [secret] = re.findall(r"^printf %s ([\w-]+) \|", file.read_text(), re.MULTILINE)
    return str(secret)


def start(file: Path) -> subprocess.Popen[str]:
    spool = file.parent / "spool"
    spool.mkdir(exist_ok=True)
    variables = {"PATH": os.environ["PATH"], "TMPDIR": str(spool)}
    return subprocess.Popen(
        [file], env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def submit(service: Service, command: str) -> int:
    return service.submit({"Executable": "/bin/sh", "Arguments": ["-c", command]})[0]


def test_of_two_starts_of_a_script_one_is_the_pilot_and_the_other_its_twin(
    service: Service, tmp_path: Path
) -> None:
    job_id = submit(service, "true")
    file = script(service, tmp_path)

    pilots = [start(file), start(file)]
    logs = [pilot.communicate(timeout=300)[0] for pilot in pilots]

    assert sorted(pilot.returncode for pilot in pilots) == [0, SECRET_ALREADY_USED], logs
    assert service.user().get(f"/api/v1/jobs/{job_id}").json()["status"] == "Done", logs
    [pilot] = service.operator().get("/api/v1/pilots").json()["pilots"]
    assert (pilot["stamp"], pilot["status"], pilot["jobs"]) == ("p1", "Done", 1)
    late = start(file)
    log, _ = late.communicate(timeout=300)
    assert late.returncode == SECRET_ALREADY_USED
    assert "another process is this pilot" in log
    assert not list((tmp_path / "spool").iterdir())


def test_a_payload_sees_neither_secret_nor_token(service: Service, tmp_path: Path) -> None:
    job_id = submit(service, SPY.format(spool=tmp_path / "spool"))
    file = script(service, tmp_path)

    log, _ = start(file).communicate(timeout=300)

    output = service.user().get(f"/api/v1/jobs/{job_id}/output").content
    seen = files_of(output)["std.out"]
    assert "--secret-file" in seen  # so it did look
    assert "spool/pilot-" in seen
    assert secret_of(file) not in seen + log
    assert not [word for word in ("Bearer", "PILOTAGE_TOKEN", "eyJ") if word in seen + log]
