"""What a director makes of what its file says of a batch system."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from pilotage.cli.processes import site_process
from pilotage.fabric.batch import settings
from pilotage.fabric.batch.command_line import CommandLineSystem, ListingSystem
from pilotage.fabric.batch.dialect.command import DialectSystem
from pilotage.fabric.batch.dialect.dialect import shipped_content
from pilotage.fabric.batch.htcondor import HTCondor
from pilotage.fabric.batch.local_host import LocalHost
from pilotage.fabric.batch.settings import (
    BatchSystemKind,
    CommandSettings,
    Connections,
    FormerSettings,
    SystemSettings,
)
from pilotage.fabric.director import configuration
from pilotage.fabric.director.configuration import InvalidDirector
from requirements.nodes.lrms_vocabulary import are_flags
from tests.support.left_out import needs


def made(tmp_path: Path, **said: Any) -> CommandLineSystem | HTCondor:
    told = SystemSettings.model_validate({"directory": str(tmp_path), **said})
    with ExitStack() as stack:
        system = settings.open_system(told, Connections(stack=stack))
    assert isinstance(system, CommandLineSystem | HTCondor)
    return system


@pytest.mark.parametrize(
    ("kind", "adapter"),
    [
        ("slurm", DialectSystem),
        ("gridengine", DialectSystem),
        ("htcondor", HTCondor),
        ("pbs", DialectSystem),
        ("lsf", DialectSystem),
    ],
)
def test_each_kind_has_its_adapter(tmp_path: Path, kind: str, adapter: type[ListingSystem]) -> None:
    flags = ("-append", '+ProjectName = "grid"') if kind == "htcondor" else ("-A", "grid")

    system = made(tmp_path, kind=kind, flags=flags)

    assert type(system) is adapter
    assert system.flags == flags


def test_commands_do_not_get_variables_that_change_their_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that state where the batch system is, or are stated in the file, stay."""
    for name in (
        "SQUEUE_PARTITION",
        "SBATCH_WAIT",
        "SLURM_CLUSTERS",
        "SBATCH_ACCOUNT",
        "SLURM_CONF",
        "SINFO_SORT",
    ):
        monkeypatch.setenv(name, "x")
    told = SystemSettings.model_validate(
        {"kind": "slurm", "directory": tmp_path, "environment": {"SINFO_SORT": "#P"}}
    )
    with ExitStack() as stack:
        lines = Connections(stack=stack).shell(told).run(["env"]).stdout.splitlines()
    seen = {line for line in lines if line.startswith(("SQUEUE_", "SINFO_", "SBATCH_", "SLURM_"))}
    assert seen == {"SBATCH_ACCOUNT=x", "SLURM_CONF=x", "SINFO_SORT=#P"}


def test_a_command_system_speaks_its_own_dialect(tmp_path: Path) -> None:
    system = made(tmp_path, kind="command", dialect={**shipped_content("lsf"), "name": "p_{stamp}"})

    assert isinstance(system, DialectSystem)
    assert system.dialect.name == "p_{stamp}"


OWN = {"Forms": {"feature": ["-on={word}"]}}


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ({"kind": "slurm"}, {"--constraint=el9"}),
        ({"kind": "slurm", "dialect": {"vocabulary": "LSF"}}, {"-R select[el9]"}),
        ({"kind": "lsf"}, {"-R select[el9]"}),
        ({"kind": "htcondor"}, set()),
        pytest.param(
            {"kind": "arc", "ce": {"url": "https://ce.a.org:443/arex", "token_file": "/t"}},
            {"ENV/EL9"},
            marks=needs("arc"),
        ),
        ({"kind": "local", "cores": 1, "memory": 1000}, set()),
        (
            {"kind": "command", "dialect": shipped_content("pbs") | {"vocabulary": None}},
            {"--constraint=el9", "-R select[el9]"},
        ),
        ({"kind": "command", "dialect": shipped_content("pbs") | {"vocabulary": OWN}}, {"-on=el9"}),
    ],
)
def test_only_flags_of_its_own_language_reach_a_batch_system(
    tmp_path: Path, said: dict[str, Any], taken: set[str]
) -> None:
    directory = {} if said["kind"] == "arc" else {"directory": str(tmp_path)}
    languages = SystemSettings.model_validate({**directory, **said}).languages
    every = ("--constraint=el9", "-R select[el9]", "ENV/EL9", "-on=el9")
    assert {each for each in every if are_flags(each.split(" "), languages)} == taken


def test_a_dialect_whose_vocabulary_is_wrong_is_refused(tmp_path: Path) -> None:
    dialect = shipped_content("pbs") | {"vocabulary": {"Forms": {"least": ["-l"]}}}
    with pytest.raises(ValueError, match="least: unknown, allowed are min"):
        SystemSettings.model_validate({"kind": "command", "directory": str(tmp_path), "dialect": dialect})


@pytest.mark.parametrize(
    ("said", "warned"),
    [
        ({"kind": "slurm"}, True),
        ({"kind": "local", "cores": 1, "memory": 1000}, True),
        ({"kind": "htcondor"}, False),
        ({"kind": "slurm", "ssh": {"host": "h", "user": "u", "key": "/k", "known_hosts": "/h"}}, False),
    ],
)
def test_a_token_that_jobs_can_read_is_warned_of(said: dict[str, Any], warned: bool, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    system = SystemSettings.model_validate({**said, "directory": str(tmp_path)})

    found = site_process.list_readable([token, tmp_path / "not there"], {"farm": system})

    assert any(each.startswith(f"{token}: jobs of the batch system farm run as") for each in found) is warned


def test_a_kind_of_another_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nqs.py").write_text(
        "from pilotage.fabric.batch.local_host import LocalHost\n"
        "from pilotage.fabric.batch.settings import BatchSystemKind\n"
        "def start(settings, connections):\n"
        "    return LocalHost(directory=str(settings.directory), memory=1, **settings.options)\n"
        "KIND = BatchSystemKind(open=start, allowed=frozenset({'options'}))\n"
        "WRONG = 1\n"
    )
    facts = tmp_path / "nqs-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: nqs\nVersion: 1\n")
    points = ["nqs = nqs:KIND", "wrong = nqs:WRONG", "absent = nqs:ABSENT"]
    (facts / "entry_points.txt").write_text("\n".join([f"[{settings.GROUP}]", *points]))
    monkeypatch.syspath_prepend(tmp_path)

    with ExitStack() as stack:
        told = SystemSettings.model_validate(
            {"kind": "nqs", "directory": str(tmp_path), "options": {"cores": 3}}
        )
        system = settings.open_system(told, Connections(stack=stack))

    assert isinstance(system, LocalHost)
    assert system.cores == 3
    for kind, message in (
        ("wrong", "wrong = nqs:WRONG is no BatchSystemKind"),
        ("absent", "nqs:ABSENT cannot be loaded"),
        ("nsq", "only absent, .*command, .*nqs, "),
    ):
        with pytest.raises(ValueError, match=message):
            SystemSettings.model_validate({"kind": kind, "directory": str(tmp_path)})


class MauiSettings(CommandSettings):
    """Settings of a kind of another package."""

    cell: str
    cores_per_cell: int = Field(default=1, ge=1)


MAUI = BatchSystemKind(
    open=lambda settings, _: LocalHost(directory=settings.cell, cores=settings.cores_per_cell, memory=1),
    settings=MauiSettings,
)


@pytest.fixture
def maui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a kind whose settings are a class of its own."""
    facts = tmp_path / "maui-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: maui\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(f"[{settings.GROUP}]\nmaui = maui:KIND\n")
    (tmp_path / "maui.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("maui.KIND", MAUI, raising=False)


@pytest.mark.usefixtures("maui")
def test_a_kind_of_another_package_names_its_settings_once() -> None:
    told = {"kind": "maui", "directory": "/j/{ce}", "cell": "{endpoint}", "cores_per_cell": 3}
    system = SystemSettings.model_validate(told)
    assert settings.is_template(system)

    filled = settings.fill_template(system, "ce1", "cell7.a.org")

    with ExitStack() as stack:
        opened = settings.open_system(filled, Connections(stack=stack))
    assert isinstance(filled, MauiSettings)
    assert isinstance(opened, LocalHost)
    assert (filled.job_directory, opened.directory, opened.cores) == (Path("/j/ce1"), "cell7.a.org", 3)


@pytest.mark.usefixtures("maui")
@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"cell": "a", "cores_per_cell": 0},
            "systems/x/cores_per_cell: 0 is not allowed, allowed is at least 1",
        ),
        (
            {"cores_per_cel": 2},
            "systems/x/cores_per_cel: unknown setting, did you mean cores_per_cell?",
        ),
        pytest.param(
            {"cell": "a", "ce": {"url": ""}},
            "systems/x/ce: only systems of the kind arc have such a setting",
            marks=needs("arc"),
        ),
    ],
)
def test_what_is_wrong_with_them_is_told_with_its_place(said: dict[str, Any], message: str) -> None:
    content = {
        "name": "north",
        "url": "https://p.example.org",
        "vos": {"cms": {"token_file": "/t"}},
        "systems": {"x": {"kind": "maui", "directory": "/j", **said}},
        "queues": [{"queue": "A/b/c", "system": "x"}],
    }
    with pytest.raises(InvalidDirector) as refused:
        configuration.read_file(content, "d.yaml")
    assert message in str(refused.value)


def test_an_empty_value_of_what_other_kinds_have_is_none() -> None:
    """As in files of release 1.0."""
    told = {"kind": "local", "directory": "/j", "cores": 1, "memory": 1, "ssh": None, "flags": []}
    assert SystemSettings.model_validate(told).kind == "local"


@pytest.mark.parametrize(
    ("names", "takes_flags"),
    [
        ({"allowed": frozenset({"options"})}, False),
        ({"allowed": frozenset({"options", "flags"})}, True),
        ({"needed": ("options",)}, True),
    ],
)
def test_a_kind_of_the_earlier_release_has_options_and_perhaps_flags_and_no_directory(
    tmp_path: Path, names: dict[str, Any], takes_flags: bool
) -> None:
    kind = BatchSystemKind(open=MAUI.open, **names)
    system = kind.settings.model_validate({"kind": "nqs", "options": {"cell": "a"}})

    assert isinstance(system, FormerSettings)
    assert system.options == {"cell": "a"}
    assert bool(system.languages) is takes_flags
    assert system.job_directory is None
    assert not system.lets_jobs_read(tmp_path)
