"""`pilotage-batch-check` checks a batch system with real jobs."""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from pilotage.cli import application, options, output
from pilotage.cli import settings as cli_settings
from pilotage.cli.errors import REFUSED, WrongUsage
from pilotage.fabric.batch import settings
from pilotage.fabric.batch.batch_system import (
    BatchSystemAway,
    JobResources,
    SubmissionRefused,
    SubmissionUncertain,
)
from pilotage.fabric.batch.local_host import QUEUE
from pilotage.fabric.batch.settings import Connections, SystemSettings
from pilotage.fabric.batch.shell import Shell
from pilotage.fabric.director import configuration
from pilotage.fabric.director.configuration import InvalidDirector
from pilotage.plugins.batch_check.conformance import CHECKS, Bench, Violated
from pilotage.plugins.batch_check.fault_injection import FaultyHttp, FaultyShell
from requirements.errors import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """The result of one check."""

    check: str
    passed: bool
    seconds: float
    message: str  #: the rule, or how it was violated


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the checks and exit: 0 all passed, 1 one did not, 2 wrong usage."""
    words = sys.argv[1:] if arguments is None else arguments
    application.run(_application, words or ["--help"], name="pilotage-batch-check")


def _application() -> typer.Typer:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(batch_check)
    return app


def batch_check(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="Kind of batch system, as in the file of a director; with --config its name."
        ),
    ],
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of a director or gateway: check the system of this name as it is there.",
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Directory for the files of jobs, shared with the nodes of the batch system."
        ),
    ] = None,
    queue: Annotated[str, typer.Option(metavar="NAME", help="Batch queue for the jobs.")] = QUEUE,
    memory: Annotated[int | None, typer.Option(metavar="MB", min=1, help="Memory of each job in MB.")] = None,
    wall_time: Annotated[
        int | None, typer.Option(metavar="S", min=60, help="Wall time of each job in seconds.")
    ] = None,
    dialect: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For command: dialect file (YAML); for other kinds: changes of their dialect.",
        ),
    ] = None,
    ce: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For arc: file with the section `ce` of a director file (YAML)."),
    ] = None,
    schedd: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="For htcondor: file with the section `schedd` of a director file (YAML)."
        ),
    ] = None,
    more: Annotated[
        Path | None,
        typer.Option(
            "--options",
            metavar="FILE",
            help="For kinds of other packages: file with the section `options` (YAML).",
        ),
    ] = None,
    patience: Annotated[float, typer.Option(metavar="S", help="Timeout in seconds for a small job.")] = 120,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="Run only this check; may be repeated.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a batch system with real jobs of one core, which are removed afterwards.

    Example: `pilotage-batch-check slurm --queue long`.
    """
    names = _choose_checks(only)
    with contextlib.ExitStack() as stack:
        files = {"dialect": dialect, "ce": ce, "schedd": schedd, "options": more}
        if config is None:
            described = _settings(kind, directory, files)
        else:
            given = {**files, "directory": directory}
            described = _find_system(config, kind, [name for name, each in given.items() if each is not None])
        bench = _bench(described, queue, stack)
        bench.resources, bench.patience = JobResources(memory=memory, wall_time=wall_time), patience
        outcomes = list(_run_checks(bench, names, quiet=as_json))
    headings = ("", "Check", "#Seconds", "Rule, or its violation")
    rows = (
        ("passed" if each.passed else "failed", each.check, f"{each.seconds:.1f}", each.message)
        for each in outcomes
    )
    data = [asdict(each) for each in outcomes]
    output.emit(data, as_json=as_json, render=lambda: output.table(headings, rows))
    if not all(each.passed for each in outcomes):
        raise typer.Exit(REFUSED)


def _find_system(file: Path, name: str, given: Sequence[str]) -> SystemSettings:
    """The settings of a system in the file of a director or gateway; `given` are options that it replaces."""
    if given:
        raise WrongUsage(f"--{given[0]}: {file} has the settings of the system")
    content = cli_settings.load_yaml(file, InvalidDirector)
    systems = content.get("systems") if isinstance(content, Mapping) else None
    if not isinstance(systems, Mapping) or name not in systems:
        known = ", ".join(map(str, systems)) if isinstance(systems, Mapping) else "none"
        raise WrongUsage(f"{file}: there is no system {name}, there are {known}")
    found = configuration.validate_file(SystemSettings, systems[name], str(file), InvalidDirector)
    if settings.is_template(found):
        raise WrongUsage(
            f"{file}: the system {name} is one for each CE: check it without {{ce}} and {{endpoint}}"
        )
    return found


def _settings(kind: str, directory: Path | None, files: Mapping[str, Path | None]) -> SystemSettings:
    """The settings of the system to check; files by the name of their setting."""
    try:
        known = settings.load_kind(kind).settings.model_fields
    except ValueError as error:
        raise WrongUsage(f"{kind}: {error}") from None
    content: dict[str, object] = {"kind": kind}
    content |= {name: value for name, value in _DEFAULTS.items() if name in known}
    content |= {name: _read_section(kind, name, file) for name, file in files.items() if file is not None}
    if directory is not None and "directory" in known:
        content["directory"] = directory.absolute()
    if missing := settings.find_missing(content):
        raise WrongUsage(f"{kind}: give its --{missing}")
    place = ", ".join(str(file) for file in files.values() if file is not None) or kind
    return configuration.validate_file(SystemSettings, content, place, InvalidDirector)


#: Of this host, for the kind `local`.
_DEFAULTS: Final = {"cores": 4, "memory": 4000}


def _read_section(kind: str, name: str, file: Path) -> object:
    """A setting of a kind from a file of its own."""
    if name not in settings.load_kind(kind).settings.model_fields:
        kinds = ", ".join(settings.list_kinds_with(name))
        raise WrongUsage(f"--{name}: {kind} has none" + (f", it is for {kinds}" if kinds else ""))
    content = cli_settings.load_yaml(file, InvalidDirector)
    if not isinstance(content, dict):
        raise WrongUsage(f"--{name}: {file} holds no settings by name")
    return content


def _bench(described: SystemSettings, queue: str, stack: contextlib.ExitStack) -> Bench:
    """The system to check, with faults in what it connects through, or else at its interface."""
    shells: list[FaultyShell] = []
    http = FaultyHttp()

    def wrap(shell: Shell) -> Shell:
        shells.append(FaultyShell(shell=shell))
        return shells[-1]

    system = settings.open_system(described, Connections(stack=stack, wrap=wrap, wrap_http=http.wrap))
    if http.is_used:
        return Bench(system=system, queue=queue, faults=http, gentle=False, poll=2)
    return Bench(
        system=system,
        queue=queue,
        faults=shells[0] if shells else None,
        knows_queues=not described.is_remote,
        gentle=not described.is_remote,
    )


def _choose_checks(only: list[str] | None) -> list[str]:
    for name in only or ():
        if name not in CHECKS:
            meant = did_you_mean(name, CHECKS)
            hint = f"did you mean {meant}?" if meant else f"there are {', '.join(CHECKS)}"
            raise WrongUsage(f"--only {name}: no such check, {hint}")
    return only or list(CHECKS)


def _run_checks(bench: Bench, names: Sequence[str], *, quiet: bool) -> Iterator[CheckOutcome]:
    progress = output.progress_console()
    for name in names:
        if not quiet:
            progress.print(f"{name} …", style="dim")
        yield _run_check(bench, name)


def _run_check(bench: Bench, name: str) -> CheckOutcome:
    begin = time.monotonic()
    message, passed = (CHECKS[name].__doc__ or "").strip(), True
    try:
        with contextlib.closing(bench):
            CHECKS[name](bench)
    except (Violated, BatchSystemAway, SubmissionRefused, SubmissionUncertain) as error:
        message, passed = str(error), False
    return CheckOutcome(
        check=name, passed=passed, seconds=round(time.monotonic() - begin, 1), message=message
    )
