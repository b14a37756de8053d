"""`pilotage-batch-check`: whether a batch system does what directors and job managers rely on."""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from pilotage.cli import application, batch_systems, directing, options, output
from pilotage.cli.failures import REFUSED, WrongUsage
from pilotage.fabric.batch import shipped_dialects
from pilotage.fabric.batch.batch_system import BatchSystem, Resources
from pilotage.fabric.batch.bench import Bench, Violated
from pilotage.fabric.batch.conformance import CHECKS
from pilotage.fabric.batch.dialect import PARTS, Dialect, InvalidDialect, changed
from pilotage.fabric.batch.errors import BatchSystemAway, SubmissionRefused, SubmissionUncertain
from pilotage.fabric.batch.glitches import GlitchyShell
from pilotage.fabric.batch.local_host import QUEUE, LocalHost
from pilotage.fabric.batch.shell import LocalShell
from pilotage.fabric.batch.work_area import WorkAreas
from pilotage.fabric.director import configuration
from pilotage.fabric.director.configuration import SPOKEN, Kind
from requirements.suggestion import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one check found."""

    check: str
    passed: bool
    seconds: float
    message: str  #: what must hold, or what did not


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the checks and exit: 0 all passed, 1 one did not, 2 wrong usage."""
    words = sys.argv[1:] if arguments is None else arguments
    application.run(_application, words or ["--help"], name="pilotage-batch-check")


def _application() -> typer.Typer:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(batch_check)
    return app


def batch_check(
    kind: Annotated[Kind, typer.Argument(help="The batch system.")],
    *,
    directory: Annotated[
        Path, typer.Option(help="Where the jobs' files lie; the batch system's nodes have to see it, too.")
    ],
    queue: Annotated[str, typer.Option(help="The queue that takes the jobs.")] = QUEUE,
    memory: Annotated[int | None, typer.Option(min=1, help="MB that each job asks for.")] = None,
    wall_time: Annotated[int | None, typer.Option(min=60, help="Seconds that each job asks for.")] = None,
    dialect: Annotated[
        Path | None,
        typer.Option(help="For command: its commands and answers (YAML); for pbs and lsf: what differs."),
    ] = None,
    patience: Annotated[float, typer.Option(help="Seconds until a small job has ended.")] = 120,
    only: Annotated[list[str] | None, typer.Option(help="This check only; may be repeated.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Run every check that a batch system has to pass, with real jobs of one core, and remove them again."""
    shell = GlitchyShell(shell=LocalShell())
    bench = Bench(
        system=_system(kind, directory.absolute(), shell, dialect),
        queue=queue,
        faults=None if kind is Kind.LOCAL else shell,
        resources=Resources(memory=memory, wall_time=wall_time),
        patience=patience,
    )
    outcomes = list(_outcomes(bench, _chosen(only), quiet=as_json))
    table = output.table(("", "Check", "#Seconds", "What must hold, or does not"), ())
    for each in outcomes:
        sign = "[green]passed[/]" if each.passed else "[red]failed[/]"
        table.add_row(sign, each.check, f"{each.seconds:.1f}", output.escape(each.message))
    output.emit([asdict(each) for each in outcomes], as_json=as_json, render=lambda: table)
    if not all(each.passed for each in outcomes):
        raise typer.Exit(REFUSED)


def _system(kind: Kind, directory: Path, shell: GlitchyShell, dialect: Path | None) -> BatchSystem:
    if kind is Kind.LOCAL:
        return LocalHost(directory=str(directory), cores=4, memory=4000)
    areas = WorkAreas(directory=str(directory), shell=shell)
    return batch_systems.commanded(kind, areas, dialect=_dialect(kind, dialect))


def _dialect(kind: Kind, file: Path | None) -> Dialect | None:
    """The shipped dialect with what the file changes, or the file's own."""
    if kind not in SPOKEN:
        if file is not None:
            raise WrongUsage(f"--dialect: {kind} has none, it is for {', '.join(sorted(SPOKEN))}")
        return None
    if kind is Kind.COMMAND and file is None:
        raise WrongUsage("command: give its --dialect")
    content = {} if file is None else directing.parsed(file, InvalidDialect)
    if kind in shipped_dialects.NAMES and isinstance(content, Mapping):
        content = changed(shipped_dialects.content(kind), content)
    return configuration.checked(Dialect, content, str(file), InvalidDialect, PARTS)


def _chosen(only: list[str] | None) -> list[str]:
    for name in only or ():
        if name not in CHECKS:
            meant = did_you_mean(name, CHECKS)
            hint = f"did you mean {meant}?" if meant else f"there are {', '.join(CHECKS)}"
            raise WrongUsage(f"--only {name}: no such check, {hint}")
    return only or list(CHECKS)


def _outcomes(bench: Bench, names: Sequence[str], *, quiet: bool) -> Iterator[Outcome]:
    progress = output.progress_console()
    for name in names:
        if not quiet:
            progress.print(f"{name} …", style="dim")
        yield _outcome(bench, name)


def _outcome(bench: Bench, name: str) -> Outcome:
    begin = time.monotonic()
    message, passed = (CHECKS[name].__doc__ or "").strip(), True
    try:
        with contextlib.closing(bench):
            CHECKS[name](bench)
    except (Violated, BatchSystemAway, SubmissionRefused, SubmissionUncertain) as error:
        message, passed = str(error), False
    return Outcome(check=name, passed=passed, seconds=round(time.monotonic() - begin, 1), message=message)
