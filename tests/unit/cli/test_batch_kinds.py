"""What a director makes of what its file says of a batch system."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pilotage.cli import batch_systems
from pilotage.fabric.batch.commanded import Commanded
from pilotage.fabric.batch.dialect.command import Command
from pilotage.fabric.batch.dialect.shipped_dialects import content
from pilotage.fabric.batch.grid_engine import GridEngine
from pilotage.fabric.batch.htcondor.htcondor import HTCondor
from pilotage.fabric.batch.settings import Kind, System
from pilotage.fabric.batch.slurm.slurm import Slurm


def made(tmp_path: Path, **said: Any) -> Commanded:
    told = System.model_validate({"directory": str(tmp_path), "flags": ["-A", "grid"], **said})
    with ExitStack() as stack:
        system = batch_systems.system(told, stack)
    assert isinstance(system, Commanded)
    return system


@pytest.mark.parametrize(
    ("kind", "adapter"),
    [
        (Kind.SLURM, Slurm),
        (Kind.GRID_ENGINE, GridEngine),
        (Kind.HTCONDOR, HTCondor),
        (Kind.PBS, Command),
        (Kind.LSF, Command),
    ],
)
def test_each_kind_has_its_adapter(tmp_path: Path, kind: Kind, adapter: type[Commanded]) -> None:
    system = made(tmp_path, kind=kind.value)

    assert type(system) is adapter
    assert system.flags == ("-A", "grid")


def test_a_command_system_speaks_its_own_dialect(tmp_path: Path) -> None:
    system = made(tmp_path, kind="command", dialect={**content("lsf"), "name": "p_{stamp}"})

    assert isinstance(system, Command)
    assert system.dialect.name == "p_{stamp}"


@pytest.mark.parametrize(
    ("said", "warned"),
    [
        ({"kind": "slurm"}, True),
        ({"kind": "local", "cores": 1, "memory": 1000}, True),
        ({"kind": "htcondor"}, False),
        ({"kind": "slurm", "ssh": {"host": "h", "user": "u", "key": "/k", "known_hosts": "/h"}}, False),
    ],
)
def test_a_token_that_jobs_can_read_is_warned_of(
    said: dict[str, Any], warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    system = System.model_validate({**said, "directory": str(tmp_path)})

    batch_systems.warn_of_readable([token, tmp_path / "not there"], {"farm": system})

    assert (f"{token}: jobs of the batch system farm run as this account" in caplog.text) is warned
