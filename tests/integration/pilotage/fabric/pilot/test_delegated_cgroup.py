"""Memory limits that a real kernel enforces, if this host lets us make cgroups with its controller."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import NOT_RUN
from tests.support.fakes.lease_server import LeaseServer
from tests.support.pilot_process import MODULE, run

BASE = Path("/sys/fs/cgroup")
#: Moves itself into a cgroup, and becomes the command.
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


def _enter(directory: Path, *command: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", ENTER, str(directory), *command)


def _make_group() -> Path | None:
    """A new cgroup with the controller `memory` that processes of ours may enter; None: there is none."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((BASE / line[4:] for line in lines if line.startswith("0::/")), BASE)
    for above in (own, *own.parents):
        if not above.is_relative_to(BASE):
            break
        made = above / f"pilotage-slot-{os.getpid()}"
        with suppress(OSError):
            made.mkdir()
            controllers = (made / "cgroup.controllers").read_text().split()
            entered = subprocess.run(_enter(made, "true"), capture_output=True).returncode == 0
            if "memory" in controllers and entered:
                return made
        with suppress(OSError):
            made.rmdir()
    return None


@pytest.fixture
def slot() -> Iterator[Path]:
    made = _make_group()
    if made is None:
        pytest.skip(f"{NOT_RUN}: no cgroup (version 2) of this host lets us limit memory")
    yield made
    for each in (*made.iterdir(), made):
        if each.is_dir():
            each.rmdir()


def test_the_kernel_ends_what_exceeds_the_limit_of_its_cgroup(
    slot: Path, server: LeaseServer, tmp_path: Path
) -> None:
    script = "x = bytearray(400 << 20); x[:] = b'1' * len(x); import time; time.sleep(600)"
    limit = {"overhead": 80, "per_core": 20}
    body = {"Executable": "python3", "Arguments": ["-c", script]}
    job = server.add({**body, "requirements": {"cpu": {"ram_mb": {"limit": limit}}}})

    ended = run(server.url, tmp_path, command=_enter(slot, *MODULE))

    assert f"memory of jobs is limited in {slot}" in ended["log"]
    assert (job.status, job.minor_status) == ("Failed", "Job has exceeded its memory limit")
    assert job.application_status == "memory limit 100 MB of 80 + 20 × 1 core: peak 100 MB"
    assert job.exit_code == 137
    assert [each.name for each in slot.iterdir() if each.is_dir()] == ["pilotage-pilot"]
