"""What a director makes of what its file says of a batch system."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pilotage.cli.processes import batch
from pilotage.fabric.batch.command_line import CommandLineSystem
from pilotage.fabric.batch.dialect.command import DialectSystem
from pilotage.fabric.batch.dialect.dialect import shipped_content
from pilotage.fabric.batch.grid_engine import GridEngine
from pilotage.fabric.batch.htcondor.htcondor import HTCondor
from pilotage.fabric.batch.settings import BatchSystemKind, SystemSettings
from pilotage.fabric.batch.slurm.slurm import Slurm


def made(tmp_path: Path, **said: Any) -> CommandLineSystem:
    told = SystemSettings.model_validate({"directory": str(tmp_path), "flags": ["-A", "grid"], **said})
    with ExitStack() as stack:
        system = batch.open_system(told, stack)
    assert isinstance(system, CommandLineSystem)
    return system


@pytest.mark.parametrize(
    ("kind", "adapter"),
    [
        (BatchSystemKind.SLURM, Slurm),
        (BatchSystemKind.GRID_ENGINE, GridEngine),
        (BatchSystemKind.HTCONDOR, HTCondor),
        (BatchSystemKind.PBS, DialectSystem),
        (BatchSystemKind.LSF, DialectSystem),
    ],
)
def test_each_kind_has_its_adapter(
    tmp_path: Path, kind: BatchSystemKind, adapter: type[CommandLineSystem]
) -> None:
    system = made(tmp_path, kind=kind.value)

    assert type(system) is adapter
    assert system.flags == ("-A", "grid")


def test_a_command_system_speaks_its_own_dialect(tmp_path: Path) -> None:
    system = made(tmp_path, kind="command", dialect={**shipped_content("lsf"), "name": "p_{stamp}"})

    assert isinstance(system, DialectSystem)
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
    system = SystemSettings.model_validate({**said, "directory": str(tmp_path)})

    batch.warn_of_readable([token, tmp_path / "not there"], {"farm": system})

    assert (f"{token}: jobs of the batch system farm run as this account" in caplog.text) is warned
