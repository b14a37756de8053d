"""A batch system behind a head node: its commands over a real SSH server, whose connections break."""

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest

from examples.servers.slurm import Slurm as Cluster
from examples.servers.starting import wait_until
from pilotage.fabric.batch import ssh_shell
from pilotage.fabric.batch.batch_system import BatchSystemAway
from pilotage.fabric.batch.dialect import dialect
from pilotage.fabric.batch.dialect.command import DialectSystem
from pilotage.fabric.batch.head_node import HeadNode
from pilotage.fabric.batch.settings import Connections, SystemSettings
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.batch.ssh_shell import SshShell
from pilotage.fabric.batch.work_area import WorkAreas
from pilotage.plugins.batch_check.conformance import CHECKS, Bench
from pilotage.plugins.batch_check.fault_injection import FaultyShell
from tests.support.fakes.batch_commands import commands
from tests.support.servers.ssh import SlowLine, SshServer

pytestmark = pytest.mark.debian("ssh")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    server = SshServer(tmp_path_factory.mktemp("ssh"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def shell(server: SshServer) -> Iterator[SshShell]:
    with closing(SshShell(server.host())) as shell:
        yield shell


def test_a_command_runs_as_it_stands(shell: SshShell) -> None:
    done = shell.run(["printf", "%s|", "a b", "$HOME", "'", '"', "é;`x`"])
    assert (done.status, done.stdout, done.stderr) == (0, "a b|$HOME|'|\"|é;`x`|", "")
    done = shell.run(["sh", "-c", "cat; echo oh >&2; exit 3"], stdin="in")
    assert (done.status, done.stdout, done.stderr) == (3, "in", "oh\n")


def test_variables_of_the_login_are_unset_and_those_that_are_stated_are_not(server: SshServer) -> None:
    with closing(SshShell(server.host(), environment={"USER": "x"}, unset=["HOME", "USER"])) as shell:
        lines = shell.run(["env"]).stdout.splitlines()
    assert "USER=x" in lines
    assert not [line for line in lines if line.startswith("HOME=")]


def test_files_are_kept_on_the_other_host(shell: SshShell, tmp_path: Path) -> None:
    path, below = tmp_path / "c d" / "a" / "b" / "file", str(tmp_path / "c d")
    assert shell.read("a/b/file", below=below, last=10) == b""
    shell.write("a/b/file", b"one", below=below)
    shell.write("a/b/file", b"01234\n\0\xff89abc", below=below, executable=True)
    assert path.stat().st_mode & 0o777 == 0o700
    assert shell.read("a/b/file", below=below, last=4) == b"9abc"
    assert shell.read_small(["a/b/file", "a/b", "a/c"], below=below, most=99) == {
        "a/b/file": path.read_bytes()
    }
    assert shell.read_small(["a/b/file"], below=below, most=5) == {}
    shell.remove(["a", "e"], below=below)
    shell.remove(["a"], below=below)
    assert not path.parent.exists()


def test_a_file_that_cannot_be_written_is_told(shell: SshShell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BatchSystemAway, match="cannot be written"):
        shell.write("file/below", b"", below=str(tmp_path))


def test_a_login_that_prints_a_greeting_is_told(
    shell: SshShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_shell, "_PYTHON", f"echo 'Welcome to the cluster'; {ssh_shell._PYTHON}")
    with pytest.raises(BatchSystemAway, match="Welcome to the cluster"):
        shell.read_small(["exit"], below=str(tmp_path), most=100)


def test_a_command_that_takes_too_long_is_given_up(shell: SshShell) -> None:
    with pytest.raises(NoAnswer, match="gave no answer in 0 s"):
        shell.run(["sleep", "60"], seconds=0.3)
    assert shell.run(["echo", "on"]).stdout == "on\n"


def test_a_connection_that_was_cut_is_made_anew(shell: SshShell, server: SshServer) -> None:
    shell.run(["true"])
    assert server.cut_connections()
    answers = []
    for _ in range(2):  # the first may meet the old connection
        try:
            answers.append(shell.run(["echo", "on"]).stdout)
        except BatchSystemAway:
            continue
    assert "on\n" in answers


def test_a_command_whose_connection_is_cut_may_have_done_its_work(
    shell: SshShell, server: SshServer, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(shell.run, ["sh", "-c", f"touch {started}; sleep 600"], seconds=600)
        wait_until(lambda: started.exists() or answer.done())
        server.cut_connections()
        assert isinstance(answer.exception(300), NoAnswer)


def test_a_host_that_is_away_comes_back(server: SshServer) -> None:
    with closing(SshShell(server.host())) as shell:
        shell.run(["true"])
        server.stop()
        try:
            for _ in range(2):
                with pytest.raises(BatchSystemAway):
                    shell.run(["true"])
        finally:
            server.start()
        assert shell.run(["echo", "on"]).stdout == "on\n"


def test_a_transfer_over_a_slow_line_goes_on_as_long_as_bytes_move(
    server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate, patience = 150_000, 6.0
    with SlowLine(server.host().port or 22, bytes_a_second=rate) as line:
        known = line.known_hosts(server.host(), tmp_path / "known")
        with closing(SshShell(server.host(port=line.port, known_hosts=known))) as shell:
            shell.run(["true"])  # a login may take longer on a busy host

            def is_carried_in_time() -> bool:
                content = os.urandom(int(1.6 * patience * rate))
                monkeypatch.setattr(ssh_shell, "_PATIENCE", patience)
                try:
                    shell.write("area/large", content, below=str(tmp_path))
                    assert shell.read("area/large", below=str(tmp_path), last=2 * len(content)) == content
                except NoAnswer:
                    return False
                return True

            while not is_carried_in_time():  # a busy host may stand still for that long, but not for ever
                patience *= 2
                assert patience < 200


def test_a_transfer_that_stands_still_is_given_up(
    shell: SshShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.run(["true"])
    monkeypatch.setattr(ssh_shell, "_PATIENCE", 1.0)
    monkeypatch.setattr(ssh_shell, "_PYTHON", "sleep 300")
    with pytest.raises(NoAnswer, match="gave no answer in 1 s"):
        shell.read("file", below=str(tmp_path), last=10)


def test_a_transfer_to_a_host_that_takes_no_connection_is_given_up(
    server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_shell, "_PATIENCE", 1.0)
    with ExitStack() as stack:
        host = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # now its queue is full: further ones get no answer
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(host.getsockname())
        shell = stack.enter_context(closing(SshShell(server.host(port=host.getsockname()[1]))))
        errors: list[Exception] = []

        def read() -> None:
            try:
                shell.read("file", below="/", last=10)
            except BatchSystemAway as error:
                errors.append(error)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(300)
        assert errors


def test_a_command_that_was_given_up_does_not_go_on(shell: SshShell, tmp_path: Path) -> None:
    shell.run(["true"])
    number = tmp_path / "number"
    seconds = 3.0
    while not number.exists():  # on a busy host it does not even begin
        with pytest.raises(NoAnswer):
            shell.run(
                ["sh", "-c", f"echo $$ >{number}.new; mv {number}.new {number}; sleep 300"], seconds=seconds
            )
        seconds *= 2
    process = int(number.read_text())
    wait_until(lambda: not psutil.pid_exists(process))


def test_a_head_node_behind_another_host_is_reached_as_the_ssh_config_says(
    server: SshServer, tmp_path: Path
) -> None:
    gate_directory = tmp_path / "gate"
    gate_directory.mkdir()
    gate = SshServer(gate_directory)
    gate.start()
    try:
        told = [("gate", gate.host(), ""), ("head", server.host(), "  ProxyJump gate\n")]
        config = tmp_path / "config"
        config.write_text(
            "".join(
                f"Host {name}\n  HostName {each.host}\n  Port {each.port}\n  User {each.user}\n"
                f"  IdentityFile {each.key}\n  UserKnownHostsFile {each.known_hosts}\n{more}"
                for name, each, more in told
            )
        )
        with closing(SshShell(HeadNode(host="head", config=config))) as shell:
            said = shell.run(["sh", "-c", "echo $SSH_CONNECTION"]).stdout.split()
    finally:
        gate.stop()
    assert said[3] == str(server.host().port)


def test_shells_with_the_same_settings_share_a_connection(server: SshServer) -> None:
    told = SystemSettings.model_validate(
        {"kind": "slurm", "directory": Path("/tmp/jobs"), "ssh": server.host()}
    )
    with ExitStack() as stack:
        connections = Connections(stack=stack)
        assert connections.shell(told) is connections.shell(told.model_copy(update={"flags": ("-A", "x")}))


def test_a_host_whose_key_is_not_known_is_refused(server: SshServer, tmp_path: Path) -> None:
    nobody = tmp_path / "known_hosts"
    nobody.write_text("")
    with (
        closing(SshShell(server.host(known_hosts=nobody))) as shell,
        pytest.raises(BatchSystemAway, match="no login at "),
    ):
        shell.run(["true"])


@pytest.mark.debian("slurm")
@pytest.mark.parametrize(
    "check",
    ["round_trip", "script_as_written", "kill_by_stamp", "no_answer", "late_reference", "full_spool"],
)
def test_slurm_behind_a_head_node_does_what_it_must(
    server: SshServer, slurm: Cluster, tmp_path: Path, check: str
) -> None:
    with closing(SshShell(server.host(), environment=slurm.environment)) as ssh:
        shell = FaultyShell(shell=ssh)
        areas = WorkAreas(directory=str(tmp_path / "jobs"), shell=shell)
        system = DialectSystem(areas=areas, dialect=dialect.shipped_dialect("slurm"))
        with closing(Bench(system=system, queue="short", faults=shell, patience=300)) as bench:
            CHECKS[check](bench)


@pytest.mark.parametrize("check", ["round_trip", "kill_by_stamp", "late_reference"])
def test_lsf_behind_a_head_node_does_what_it_must(server: SshServer, tmp_path: Path, check: str) -> None:
    environment = commands.environment("lsf.py", commands.LSF, tmp_path / "lsf")
    with closing(SshShell(server.host(), environment=environment)) as ssh:
        shell = FaultyShell(shell=ssh)
        areas = WorkAreas(directory=str(tmp_path / "jobs"), shell=shell)
        system = DialectSystem(areas=areas, dialect=dialect.shipped_dialect("lsf"))
        with closing(Bench(system=system, queue="normal", faults=shell, poll=0.05, patience=300)) as bench:
            CHECKS[check](bench)
