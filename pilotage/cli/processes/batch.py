"""Adapters of batch systems from settings; `pilotage-batch-check` checks a batch system with real jobs."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from pilotage.cli import application, options, output
from pilotage.cli.errors import REFUSED, WrongUsage
from pilotage.cli.processes import site_file
from pilotage.fabric.batch.arc import rest as arc_rest
from pilotage.fabric.batch.arc.arc import Arc
from pilotage.fabric.batch.arc.rest import ArcRest, ComputingElement, Connect
from pilotage.fabric.batch.batch_system import (
    BatchSystem,
    BatchSystemAway,
    JobResources,
    SubmissionRefused,
    SubmissionUncertain,
)
from pilotage.fabric.batch.conformance.conformance import CHECKS, Bench, Violated
from pilotage.fabric.batch.conformance.fault_injection import FaultyHttp, FaultyShell
from pilotage.fabric.batch.dialect import dialect as dialect_dialect
from pilotage.fabric.batch.dialect.command import DialectSystem
from pilotage.fabric.batch.dialect.dialect import PARTS, Dialect, InvalidDialect, merge_dialect
from pilotage.fabric.batch.grid_engine import GridEngine
from pilotage.fabric.batch.htcondor.htcondor import HTCondor
from pilotage.fabric.batch.local_host import QUEUE, LocalHost
from pilotage.fabric.batch.settings import SPOKEN, BatchSystemKind, SystemSettings
from pilotage.fabric.batch.shell import LocalShell, Shell
from pilotage.fabric.batch.slurm.slurm import Slurm
from pilotage.fabric.batch.ssh_shell import Host, SshShell
from pilotage.fabric.batch.work_area import WorkAreas
from pilotage.fabric.director import configuration
from pilotage.fabric.director.configuration import InvalidDirector
from requirements.errors import did_you_mean

log = logging.getLogger(__name__)

_OWN: Mapping[BatchSystemKind, Callable[..., BatchSystem]] = {
    BatchSystemKind.SLURM: Slurm,
    BatchSystemKind.GRID_ENGINE: GridEngine,
    BatchSystemKind.HTCONDOR: HTCondor,
}


def open_system(described: SystemSettings, stack: ExitStack) -> BatchSystem:
    """The batch system described by settings; the stack closes its connections."""
    if described.ce is not None:
        return open_arc(described.ce, stack, flags=described.flags)
    directory = str(described.directory)
    if described.kind is BatchSystemKind.LOCAL:
        return LocalHost(directory=directory, cores=described.cores or 0, memory=described.memory or 0)
    areas = WorkAreas(directory=directory, shell=open_shell(described, stack))
    return build_command_system(described.kind, areas, flags=described.flags, dialect=described.dialect)


def warn_of_readable(secrets: Iterable[Path], systems: Mapping[str, SystemSettings]) -> None:
    """Warn of secrets that jobs can read: on the file system of the jobs' files, with the same account.

    Not affected: systems over SSH (jobs of another account), HTCondor (no shared directory), ARC.
    """
    for name, each in systems.items():
        if each.ssh is None and each.directory is not None and each.kind is not BatchSystemKind.HTCONDOR:
            for secret in secrets:
                if each.kind is BatchSystemKind.LOCAL or _share_a_disk(secret, each.directory):
                    log.warning(
                        "%s: jobs of the batch system %s run as this account and may read it: "
                        "keep it on a disk that its nodes do not see, or submit over ssh as another account",
                        secret,
                        name,
                    )


def _share_a_disk(one: Path, other: Path) -> bool:
    try:
        return one.stat().st_dev == other.stat().st_dev
    except OSError:  # not made yet, or away
        return False


def open_shell(described: SystemSettings, stack: ExitStack) -> Shell:
    """The shell for the commands of a batch system; the stack closes its connection."""
    if described.ssh is None:
        return LocalShell(environment=described.environment)
    host = Host(
        name=described.ssh.host,
        known_hosts=described.ssh.known_hosts,
        user=described.ssh.user,
        key=described.ssh.key,
        port=described.ssh.port,
        environment=described.environment,
    )
    remote = SshShell(host)
    stack.callback(remote.close)
    return remote


def build_command_system(
    kind: BatchSystemKind, areas: WorkAreas, *, flags: tuple[str, ...] = (), dialect: Dialect | None = None
) -> BatchSystem:
    """A batch system driven by commands; `dialect` is for the kinds without an adapter of their own."""
    if dialect is not None:
        return DialectSystem(areas=areas, flags=flags, dialect=dialect)
    return _OWN[kind](areas=areas, flags=flags)


def open_arc(
    ce: ComputingElement,
    stack: ExitStack,
    *,
    flags: tuple[str, ...] = (),
    connect: Connect = arc_rest.connect,
) -> BatchSystem:
    """An ARC CE, driven over HTTP; the stack closes its connections."""
    rest = ArcRest(ce.url, ce.credentials(), connect=connect)
    stack.callback(rest.close)
    return Arc(rest=rest, environments=flags)


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
    kind: Annotated[BatchSystemKind, typer.Argument(help="Kind of batch system.")],
    *,
    directory: Annotated[
        Path | None,
        typer.Option(help="Directory for the files of jobs, shared with the nodes of the batch system."),
    ] = None,
    queue: Annotated[str, typer.Option(help="Batch queue for the jobs.")] = QUEUE,
    memory: Annotated[int | None, typer.Option(min=1, help="Memory of each job in MB.")] = None,
    wall_time: Annotated[int | None, typer.Option(min=60, help="Wall time of each job in seconds.")] = None,
    dialect: Annotated[
        Path | None,
        typer.Option(help="For command: dialect file (YAML); for pbs and lsf: changes of their dialect."),
    ] = None,
    ce: Annotated[
        Path | None, typer.Option(help="For arc: file with the section `ce` of a director file (YAML).")
    ] = None,
    patience: Annotated[float, typer.Option(help="Timeout in seconds for a small job.")] = 120,
    only: Annotated[list[str] | None, typer.Option(help="Run only this check; may be repeated.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a batch system with real jobs of one core, which are removed afterwards."""
    names = _choose_checks(only)
    with contextlib.ExitStack() as stack:
        bench = _bench(kind, queue, stack, directory=directory, dialect=dialect, ce=ce)
        bench.resources, bench.patience = JobResources(memory=memory, wall_time=wall_time), patience
        outcomes = list(_run_checks(bench, names, quiet=as_json))
    table = output.table(("", "Check", "#Seconds", "Rule, or its violation"), ())
    for each in outcomes:
        sign = "[green]passed[/]" if each.passed else "[red]failed[/]"
        table.add_row(sign, each.check, f"{each.seconds:.1f}", output.escape(each.message))
    output.emit([asdict(each) for each in outcomes], as_json=as_json, render=lambda: table)
    if not all(each.passed for each in outcomes):
        raise typer.Exit(REFUSED)


def _bench(
    kind: BatchSystemKind,
    queue: str,
    stack: contextlib.ExitStack,
    *,
    directory: Path | None,
    dialect: Path | None,
    ce: Path | None,
) -> Bench:
    spoken = _dialect(kind, dialect)
    if kind is BatchSystemKind.ARC:
        http = FaultyHttp()
        system = open_arc(_computing_element(ce), stack, connect=http.connect)
        return Bench(system=system, queue=queue, faults=http, gentle=False, poll=2)
    if directory is None:
        raise WrongUsage(f"{kind}: give a --directory")
    path = str(directory.absolute())
    if kind is BatchSystemKind.LOCAL:
        return Bench(system=LocalHost(directory=path, cores=4, memory=4000), queue=queue)
    shell = FaultyShell(shell=LocalShell())
    areas = WorkAreas(directory=path, shell=shell)
    system = build_command_system(kind, areas, dialect=spoken)
    return Bench(system=system, queue=queue, faults=shell)


def _computing_element(file: Path | None) -> ComputingElement:
    if file is None:
        raise WrongUsage("arc: give its --ce")
    content = site_file.parse_file(file, InvalidDirector)
    return configuration.validate_file(ComputingElement, content, str(file), InvalidDirector, ())


def _dialect(kind: BatchSystemKind, file: Path | None) -> Dialect | None:
    """The shipped dialect with the changes of the file, or the dialect of the file."""
    if kind not in SPOKEN:
        if file is not None:
            raise WrongUsage(f"--dialect: {kind} has none, it is for {', '.join(sorted(SPOKEN))}")
        return None
    if kind is BatchSystemKind.COMMAND and file is None:
        raise WrongUsage("command: give its --dialect")
    content = {} if file is None else site_file.parse_file(file, InvalidDialect)
    if kind in dialect_dialect.NAMES and isinstance(content, Mapping):
        content = merge_dialect(dialect_dialect.shipped_content(kind), content)
    return configuration.validate_file(Dialect, content, str(file), InvalidDialect, PARTS)


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
