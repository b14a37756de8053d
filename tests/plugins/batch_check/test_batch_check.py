"""The conformance kit itself: it finds what is wrong, and its command says so."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from pilotage.fabric.batch.batch_system import Handle, JobReport, Output, State
from pilotage.fabric.batch.dialect import dialect as dialect_dialect
from pilotage.fabric.batch.local_host import QUEUE, LocalHost
from pilotage.plugins.batch_check import command
from pilotage.plugins.batch_check.conformance import CHECKS, Bench, Violated
from tests.support.fakes.batch_commands import commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetful(LocalHost):
    """Finds nothing by its stamp."""

    def find(self, stamps: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(stamps, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rash(LocalHost):
    """Takes a job that it does not see for gone."""

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        found = LocalHost.status(self, handles)
        gone = JobReport(state=State.GONE)
        return {stamp: gone if each.state is State.MISSING else each for stamp, each in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimistic(LocalHost):
    """Calls every end a success."""

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        found = LocalHost.status(self, handles)
        done = JobReport(state=State.DONE, exit_code=0)
        return {stamp: done if each.state is State.FAILED else each for stamp, each in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sluggish(LocalHost):
    """Shows output late, and keeps nothing of a job that is ended before its output was seen."""

    seen: dict[str, int] = field(default_factory=dict)  #: how often the output of a job was read
    lost: set[str] = field(default_factory=set)

    def output(self, handle: Handle) -> Output:
        output = LocalHost.output(self, handle)
        self.seen[handle.stamp] = self.seen.get(handle.stamp, 0) + bool(output.stdout)
        return output if self.seen[handle.stamp] > 1 else Output(stdout=b"", stderr=b"")

    def kill(self, handles: Sequence[Handle]) -> None:
        LocalHost.kill(self, handles)
        self.lost.update(each.stamp for each in handles if self.seen.get(each.stamp, 0) < 2)

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        found = LocalHost.status(self, handles)
        missing = JobReport(state=State.MISSING)
        return {stamp: missing if stamp in self.lost else each for stamp, each in found.items()}


@pytest.mark.parametrize("check", ["round_trip", "script_as_written", "kill_running", "kill_by_stamp"])
def test_what_is_right_passes_on_a_host_that_is_slow(tmp_path: Path, check: str) -> None:
    system = Sluggish(directory=str(tmp_path), cores=2, memory=1000, grace=300)
    with closing(Bench(system=system, queue=QUEUE, patience=300)) as bench:
        CHECKS[check](bench)


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


@pytest.mark.parametrize(("flags", "status"), [([], 0), (["-q", "nowhere"], 1)])
def test_a_system_is_checked_as_the_file_of_a_director_describes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], status: int
) -> None:
    environment = commands.environment("lsf.py", commands.LSF, tmp_path / "lsf")
    farm = {"kind": "lsf", "directory": f"{tmp_path}/jobs", "environment": environment, "flags": flags}
    file = tmp_path / "director.yaml"
    file.write_text(yaml.safe_dump({"name": "north", "systems": {"farm": farm}}))
    with pytest.raises(SystemExit) as ended:
        command.main(["farm", "--config", str(file), "--queue", "normal", "--only", "round_trip", "--json"])
    [outcome] = json.loads(capsys.readouterr().out)
    assert (ended.value.code, outcome["passed"]) == (status, not status), outcome["message"]
    assert ("nowhere: No such queue" in outcome["message"]) == bool(flags)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["barn"], "there is no system barn, there are each, farm"),
        (["farm", "--directory", "/tmp"], "--directory: "),
        (["each"], "the system each is one for each CE"),
    ],
)
def test_what_does_not_go_with_the_file_of_a_director_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    file = tmp_path / "director.yaml"
    slurm = {"kind": "slurm", "directory": "/j"}
    systems = {"farm": slurm, "each": {**slurm, "directory": "/j/{ce}"}}
    file.write_text(yaml.safe_dump({"systems": systems}))
    with pytest.raises(SystemExit) as ended:
        command.main([*words, "--config", str(file)])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_check_that_does_not_exist_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["local", "--directory", str(tmp_path), "--only", "roundtrip"])
    assert ended.value.code == 2
    assert "did you mean round_trip?" in capsys.readouterr().err


def test_a_check_that_fails_ends_the_command_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["local", "--directory", str(tmp_path), "--queue", "nowhere", "--only", "round_trip"])
    assert ended.value.code == 1
    assert "there is no queue nowhere" in capsys.readouterr().out


@pytest.fixture
def lsf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of LSF in everybody's path."""
    for name, value in commands.environment("lsf.py", commands.LSF, tmp_path / "lsf").items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("lsf")
@pytest.mark.parametrize("kind", ["lsf", "command"])
def test_a_dialect_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    file = tmp_path / "dialect.yaml"
    file.write_text(yaml.safe_dump(dict(dialect_dialect.shipped_content("lsf")) if kind == "command" else {}))
    words = ["--directory", str(tmp_path / "jobs"), "--queue", "normal", "--dialect", str(file)]
    with pytest.raises(SystemExit) as ended:
        command.main([kind, *words, "--only", "exit_status", "--only", "capacity_is_told", "--json"])
    outcomes = json.loads(capsys.readouterr().out)
    assert [each["message"] for each in outcomes if not each["passed"]] == []
    assert ended.value.code == 0


@pytest.mark.parametrize(
    ("kind", "dialect", "message"),
    [
        ("command", None, "command: give its --dialect"),
        ("htcondor", "{}", "--dialect: htcondor has none, it is for command, gridengine, lsf, pbs, slurm"),
        ("pbs", "{kill: {command: [qdel]}}", "kill/command: one word has to be {references}"),
        ("command", "{name: x}", "submit: is needed"),
        ("lsf", "[]", "holds no settings by name"),
        ("lsf", "{", "dialect.yaml:2:1"),
    ],
)
def test_what_is_wrong_with_a_dialect_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, dialect: str | None, message: str
) -> None:
    words = [kind, "--directory", str(tmp_path)]
    if dialect is not None:
        file = tmp_path / "dialect.yaml"
        file.write_text(dialect)
        words += ["--dialect", str(file)]
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_what_is_not_installed_is_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["lsf", "--directory", str(tmp_path), "--only", "capacity_is_told"])
    assert ended.value.code == 1
    assert "bqueues cannot be run" in capsys.readouterr().out
