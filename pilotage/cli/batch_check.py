"""`pilotage-batch-check`: whether a batch system does what directors and job managers rely on."""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from pilotage.cli import application, batch_systems, options, output, told_file
from pilotage.cli.failures import REFUSED, WrongUsage
from pilotage.fabric.batch.arc.settings import ComputingElement
from pilotage.fabric.batch.batch_system import Resources
from pilotage.fabric.batch.conformance.bench import Bench, Violated
from pilotage.fabric.batch.conformance.conformance import CHECKS
from pilotage.fabric.batch.conformance.glitches import GlitchyShell
from pilotage.fabric.batch.conformance.glitchy_http import GlitchyHttp
from pilotage.fabric.batch.dialect import shipped_dialects
from pilotage.fabric.batch.dialect.dialect import PARTS, Dialect, InvalidDialect, changed
from pilotage.fabric.batch.errors import BatchSystemAway, SubmissionRefused, SubmissionUncertain
from pilotage.fabric.batch.local_host import QUEUE, LocalHost
from pilotage.fabric.batch.settings import SPOKEN, Kind
from pilotage.fabric.batch.shell import LocalShell
from pilotage.fabric.batch.work_area import WorkAreas
from pilotage.fabric.director import configuration
from pilotage.fabric.director.configuration import InvalidDirector
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
        Path | None,
        typer.Option(help="Where the jobs' files lie; the batch system's nodes have to see it, too."),
    ] = None,
    queue: Annotated[str, typer.Option(help="The queue that takes the jobs.")] = QUEUE,
    memory: Annotated[int | None, typer.Option(min=1, help="MB that each job asks for.")] = None,
    wall_time: Annotated[int | None, typer.Option(min=60, help="Seconds that each job asks for.")] = None,
    dialect: Annotated[
        Path | None,
        typer.Option(help="For command: its commands and answers (YAML); for pbs and lsf: what differs."),
    ] = None,
    ce: Annotated[
        Path | None, typer.Option(help="For arc: what a director's file says under `ce` (YAML).")
    ] = None,
    patience: Annotated[float, typer.Option(help="Seconds until a small job has ended.")] = 120,
    only: Annotated[list[str] | None, typer.Option(help="This check only; may be repeated.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Run every check that a batch system has to pass, with real jobs of one core, and remove them again."""
    names = _chosen(only)
    with contextlib.ExitStack() as stack:
        bench = _bench(kind, queue, stack, directory=directory, dialect=dialect, ce=ce)
        bench.resources, bench.patience = Resources(memory=memory, wall_time=wall_time), patience
        outcomes = list(_outcomes(bench, names, quiet=as_json))
    table = output.table(("", "Check", "#Seconds", "What must hold, or does not"), ())
    for each in outcomes:
        sign = "[green]passed[/]" if each.passed else "[red]failed[/]"
        table.add_row(sign, each.check, f"{each.seconds:.1f}", output.escape(each.message))
    output.emit([asdict(each) for each in outcomes], as_json=as_json, render=lambda: table)
    if not all(each.passed for each in outcomes):
        raise typer.Exit(REFUSED)


def _bench(
    kind: Kind,
    queue: str,
    stack: contextlib.ExitStack,
    *,
    directory: Path | None,
    dialect: Path | None,
    ce: Path | None,
) -> Bench:
    spoken = _dialect(kind, dialect)
    if kind is Kind.ARC:
        http = GlitchyHttp()
        system = batch_systems.arc(_computing_element(ce), stack, connect=http.connect)
        return Bench(system=system, queue=queue, faults=http, gentle=False, poll=2)
    if directory is None:
        raise WrongUsage(f"{kind}: give a --directory")
    path = str(directory.absolute())
    if kind is Kind.LOCAL:
        return Bench(system=LocalHost(directory=path, cores=4, memory=4000), queue=queue)
    shell = GlitchyShell(shell=LocalShell())
    areas = WorkAreas(directory=path, shell=shell)
    system = batch_systems.commanded(kind, areas, dialect=spoken)
    return Bench(system=system, queue=queue, faults=shell)


def _computing_element(file: Path | None) -> ComputingElement:
    if file is None:
        raise WrongUsage("arc: give its --ce")
    content = told_file.parsed(file, InvalidDirector)
    return configuration.checked(ComputingElement, content, str(file), InvalidDirector, ())


def _dialect(kind: Kind, file: Path | None) -> Dialect | None:
    """The shipped dialect with what the file changes, or the file's own."""
    if kind not in SPOKEN:
        if file is not None:
            raise WrongUsage(f"--dialect: {kind} has none, it is for {', '.join(sorted(SPOKEN))}")
        return None
    if kind is Kind.COMMAND and file is None:
        raise WrongUsage("command: give its --dialect")
    content = {} if file is None else told_file.parsed(file, InvalidDialect)
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
