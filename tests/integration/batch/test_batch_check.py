"""The conformance kit itself: it finds what is wrong, and its command says so."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pilotage.cli import batch_check
from pilotage.fabric.batch.batch_system import Handle, Report, State
from pilotage.fabric.batch.bench import Bench, Violated
from pilotage.fabric.batch.conformance import CHECKS
from pilotage.fabric.batch.local_host import QUEUE, LocalHost


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetful(LocalHost):
    """Finds nothing by its stamp."""

    def find(self, stamps: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(stamps, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rash(LocalHost):
    """Takes a job that it does not see for gone."""

    def status(self, handles: Sequence[Handle]) -> Mapping[str, Report]:
        found = LocalHost.status(self, handles)
        gone = Report(state=State.GONE)
        return {stamp: gone if each.state is State.MISSING else each for stamp, each in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimistic(LocalHost):
    """Calls every end a success."""

    def status(self, handles: Sequence[Handle]) -> Mapping[str, Report]:
        found = LocalHost.status(self, handles)
        done = Report(state=State.DONE, exit_code=0)
        return {stamp: done if each.state is State.FAILED else each for stamp, each in found.items()}


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (Forgetful, "found_by_stamp"),
        (Forgetful, "late_reference"),
        (Rash, "found_by_stamp"),
        (Optimistic, "exit_status"),
    ],
)
def test_what_is_wrong_is_found(tmp_path: Path, kind: Any, check: str) -> None:
    system = kind(directory=str(tmp_path), cores=2, memory=1000)
    with closing(Bench(system=system, queue=QUEUE)) as bench, pytest.raises(Violated):
        CHECKS[check](bench)


def test_the_command_tells_each_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        batch_check.main(["local", "--directory", str(tmp_path), "--only", "round_trip", "--json"])
    assert ended.value.code == 0
    [outcome] = json.loads(capsys.readouterr().out)
    assert (outcome["check"], outcome["passed"]) == ("round_trip", True)


def test_a_check_that_does_not_exist_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        batch_check.main(["local", "--directory", str(tmp_path), "--only", "roundtrip"])
    assert ended.value.code == 2
    assert "did you mean round_trip?" in capsys.readouterr().err


def test_a_check_that_fails_ends_the_command_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        batch_check.main(
            ["local", "--directory", str(tmp_path), "--queue", "nowhere", "--only", "round_trip"]
        )
    assert ended.value.code == 1
    assert "there is no queue nowhere" in capsys.readouterr().out
