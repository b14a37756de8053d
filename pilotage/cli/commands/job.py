"""`pilotage job kill`, `delete`, `reschedule`, `reset`, `wait` and `output`."""

import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pilotage.cli import options, output
from pilotage.cli.commands import job_show
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import REFUSED, CommandRefused, WrongUsage, harmless
from pilotage.cli.options import CommandFunction, JobFilters
from pilotage.cli.output import Entry
from pilotage.fabric.client import (
    DELETE,
    KILL,
    RESCHEDULE,
    RESET,
    ApiError,
    JobVerb,
    Json,
    ServiceAway,
    ServiceClient,
    is_passing,
)
from pilotage.fabric.pilot.payload import archives
from requirements.errors import format_count, format_ids
from requirements.states import FINAL, JobStatus


def _change_command(change: JobVerb) -> CommandFunction:
    """The command of a change; it prints the changed jobs, and why others are as they were."""

    def command(ids: options.JobIds = None, *, filters: JobFilters, service: ServiceOptions) -> None:
        wanted, given = _selected(ids, filters)
        with service.connect() as client:
            result = client.change_all(change, given, wanted)
        changed, refused = result["job_ids"], result["refused"]
        service.emit(
            {"job_ids": changed, "refused": refused},
            lambda: f"{change.done} {len(changed)}: {format_ids(changed) or 'none'}",
        )
        for each in refused:
            job, reason = f"job {each['job_id']}", each["reason"]
            line = reason if reason.startswith(f"{job} ") else f"{job}: {reason}"
            typer.echo(f"pilotage: {line}", err=True)
        if refused:
            raise typer.Exit(REFUSED)

    command.__name__, command.__doc__ = change.name, change.summary
    return command


kill, delete, reschedule, reset = map(_change_command, (KILL, DELETE, RESCHEDULE, RESET))


def _selected(words: list[str] | None, filters: JobFilters) -> tuple[list[int], dict[str, str]]:
    ids, given = options.parse_ids(words), options.given_options(filters)
    if bool(ids) == bool(given):
        raise WrongUsage("give either job ids or filters such as --status")
    return ids, given


Events = Iterator[tuple[str, Json | None]]
#: Seconds between two requests for statuses where there are no events: the first, growing to the longest.
_PAUSES = (0.5, 10.0)
#: Seconds of one stream of events.
_STREAM = 300.0
#: Ids that fit into the address of a stream; beyond, the stream has all jobs of the token's bearer.
_MOST_NAMED = 200
#: Jobs that `wait` takes from a filter at most.
_MOST_JOBS = 100_000


def wait(
    ids: options.JobIds = None,
    *,
    filters: JobFilters,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0, help="Give up after this many seconds.")
    ] = None,
    service: ServiceOptions,
) -> None:
    """Wait until jobs have ended; exit status 0 if all are Done, else 1, as if there are none."""
    wanted, given = _selected(ids, filters)
    with service.connect() as client:
        if given:
            wanted = find_ids(client, given)
        statuses = until_final(client, wanted, timeout=timeout)
    counts = Counter(statuses.values())
    summary = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    jobs = format_count(len(statuses), "job")
    service.emit({"jobs": statuses, "counts": counts}, lambda: f"{jobs}: {summary}" if summary else "no jobs")
    if set(counts) != {JobStatus.DONE}:
        raise typer.Exit(REFUSED)


def find_ids(client: ServiceClient, filters: Mapping[str, str]) -> list[int]:
    """The ids of all jobs that pass the filters; `CommandRefused` if there are very many."""
    found = job_show.list_newest(client, filters, _MOST_JOBS)
    if found.next is not None:
        raise CommandRefused(f"more than {_MOST_JOBS:,} jobs pass the filters; narrow them, or name ids")
    return [job["job_id"] for job in found.entries]


def until_final(client: ServiceClient, ids: Sequence[int], *, timeout: float | None) -> Mapping[int, str]:
    """The status of each job, when all have ended or time is up, as by `follow_statuses`."""

    def warn(error: Exception) -> None:
        typer.echo(f"pilotage: {error}; waiting", err=True)

    statuses: Mapping[int, str] = {}
    with WaitingBars(len(ids), client.job) as bars:
        for statuses in follow_statuses(client, ids, timeout=timeout, warn=warn):
            running = [job_id for job_id, status in statuses.items() if status == JobStatus.RUNNING]
            ended = sum(status in FINAL for status in statuses.values())
            bars.show(ended=ended, total=len(ids), running=running)
    return statuses


def follow_statuses(
    client: ServiceClient,
    ids: Sequence[int],
    *,
    timeout: float | None = None,
    warn: Callable[[ServiceAway | ApiError], object] = lambda _: None,
) -> Iterator[Mapping[int, str]]:
    """Yield the statuses of jobs again and again, until all have ended or `timeout` seconds are over.

    They come by events; where there are none, such as behind a proxy that holds them back, by polling. A
    service that was reached once and goes away is waited for; `warn` gets the first error of each such time.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    statuses: dict[int, str] = {}
    ended: set[int] = set()  # as listed: jobs may have gone on since an event with a final status
    pause, has_events, is_away = _PAUSES[0], True, False
    while left := [job_id for job_id in ids if job_id not in ended]:
        is_check = any(statuses.get(job_id) in FINAL for job_id in left)
        can_stream = has_events and not is_check
        events = _open_events(client, left, deadline - time.monotonic()) if can_stream else None
        try:
            statuses |= {job["job_id"]: job["status"] for job in job_show.fetch_jobs(client, left)}
            ended |= {job_id for job_id in left if statuses.get(job_id) in FINAL}
            has_events, is_away = is_check or events is not None, False
        except (ServiceAway, ApiError) as error:
            if not statuses or not is_passing(error):
                raise
            if not is_away:
                warn(error)
            is_away = True
        if unknown := [job_id for job_id in left if job_id not in statuses]:
            raise CommandRefused(f"no job {format_ids(unknown)}")
        yield statuses
        for _ in _update(statuses, events or (), ended):
            if _is_over(statuses, deadline):
                break
            yield statuses
        if not is_away and any(status in FINAL for job_id, status in statuses.items() if job_id not in ended):
            continue  # to see these in the list
        yield statuses
        if ended.issuperset(ids) or time.monotonic() >= deadline:
            return
        time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
        pause = _PAUSES[0] if has_events else min(1.5 * pause, _PAUSES[1])


def _update(statuses: dict[int, str], events: Iterable[tuple[str, Json | None]], ended: set[int]) -> Events:
    """Apply each event to the statuses of jobs that are there and not among the ended ones, and yield it."""
    for cursor, change in events:
        if change is not None and (job_id := change["job_id"]) in statuses and job_id not in ended:
            statuses[job_id] = change["to"]
        yield cursor, change


def follow_changes(client: ServiceClient, filters: Mapping[str, str]) -> Iterator[Json]:
    """Changes of jobs from this call on, endlessly, each once: by events, or where there are none by polling.

    A service that goes away is waited for. `ApiError` if the database lost commits meanwhile (410).
    """
    return (change for change in follow_or_pause(client, filters) if change is not None)


def follow_or_pause(client: ServiceClient, filters: Mapping[str, str]) -> Iterator[Json | None]:
    """The same as `follow_changes`, with a None every few seconds in which nothing changes."""
    return _follow_from(client, filters, client.changes(filters)["next"])


def _follow_from(client: ServiceClient, filters: Mapping[str, str], cursor: str) -> Iterator[Json | None]:
    while True:
        try:
            for behind, change in client.events({**filters, "after": cursor}, seconds=_STREAM):
                cursor = behind
                yield change
        except (ServiceAway, ApiError) as error:
            if not is_passing(error):
                raise
            try:
                page = client.changes(filters, after=cursor)
            except (ServiceAway, ApiError) as again:
                if not is_passing(again):
                    raise
            else:
                yield from page["changes"]
                cursor = page["next"]
        time.sleep(_PAUSES[0])


def _is_over(statuses: Mapping[int, str], deadline: float) -> bool:
    return time.monotonic() >= deadline or all(status in FINAL for status in statuses.values())


def _open_events(client: ServiceClient, ids: Sequence[int], seconds: float) -> Events | None:
    """Events from now on, of these jobs among others; None: they cannot be had."""
    named = {"ids": ",".join(map(str, ids))} if len(ids) <= _MOST_NAMED else {}
    events = client.events(named, seconds=max(1.0, min(seconds, _STREAM)))
    try:
        next(events)
    except (ServiceAway, ApiError, StopIteration):
        return None
    return _until_broken(events)


def _until_broken(events: Events) -> Events:
    with suppress(ServiceAway):
        yield from events


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


def fetch_output(
    ids: options.JobIds = None,
    *,
    directory: Annotated[
        Path, options.option("DIR", "Create a subdirectory for each job here.", "--directory", "-d")
    ] = Path(),
    most: Annotated[
        float,
        typer.Option(
            "--most", min=0, metavar="GB", help="Reject an output that is larger than this after unpacking."
        ),
    ] = _MOST_GB,
    service: ServiceOptions,
) -> None:
    """Download the output files of each job into a new directory named after its id."""
    wanted = options.parse_ids(ids)
    if not wanted:
        raise WrongUsage("give at least one job id")
    targets = {job_id: directory / str(job_id) for job_id in wanted}
    for job_id, target in targets.items():
        _refuse_taken(job_id, target)
    with service.connect() as client:
        found, refused = _fetch(client, targets, most=int(most * (1 << 30)))
    shown = {str(job_id): [_printable_name(file) for file in files] for job_id, files in found.items()}
    lines = [_printable_name(file).replace("\n", r"\n") for files in found.values() for file in files]
    if found:
        service.emit({"files": shown}, lambda: "\n".join(lines) or "no files")
    if refused:
        raise CommandRefused("\n".join(refused))


def _fetch(
    client: ServiceClient, targets: Mapping[int, Path], *, most: int
) -> tuple[dict[int, list[Path]], list[str]]:
    """The files of each job, and a message for each job without output: one failure stops no other."""
    found: dict[int, list[Path]] = {}
    refused: list[str] = []
    for job_id, target in targets.items():
        try:
            found[job_id] = _unpack(client, job_id, target, most=most)
        except CommandRefused as error:
            refused.append(str(error))
        except ApiError as error:
            if len(targets) == 1 and error.code != "blob_not_found":
                raise
            message = _no_output(client, job_id) if error.code == "blob_not_found" else str(error)
            refused.append(f"job {job_id}: {message}")
    return found, refused


def _no_output(client: ServiceClient, job_id: int) -> str:
    """Why a job has no output."""
    found = client.job(job_id)
    status, minor = found["status"], harmless(found["minor_status"])
    if status in FINAL:
        return f"has no output: it ended as {status}{f' ({minor})' if minor else ''}"
    seen = f"is {status}{f' ({minor})' if minor else ''}"
    return f"has no output yet: it {seen}; `pilotage job wait {job_id}` waits until it has ended"


def _refuse_taken(job_id: int, target: Path) -> None:
    """Raise if the target is not empty: its files may be in use."""
    is_empty = target.is_dir() and not target.is_symlink() and not any(target.iterdir())
    if os.path.lexists(target) and not is_empty:
        raise CommandRefused(
            f"job {job_id}: {target} exists already, and nothing is overwritten: "
            "remove it, or choose another place by --directory"
        )


def fetch_files(client: ServiceClient, job_id: int, target: Path, *, most: int) -> list[Path]:
    """Download and unpack one output into `target`, which must not have files: all of it, or nothing."""
    _refuse_taken(job_id, target)
    return _unpack(client, job_id, target, most=most)


def _unpack(client: ServiceClient, job_id: int, target: Path, *, most: int) -> list[Path]:
    """Download and unpack one archive into `target`: completely or not at all, and nowhere else."""
    with tempfile.TemporaryFile() as stream:
        client.output(job_id, stream)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as aside:
            unpacked = Path(aside, target.name)
            unpacked.mkdir()
            try:
                files = archives.unpack(stream, unpacked, limit=most, links=False)
            except archives.UnsafeArchive as error:
                hint = "; --most GB allows more" if isinstance(error, archives.ArchiveTooLarge) else ""
                raise CommandRefused(f"job {job_id}: its output {error}{hint}") from None
            unpacked.rename(target)  # fails if files were put there in the meantime
    return [target / name for name in files]


def _printable_name(file: Path) -> str:
    """The file name as text, also where it is not UTF-8."""
    return os.fsencode(file).decode(errors="backslashreplace")
