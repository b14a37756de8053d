"""Commands that change jobs, `pilotage job wait` and `pilotage job output`."""

import inspect
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pilotage.cli import options, output
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import REFUSED, CommandRefused, WrongUsage, harmless
from pilotage.cli.options import CommandFunction, JobFilters
from pilotage.cli.output import Entry
from pilotage.client import changes, outputs, waiting
from pilotage.client.api import ServiceClient
from pilotage.client.changes import JOB_VERBS, JobVerb
from pilotage.client.outputs import FetchedOutputs
from requirements.assignments import parse_assignments
from requirements.errors import format_count, format_ids
from requirements.states import FINAL, JobStatus

SetValues = Annotated[
    list[str] | None,
    options.option(
        "NAME=VALUE",
        "Another value of a keyword, or in the Requirements, such as Memory=6000; an empty one takes it "
        "away. May be given several times.",
        "--set",
    ),
]


#: Words that the help of each change shows after its name.
_EXAMPLES = {
    "kill": "--group scan --status Waiting --dry-run",
    "delete": "--status Failed --before 30d",
    "reschedule": "--site LCG.CERN.ch --status Stalled",
    "reset": "12-40",
    "hold": "--group scan",
    "release": "--group scan",
    "edit": "--group scan --set Memory=6000",
    "resubmit": "--group scan --status Failed --set Memory=6000",
}


def _change_command(change: JobVerb) -> CommandFunction:
    """The command of a change; it prints the changed or the new jobs, and why others are as they were."""

    def command(
        ids: options.JobIds = None,
        *,
        filters: JobFilters,
        values: SetValues = None,
        yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, also on a terminal.")] = False,
        dry_run: Annotated[
            bool,
            typer.Option(
                "--dry-run", help="Only count the jobs that would be changed, and check other values."
            ),
        ] = False,
        service: ServiceOptions,
    ) -> None:
        wanted, given = _selected(ids, filters)
        read = _read_values(values or ())
        if change is changes.EDIT and not read:
            raise WrongUsage("give at least one --set NAME=VALUE")
        with service.connect() as client:
            asks = bool(given) and not yes and output.is_interactive()
            counts = changes.foresee(client, change, given, wanted) if dry_run or asks else []
            foreseen: Entry = {}
            if counts and read:
                foreseen = changes.change_all(
                    client, change, given, wanted, warn=output.warn, values=read, dry_run=True
                )
                _tell_refused(foreseen["refused"])
            if dry_run:
                found = {name: foreseen[name] for name in ("refused", "warnings") if foreseen}
                without = (
                    f", but for {len(refused)} that it refuses"
                    if (refused := foreseen.get("refused"))
                    else ""
                )
                service.emit(
                    {"counts": counts, **found}, lambda: f"Would {change.name} {_describe(counts)}{without}"
                )
                if refused:
                    raise typer.Exit(REFUSED)
                return
            if asks:
                _ask(change, counts)
            result = changes.change_all(client, change, given, wanted, warn=output.warn, values=read)
        changed, refused = result["job_ids"], result["refused"]
        shown = f"{change.done} {len(changed)}: {format_ids(changed) or 'none'}"
        service.emit(
            {"job_ids": changed, "refused": refused},
            lambda: "\n".join(map(str, changed)) if change.makes_jobs else shown,
        )
        _tell_refused(refused)
        if refused:
            raise typer.Exit(REFUSED)

    example = f"Example: `pilotage job {change.name} {_EXAMPLES[change.name]}`."
    command.__name__, command.__doc__ = change.name, f"{change.summary}\n\n{example}"
    parameters = inspect.signature(command).parameters.values()
    return options.with_signature(
        command, [each for each in parameters if change.sets or each.name != "values"]
    )


def _tell_refused(refused: Sequence[Entry]) -> None:
    for each in refused:
        job, reason = f"job {each['job_id']}", each["reason"]
        line = reason if reason.startswith(f"{job} ") else f"{job}: {reason}"
        typer.echo(f"pilotage: {line}", err=True)


def _describe(counts: Sequence[Entry]) -> str:
    """The number of jobs, their owners, and how many are in each status."""
    if not counts:
        return "no job"
    by_status: Counter[str] = Counter()
    for row in counts:
        by_status[row["status"]] += row["count"]
    owners = list(dict.fromkeys(row["owner"] for row in counts))
    whose = owners[0] if len(owners) == 1 else f"{len(owners)} owners"
    statuses = ", ".join(f"{number:,} {status}" for status, number in by_status.most_common())
    return f"{format_count(by_status.total(), 'job')} of {whose} ({statuses})"


def _ask(change: JobVerb, counts: Sequence[Entry]) -> None:
    """Ask before a change of jobs that are not named; the command ends if it is not wanted."""
    if counts and not typer.confirm(f"{change.name.capitalize()} {_describe(counts)}?", err=True):
        raise typer.Exit(REFUSED)


def _read_values(words: Sequence[str]) -> dict[str, object]:
    try:
        return parse_assignments(words)
    except ValueError as error:
        raise WrongUsage(f"--set {error}: give NAME=VALUE, such as Memory=6000") from None


kill, delete, reschedule, reset, hold, release, edit, resubmit = map(_change_command, JOB_VERBS)


def _selected(words: list[str] | None, filters: JobFilters) -> tuple[list[int], dict[str, str]]:
    ids, given = options.parse_ids(words), options.given_options(filters)
    if bool(ids) == bool(given):
        raise WrongUsage("give either job ids or filters such as --status")
    return ids, given


def wait(
    ids: options.JobIds = None,
    *,
    filters: JobFilters,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0, help="Give up after this many seconds.")
    ] = None,
    service: ServiceOptions,
) -> None:
    """Wait until jobs have ended; exit status 0 if all are Done, else 1, as if there are none.

    Example: `pilotage job wait --group scan --timeout 7200`.
    """
    wanted, given = _selected(ids, filters)
    with service.connect() as client:
        if given:
            wanted = waiting.find_ids(client, given)
        statuses = until_final(client, wanted, timeout=timeout)
    counts = Counter(statuses.values())
    summary = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    jobs = format_count(len(statuses), "job")
    service.emit({"jobs": statuses, "counts": counts}, lambda: f"{jobs}: {summary}" if summary else "no jobs")
    if set(counts) != {JobStatus.DONE}:
        raise typer.Exit(REFUSED)


def until_final(client: ServiceClient, ids: Sequence[int], *, timeout: float | None) -> Mapping[int, str]:
    """The status of each job, when all have ended or time is up, as by `waiting.follow_statuses`."""

    def warn(error: Exception) -> None:
        typer.echo(f"pilotage: {error}; waiting", err=True)

    statuses: Mapping[int, str] = {}
    with WaitingBars(len(ids), client.job) as bars:
        for statuses in waiting.follow_statuses(client, ids, timeout=timeout, warn=warn):
            running = [job_id for job_id, status in statuses.items() if status == JobStatus.RUNNING]
            ended = sum(status in FINAL for status in statuses.values())
            bars.show(ended=ended, total=len(ids), running=running)
    return statuses


#: Jobs whose phases are shown; each needs its own request.
_MOST_SHOWN = 5
#: Seconds between two updates of the phases.
_EVERY = 2.0


class WaitingBars:
    """Progress bars of ended jobs and phases of grid jobs; a context manager, silent without a terminal."""

    def __init__(
        self,
        total: int,
        job: Callable[[int], Entry],
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the bars for so many jobs; `job` fetches one of them."""
        shown = console or output.progress_console()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal)
        self._all = self._progress.add_task("Waiting", total=total, note=f"0 of {format_count(total, 'job')}")
        self._job = job
        self._clock = clock
        self._updated_at: float | None = None
        self._phases: dict[tuple[int, str], TaskID] = {}
        self._many = total > 1

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, *, ended: int, total: int, running: Sequence[int]) -> None:
        """Update the number of ended jobs, and the phases of running grid jobs."""
        self._progress.update(self._all, completed=ended, note=f"{ended:,} of {format_count(total, 'job')}")
        now = self._clock()
        if self._progress.disable or (self._updated_at is not None and now - self._updated_at < _EVERY):
            return
        self._updated_at = now
        self._show_phases(running[:_MOST_SHOWN])

    def _show_phases(self, job_ids: Sequence[int]) -> None:
        seen = {
            (job_id, phase["name"]): phase
            for job_id in job_ids
            for phase in (self._job(job_id).get("attempt") or {}).get("phases", ())
        }
        for key in [key for key in self._phases if key not in seen]:
            self._progress.remove_task(self._phases.pop(key))
        for key, phase in seen.items():
            note = f"{phase['done']:,} of {phase['of']:,} {phase.get('unit', '')}".strip()
            values = {"completed": phase["done"], "total": phase["of"], "note": note}
            if key in self._phases:
                self._progress.update(self._phases[key], **values)
            else:
                name = f"{key[0]} {key[1]}" if self._many else key[1]
                self._phases[key] = self._progress.add_task(name, **values)


#: Default limit of an unpacked output: an archive may be built to fill the disk.
_MOST_GB = 50.0
#: Statuses of jobs whose output a filter without a status means.
_WITH_OUTPUT = ",".join(each for each in JobStatus if each in FINAL and each is not JobStatus.DELETED)


def fetch_output(
    ids: options.JobIds = None,
    *,
    filters: JobFilters,
    directory: Annotated[
        Path, options.option("DIR", "Create a subdirectory for each job here.", "--directory", "-d")
    ] = Path(),
    most: Annotated[
        float,
        typer.Option(
            "--most", min=0, metavar="GB", help="Reject an output that is larger than this after unpacking."
        ),
    ] = _MOST_GB,
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Leave out jobs whose directory has files already.")
    ] = False,
    parallel: Annotated[
        int, typer.Option(metavar="N", min=1, max=32, help="Downloads at a time.")
    ] = outputs.PARALLEL,
    service: ServiceOptions,
) -> None:
    """Download the output files of each job into a new directory named after its id.

    By filters, of the jobs that have ended.

    Example: `pilotage job output --group scan --skip-existing`.
    """
    wanted, given = _selected(ids, filters)
    with service.connect() as client:
        if given:
            wanted = _find_ended(client, given)
        found = outputs.fetch_all(
            client,
            wanted,
            directory,
            most=int(most * (1 << 30)),
            skip_existing=skip_existing,
            parallel=parallel,
        )
    _report_output(found, service)


def _find_ended(client: ServiceClient, filters: Mapping[str, str]) -> list[int]:
    """The jobs that a filter selects and that may have an output."""
    ids = sorted(waiting.find_ids(client, {"status": _WITH_OUTPUT, **filters}))
    if "status" not in filters:
        counts = client.summary(by=["status"], filters=filters)
        if left := sum(row["count"] for row in counts if row["status"] not in FINAL):
            verb = "has" if left == 1 else "have"
            typer.echo(f"pilotage: {format_count(left, 'job')} {verb} not ended: no output yet", err=True)
    if not ids:
        raise CommandRefused("no job that has ended passes the filters")
    return ids


def _report_output(found: FetchedOutputs, service: ServiceOptions) -> None:
    shown = {str(job_id): [_printable_name(file) for file in files] for job_id, files in found.files.items()}
    lines = [file.replace("\n", r"\n") for files in shown.values() for file in files]
    if found.skipped:
        skipped = format_count(len(found.skipped), "job")
        typer.echo(f"pilotage: {skipped} skipped: {format_ids(found.skipped)}", err=True)
    if found.files or found.skipped:
        answer = {"files": shown, "skipped": found.skipped}
        service.emit(answer, lambda: "\n".join(lines) or ("no files" if found.files else ""))
    if found.refused:
        raise CommandRefused(harmless("\n".join(found.refused.values())))


def _printable_name(file: Path) -> str:
    """The file name as text, also where it is not UTF-8."""
    return os.fsencode(file).decode(errors="backslashreplace")
