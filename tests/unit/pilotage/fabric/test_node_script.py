"""The text that a director submits."""

import io
import json
import os
import subprocess
import zipfile
import zlib
from pathlib import Path

import pytest

from pilotage.fabric import node_script
from pilotage.fabric.node_script import PilotScript

SECRET = "a-one-use-secret"
#: In place of the pilot: tells what it was given.
SPY = """
import json, os, sys
area = os.path.dirname(sys.argv[0])
names = os.listdir(area)
files = {name: open(os.path.join(area, name)).read() for name in names if name != "pilot.pyz"}
modes = sorted({oct(os.stat(os.path.join(area, name)).st_mode & 0o777) for name in names})
seen = {"words": sys.argv[1:], "files": files, "modes": modes, "area": area, "env": dict(os.environ)}
seen["input"] = sys.stdin.read()
print(json.dumps(seen))
sys.exit(7)
"""


def spy(program: str = SPY) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("__main__.py", program)
    return data.getvalue()


def script(**said: object) -> PilotScript:
    about = {"stamp": "p 1", "queue": "S/C/Q", "secret": SECRET}
    return PilotScript(**{**about, **said})  # type: ignore[arg-type]


def pilot_text(about: PilotScript, program: bytes, authorities: str | None = None) -> str:
    return node_script.pilot_text(about, program, url="http://service", authorities=authorities)


def run(text: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    file = directory / "script"
    file.write_text(text, encoding="ascii")
    file.chmod(0o700)
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    variables = {"PATH": os.environ["PATH"], "TMPDIR": str(temporary), **environment}
    return subprocess.run([file], capture_output=True, text=True, env=variables, check=False)


def told(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.stdout, done.stderr
    return dict(json.loads(done.stdout))


def test_the_pilot_finds_its_files_and_nobody_else_reads_them(tmp_path: Path) -> None:
    pools = tuple(f"{number:064x}" for number in range(5000))
    wanted = script(pools=pools, words=("--vo", "it's $HOME"))

    done = run(pilot_text(wanted, spy(), "PEM\n"), tmp_path)

    assert done.returncode == 7, done.stderr
    found = told(done)
    area = found["area"]
    assert found["input"] == SECRET
    assert found["files"] == {"pools": "\n".join(pools), "authorities.pem": "PEM\n"}
    assert found["modes"] == ["0o600"]
    assert found["words"] == [
        "--url=http://service",
        "--stamp=p 1",
        "--site=S",
        "--ce=C",
        "--queue=Q",
        "--secret-file=-",
        f"--pools=@{area}/pools",
        f"--ca={area}/authorities.pem",
        "--vo",
        "it's $HOME",
    ]
    assert SECRET not in str(found["env"]) + str(found["words"]) + str(found["files"])
    assert not Path(area).exists()


def test_a_pilot_whose_queue_a_broker_picks_is_given_what_it_may_be(tmp_path: Path) -> None:
    possible_queues = {"short": "LCG.A.org/ce1/short", "long": "LCG.A.org/ce1/long"}

    found = told(run(pilot_text(script(queue="", possible_queues=possible_queues), spy()), tmp_path))

    assert json.loads(found["files"]["possible_queues.json"]) == possible_queues
    assert f"--possible-queues={found['area']}/possible_queues.json" in found["words"]
    assert not [word for word in found["words"] if word.startswith(("--site", "--ce", "--queue"))]


def test_no_line_is_too_long_for_a_batch_system_and_none_is_taken_for_a_directive() -> None:
    lines = pilot_text(script(pools=("a" * 64,) * 5000), spy()).splitlines()

    assert max(map(len, lines)) < 1024
    assert next(line for line in lines if line.startswith("#")) == "#!/bin/sh"
    assert not [line for line in lines if line.startswith(("#$", "#SBATCH", "#PBS", "#BSUB"))]
    assert SECRET not in repr(script())


def test_the_program_is_packed_once_for_thousands_of_pilots(monkeypatch: pytest.MonkeyPatch) -> None:
    program, packed = spy("a program of this test's own" * 50), list[int]()
    compress = zlib.compress

    def count(data: bytes) -> bytes:
        packed.append(len(data))
        return compress(data)

    monkeypatch.setattr(zlib, "compress", count)

    for number in range(40):
        pilot_text(script(stamp=f"p{number}", pools=(f"{number:064}",)), program)

    assert len([length for length in packed if length > 100]) == 1


def test_without_a_python_it_says_so_and_ends(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("uname", "mktemp", "rm"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    text = pilot_text(script(), spy()).replace("/usr/bin/python3", "/nowhere/python3")

    done = run(text, tmp_path, PATH=str(tools))

    assert done.returncode == 4
    assert "no Python 3.9 or later" in done.stderr
    assert not list((tmp_path / "tmp").iterdir())


def test_a_python_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tools / "python3").chmod(0o755)

    done = run(pilot_text(script(), spy()), tmp_path, PATH=f"{tools}:{os.environ['PATH']}")

    assert done.returncode == 7, done.stderr


#: A program that says when it waits for a signal, and ends with a status of its own.
ENDS_WHEN_TOLD = """
import signal, sys
signals = {signal.SIGTERM: 9, signal.SIGUSR1: 8}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("ready", flush=True)
sys.exit(signals[signal.sigwait(signals)])
"""


def start(folder: Path, text: str) -> subprocess.Popen[bytes]:
    """Start a script, and wait until its program waits for a signal."""
    file = folder / "script"
    file.write_text(text, encoding="ascii")
    # A shell cannot trap what was ignored when it began, as HUP is under nohup.
    process = subprocess.Popen(
        ["env", "--default-signal", "sh", file],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize(("signal", "status"), [("TERM", 9), ("HUP", 9), ("USR2", 9), ("USR1", 8)])
def test_a_signal_reaches_the_pilot_whose_status_is_the_scripts(
    tmp_path: Path, signal: str, status: int
) -> None:
    with start(tmp_path, pilot_text(script(), spy(ENDS_WHEN_TOLD))) as process:
        subprocess.run(["kill", f"-{signal}", str(process.pid)], check=True)
        assert process.wait(300) == status

    assert not list(tmp_path.glob("pilot-*"))


def test_the_status_is_the_pilots_if_it_ends_while_the_shell_handles_the_signal(tmp_path: Path) -> None:
    # The shell takes note of the end of its child between two commands: from then on no `kill` finds it.
    slow_kill = """
kill() {
  command kill "$@" || return
  tries=0
  while [ -e "/proc/$program" ] && [ "$tries" -lt 1000000 ]; do tries=$((tries + 1)); done
}
"""
    text = pilot_text(script(), spy(ENDS_WHEN_TOLD))
    first_line, rest = text.split("\n", 1)

    with start(tmp_path, first_line + slow_kill + rest) as process:
        process.terminate()
        assert process.wait(300) == 9


def test_python_finds_its_own_path_where_the_environment_has_none(tmp_path: Path) -> None:
    """Jobs of HTCondor have no PATH; the pilot starts its payloads with the same Python."""
    file = tmp_path / "script"
    file.write_text(pilot_text(script(), spy("import sys; print(sys.executable)")), encoding="ascii")
    file.chmod(0o700)
    done = subprocess.run([file], capture_output=True, text=True, env={"TMPDIR": str(tmp_path)}, check=False)
    assert os.access(done.stdout.strip(), os.X_OK), done
