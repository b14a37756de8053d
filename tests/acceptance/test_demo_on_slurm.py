"""`./dev demo --slurm`, as its user sees it."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from examples.demo import on_slurm

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "examples.demo", "--slurm", "--copies", "1")


@pytest.fixture
def place(short_directory: Path) -> Iterator[Path]:
    """Where the demonstration puts what is temporary."""
    with tempfile.TemporaryDirectory(dir=short_directory) as name:
        Path(name).chmod(0o755)
        yield Path(name)
        for process in _processes_of(Path(name)):  # of one that did not end as it should
            with suppress(psutil.NoSuchProcess):
                process.kill()


def left_in(place: Path) -> list[str]:
    """Files, and processes that name the place, which a demonstration that has ended leaves behind."""
    files = [str(path) for path in place.rglob("*")]
    return files + [f"{process.pid}: {process.info['cmdline']}" for process in _processes_of(place)]


def _processes_of(place: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        words = [*(process.info["cmdline"] or ()), *(process.info["environ"] or {}).values()]
        if process.pid != os.getpid() and any(str(place) in word for word in words):
            found.append(process)
    return found


@pytest.mark.debian("slurm")
@pytest.mark.timeout(1800)
def test_all_jobs_are_done_where_they_may_run_though_director_and_gateway_are_killed(place: Path) -> None:
    done = subprocess.run(
        COMMAND,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(place)},
        capture_output=True,
        text=True,
        timeout=1500,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 of 5 jobs are Done, and the grid job" in done.stdout
    assert "Events 1 to 2000, each of them once." in done.stdout
    assert done.stdout.count("$ kill -9") == 2
    assert left_in(place) == []


@pytest.mark.debian("slurm")
@pytest.mark.timeout(1800)
def test_ctrl_c_leaves_nothing_behind(place: Path) -> None:
    process = subprocess.Popen(
        COMMAND, cwd=ROOT, env={**os.environ, "TMPDIR": str(place)}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert any("$ kill -9" in line for line in process.stdout), "it gets as far as that"
        assert left_in(place)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=600)
    finally:
        process.kill()
        process.wait()

    assert "cleaned up" in said
    assert process.returncode == 128 + signal.SIGINT
    assert left_in(place) == []


def test_who_is_not_root_is_told_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert on_slurm.main(copies=1, install=False) == 2
    assert "takes root" in capsys.readouterr().err


def test_what_is_missing_is_named_with_its_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("examples.servers.debian.PATH", str(tmp_path))

    assert on_slurm.main(copies=1, install=False) == 2
    said = capsys.readouterr().err
    assert "slurmctld" in said
    assert "--install adds the packages slurm-wlm munge" in said
