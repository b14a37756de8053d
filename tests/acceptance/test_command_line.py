"""The command line as users meet it, from `pilotage up` in a process to the output of a job."""

import os
import re
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import jwt
import psutil
import pytest

from examples.servers.starting import free_port, wait_until
from pilotage.client import connection
from pilotage.client.api import ServiceClient
from tests.support.one_machine import JOB, RESOURCES, Home, QuickHome
from tests.support.processes import PILOTAGE

#: Of `job wait`: as many seconds as a slow machine needs.
PATIENT = ("--timeout", 300)
PYTHON_PAGE = Path(__file__).parents[2] / "docs" / "user" / "python.md"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    directory = tmp_path_factory.mktemp("command-line")
    (directory / "resources.yaml").write_text(RESOURCES)
    (directory / "hello.jdl").write_text(JOB.replace("%s", "world"))
    (directory / "hello.sh").write_text('#!/bin/sh\necho "hello $1"\n')
    (directory / "hello.sh").chmod(0o755)
    return QuickHome(directory / "home")


@pytest.fixture(scope="module")
def directory(home: Home) -> Path:
    return home.path.parent


@pytest.fixture(scope="module")
def up(home: Home, directory: Path) -> Iterator[Home]:
    with home.running("--resources", str(directory / "resources.yaml"), "--site", "LCG.Here.org"):
        yield home


def submit(home: Home, file: Path, *options: object) -> list[int]:
    ids: list[int] = home.json("job", "submit", file, *options)["job_ids"]
    return ids


def test_a_job_with_a_script_in_its_sandbox_runs_and_its_output_comes_back(up: Home, directory: Path) -> None:
    shell = Home(up.path)
    (job_id,) = submit(shell, directory / "hello.jdl")
    assert shell.json("job", "wait", job_id, *PATIENT)["counts"] == {"Done": 1}
    found = shell.json("job", "show", job_id)
    assert (found["status"], found["site"]) == ("Done", "LCG.Here.org")
    log = shell.json("job", "log", job_id)["log"]
    assert [entry["to"] for entry in log if entry["to"] != entry["from"]][-1] == "Done"
    files = shell.json("job", "output", job_id, "--directory", directory / "out")["files"][str(job_id)]
    (std_out,) = [Path(file) for file in files if Path(file).name == "std.out"]
    assert std_out.read_text() == "hello world\n"


SPY = """\
#!/bin/sh
ls -A "$1" "$3" | grep -v -e : -e '^$'
echo changed 2>/dev/null >>"$4"
cat "$1/client.env" "$2" /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -e _TOKEN -e _HOME -e PRIVATE
echo spied
"""


def test_a_job_sees_nothing_of_the_installation(up: Home, directory: Path) -> None:
    (directory / "spy.sh").write_text(SPY)
    arguments = f"{up.path} {up.path / 'signing-key.pem'} {sys.prefix} {directory / 'resources.yaml'}"
    (directory / "spy.yaml").write_text(
        f"{{Executable: spy.sh, Arguments: '{arguments}', InputSandbox: [spy.sh],"
        " StdOutput: out, OutputSandbox: [out]}"
    )
    (job_id,) = submit(up, directory / "spy.yaml")
    up.run("job", "wait", job_id, *PATIENT)
    up.run("job", "output", job_id, "--directory", directory / "spied")
    assert (directory / "spied" / str(job_id) / "out").read_text() == "spied\n"
    assert (directory / "resources.yaml").read_text() == RESOURCES


def test_local_pilots_without_isolation_have_to_be_wanted(tmp_path: Path) -> None:
    (tmp_path / "resources.yaml").write_text(RESOURCES)
    (tmp_path / "bin").mkdir()
    refusing = tmp_path / "bin" / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    refusing.chmod(0o755)
    home = Home(tmp_path / "home", programs=f"{refusing.parent}:{os.environ['PATH']}")
    arguments = ("--resources", str(tmp_path / "resources.yaml"), "--site", "LCG.Here.org")

    said = home.error("up", "--port", "0", *arguments, status=1)

    assert "Operation not permitted" in said
    assert "--isolation none" in said
    with home.running(*arguments, "--isolation", "none"):
        pass


def test_the_page_for_python_runs_as_it_stands(up: Home, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PYTHON_PAGE.read_text(), re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
        env=up.environment, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "hello\n" in done.stdout
    assert "result.txt 1.5" in done.stdout
    assert "404 job_not_found" in done.stdout


def test_lists_are_tables_for_people_and_json_for_machines(up: Home, directory: Path) -> None:
    ids = submit(up, directory / "hello.jdl", "-n", 3)
    up.run("job", "wait", *ids, *PATIENT)
    assert {job["job_id"] for job in up.json("job", "list", *ids)["jobs"]} == set(ids)
    assert "Done" in up.run("job", "list", "--status", "Done").stdout
    one = up.json("job", "list", "--limit", 1)
    assert one["next"] == one["jobs"][0]["job_id"]
    assert len(up.json("job", "list", "--after", one["next"])["jobs"]) >= len(ids) - 1
    assert "1 of" in up.run("job", "list", "--limit", 1).stderr
    assert up.json("job", "list", "--by", "vo,status")["summary"][0]["vo"] == "biomed"


def test_pools_show_their_requirements_and_queues(up: Home, directory: Path) -> None:
    up.run("job", "wait", *submit(up, directory / "hello.jdl"), *PATIENT)
    pools = {tuple(each["queues"]): each for each in up.json("pool", "list")["pools"]}
    pool = pools["LCG.Here.org/ce01/long",]
    assert "Memory" in up.run("pool", "show", pool["pool_id"][:10]).stdout


def test_queues_show_where_their_parameters_come_from(up: Home) -> None:
    assert [queue["queue"] for queue in up.json("queue", "list", "--vo", "biomed")["queues"]] == [
        "LCG.Here.org/ce01/long",
        "LCG.Here.org/ce01/short",
    ]
    shown = up.json("queue", "show", "LCG.Here.org/ce01/short")
    assert shown["parameters"]["MaxRAM"] == 2000
    assert shown["origins"]["MaxRAM"]["level"] == "Queue"
    assert "LCG.Here.org/ce01/short" in up.error("queue", "show", "LCG.Here.org/ce01/shrot", status=1)


def test_a_job_that_cannot_run_says_so_at_once_and_runs_when_the_configuration_is_mended(
    up: Home, directory: Path
) -> None:
    big = directory / "big.yaml"
    big.write_text("Executable: /bin/true\nRequirements: {Memory: 9000}\n")
    (job_id,) = submit(up, big)
    wait_until(lambda: up.json("job", "show", job_id)["minor_status"] == "No eligible queue")
    explained = up.json("job", "explain", job_id)
    assert up.json("job", "queues", job_id)["eligible"] == explained["eligible_queues"]
    assert (explained["eligible_queues"], explained["candidate_queues"]) == (0, 2)
    assert [reason["requirement"] for reason in explained["reasons"]] == ["Memory"]
    assert "Memory" in up.run("job", "explain", job_id).stdout

    mended = directory / "mended.yaml"
    mended.write_text(RESOURCES.replace("MaxRAM: 4000", "MaxRAM: 10000"))
    assert up.json("config", "apply", mended, "-m", "more memory")["changed"]
    up.run("job", "wait", job_id, *PATIENT)
    assert up.json("config", "history")["versions"][0]["message"] == "more memory"
    assert not up.json("config", "apply", mended)["changed"]
    assert "10000" in up.run("config", "show", "LCG.Here.org/ce01/long", "--vo", "biomed", "--origin").stdout


def test_a_waiting_job_is_killed_once(up: Home, directory: Path) -> None:
    never = directory / "never.yaml"
    never.write_text("Executable: /bin/true\nRequirements: {Memory: 900000}\n")
    ids = submit(up, never, "--count", 2)
    assert up.json("job", "kill", ids[0])["job_ids"] == [ids[0]]
    assert up.json("job", "show", ids[0])["status"] == "Killed"
    assert ids[1] in up.json("job", "kill", "--status", "Waiting,Received,Checking")["job_ids"]
    assert str(ids[0]) in up.error("job", "reschedule", ids[0], status=1)
    assert up.json("job", "wait", ids[0], status=1)["counts"] == {"Killed": 1}
    assert up.json("job", "delete", ids[0])["job_ids"] == [ids[0]]
    assert up.json("job", "show", ids[0])["status"] == "Deleted"
    assert str(ids[0]) in up.error("job", "reset", ids[0], status=1)
    assert up.json("job", "list", "--application-status", "no such")["jobs"] == []


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("job", "show", "999999"), 1, "999999"),
        (("job", "show", "x"), 2, "'ID'"),
        (("job", "lst"), 2, "list"),
        (("job", "submit", "no-such-file.jdl"), 1, "no-such-file.jdl"),
        (("job", "kill"), 2, "job ids"),
        (("pool", "show", "ffff"), 1, "ffff"),
        (("config", "show", "Resorces"), 1, "Resources"),
        (("agent", "pool"), 2, "pools"),
        (("token", "--role", "usr", "--vo", "x"), 2, "user"),
        (("worker",), 2, "Redis"),
    ],
)
def test_a_refusal_is_one_line_and_a_status(
    up: Home, arguments: tuple[str, ...], status: int, said: str
) -> None:
    assert said in up.error(*arguments, status=status)


def test_a_mistake_in_a_description_is_named_with_its_line(up: Home, directory: Path) -> None:
    wrong = directory / "wrong.jdl"
    wrong.write_text('[\n  Executable = "/bin/true";\n  Requirements = [ Memory = ; ];\n]')
    assert "wrong.jdl:3" in up.error("job", "submit", wrong, status=2)
    wrong.write_text('[ Executable = "/bin/true"; CPUTimme = 100; ]')
    assert "CPUTime" in up.error("job", "submit", wrong, status=2)


def test_a_token_is_minted_for_an_installation_and_not_for_a_mistyped_home(tmp_path: Path) -> None:
    mint = ("token", "--role", "user", "--vo", "biomed", "--user", "ada")
    mistyped = QuickHome(tmp_path / "pilotgae")
    assert "db upgrade" in mistyped.error(*mint, status=1)
    assert not mistyped.path.exists()
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "diary.txt").touch()
    assert "others" in QuickHome(tmp_path / "others").error(*mint, status=1)
    (tmp_path / "new").mkdir()
    assert QuickHome(tmp_path / "new").json(*mint)["token"]


def test_a_second_system_keeps_out_of_the_same_home(up: Home) -> None:
    assert "runs already" in Home(up.path).error("up", "--port", "0", status=1)


def test_secrets_are_for_their_owner_alone_and_the_doctor_finds_nothing(up: Home) -> None:
    for name in ("client.env", "signing-key.pem"):
        assert stat.S_IMODE((up.path / name).stat().st_mode) == 0o600
    token = connection.read_client_env(up.path)["PILOTAGE_TOKEN"]
    claims = jwt.decode(token, options={"verify_signature": False})
    assert claims["exp"] - claims["iat"] <= 8 * 86_400  # `up` renews it while it runs
    # Until each agent has had its first cycle they are not all found at work.
    wait_until(lambda: {each["health"] for each in up.json("doctor")["findings"]} == {"good"})


def test_the_schema_is_up_to_date(up: Home) -> None:
    assert up.json("db", "check")["current"] is True


def test_agents_run_once_on_demand(up: Home) -> None:
    answers = up.json("agent", "pools", "lost-jobs", "sweep", "retention", "--once")
    assert set(answers) == {"pools", "lost-jobs", "sweep", "retention"}


def test_commands_without_a_service_say_how_to_get_one(tmp_path: Path) -> None:
    assert "pilotage up" in QuickHome(tmp_path).error("job", "list", status=2)


def test_a_service_that_is_gone_is_told_in_one_line(tmp_path: Path) -> None:
    home = QuickHome(tmp_path)
    (tmp_path / "client.env").write_text("PILOTAGE_URL=http://127.0.0.1:9\nPILOTAGE_TOKEN=x\n")
    assert "cannot be reached" in home.error("job", "list", status=1)


def test_a_token_is_not_sent_to_a_service_that_somebody_else_names(tmp_path: Path) -> None:
    (tmp_path / "client.env").write_text("PILOTAGE_URL=http://127.0.0.1:9\nPILOTAGE_TOKEN=x\n")
    assert "no token" in QuickHome(tmp_path).error("job", "list", "--url", "http://127.0.0.1:10", status=2)


def test_every_problem_of_a_configuration_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "resources.yaml"
    file.write_text(RESOURCES.replace("MaxRAM: 4000", "MaxRAM: much").replace("Sites:", "Stes:"))
    done = QuickHome(tmp_path).run("config", "check", file, status=2)
    assert "Sites" in done.stderr
    assert "resources.yaml:3" in done.stderr


def test_it_goes_on_where_it_was_after_an_end_in_the_middle(tmp_path: Path) -> None:
    (tmp_path / "resources.yaml").write_text(RESOURCES)
    patient = f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done"
    (tmp_path / "patient.yaml").write_text(f"Executable: /bin/sh\nArguments: -c '{patient}'\n")
    home = QuickHome(tmp_path / "home")
    arguments = ("--resources", str(tmp_path / "resources.yaml"), "--site", "LCG.Here.org", "--pilots", "1")
    arguments += ("--isolation", "none")  # the jobs look at a file of this test
    with home.running(*arguments):
        ids = submit(home, tmp_path / "patient.yaml", "-n", 2)
        wait_until(lambda: home.json("job", "list", "--status", "Running")["jobs"])
    wait_until(lambda: not _processes_below(tmp_path))  # a pilot that was killed takes its payload with it
    with sqlite3.connect(tmp_path / "home" / "pilotage.db") as conn:
        assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    (tmp_path / "go").touch()
    with home.running(*arguments):
        assert [each["version"] for each in home.json("config", "history")["versions"]] == [1]
        home.run("job", "wait", *ids, *PATIENT)


def test_a_service_of_several_processes_replaces_one_that_died(tmp_path: Path) -> None:
    (tmp_path / "resources.yaml").write_text(RESOURCES)
    home = QuickHome(tmp_path / "home")
    home.run("db", "upgrade")
    port = free_port()
    token = home.json("token", "--role", "user", "--vo", "biomed", "--user", "ada")["token"]
    arguments = ("--workers", "2", "--port", str(port), "--resources", str(tmp_path / "resources.yaml"))
    with (tmp_path / "serve.log").open("w") as log:
        service = subprocess.Popen([str(PILOTAGE), "serve", *arguments], env=home.environment, stderr=log)
    try:
        with ServiceClient(f"http://127.0.0.1:{port}", token) as client:
            wait_until(client.ready)
            wait_until(lambda: len(_workers_of(service)) == 2)  # one is enough to be ready
            before = _workers_of(service)
            before[0].kill()
            wait_until(lambda: len(_workers_of(service)) == 2 and before[0] not in _workers_of(service))
            wait_until(client.ready)
            description = '[ Executable = "/bin/true"; ]'
            assert client.submit(jdls=[description], idempotency_key="1") == [1]
            after = _workers_of(service)
        service.kill()
        _, left = psutil.wait_procs(after, timeout=300)
        assert not left
    finally:
        service.kill()
        service.wait()


def _workers_of(service: subprocess.Popen[bytes]) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(service.pid).children():
        with suppress(psutil.Error):
            if "--multiprocessing-fork" in child.cmdline():
                found.append(child)
    return found


def _processes_below(directory: Path) -> list[str]:
    """Processes that still work below a directory."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(directory):
                found.append(" ".join(process.cmdline()))
    return found


def test_a_broken_file_does_not_keep_a_running_configuration_from_starting(tmp_path: Path) -> None:
    file = tmp_path / "resources.yaml"
    file.write_text(RESOURCES)
    home = QuickHome(tmp_path / "home")
    with home.running("--resources", str(file)):
        pass
    file.write_text("Resources: [")
    with home.running("--resources", str(file)):
        assert "CPUTime" in home.run("config", "show", "Resources").stdout
    file.unlink()
    with home.running("--resources", str(file)):
        assert "CPUTime" in home.run("config", "show", "Resources").stdout
