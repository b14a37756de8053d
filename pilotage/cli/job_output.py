"""`pilotage job output`."""

import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from pilotage.cli import job_ids, options, output
from pilotage.cli.connection import connect
from pilotage.cli.failures import Refused, WrongUsage
from pilotage.fabric.client import Client

#: What one output may unpack to unless it is said otherwise: whoever wrote it may mean to fill the disk.
_MOST_GB = 50.0
_MOST_MEMBERS = 1_000_000


def fetch(
    ids: options.JobIds = None,
    *,
    directory: Annotated[
        Path,
        typer.Option("--directory", "-d", metavar="DIR", help="A subdirectory for each job is made here."),
    ] = Path(),
    most: Annotated[
        float,
        typer.Option("--most", min=0, metavar="GB", help="Refuse an output that unpacks to more than this."),
    ] = _MOST_GB,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Fetch the output files of jobs, each job's into a directory with its id as name."""
    wanted = job_ids.parse(ids)
    if not wanted:
        raise WrongUsage("name at least one job id")
    with connect(home=home, url=url) as client:
        found = {
            job_id: _unpack(client, job_id, directory / str(job_id), most=int(most * (1 << 30)))
            for job_id in wanted
        }
    shown = {str(job_id): [_shown(file) for file in files] for job_id, files in found.items()}
    lines = [_shown(file).replace("\n", r"\n") for files in found.values() for file in files]
    output.emit(
        {"files": shown}, as_json=as_json, render=lambda: output.escape("\n".join(lines)) or "no files"
    )


def _unpack(client: Client, job_id: int, target: Path, *, most: int) -> list[Path]:
    """Fetch one archive and unpack it; nothing of it can land outside of `target`."""
    with tempfile.TemporaryFile() as stream:
        client.output(job_id, stream)
        stream.seek(0)
        try:
            with tarfile.open(fileobj=stream, mode="r:*") as archive:
                target.mkdir(parents=True, exist_ok=True)
                archive.extractall(target, filter=_bounded(most))  # noqa: S202 - the filter is stricter than `data`
                return [target / _inside(member.name) for member in archive.getmembers() if member.isfile()]
        except tarfile.TarError as error:
            raise Refused(f"job {job_id}: its output is no readable archive: {error}") from None
        except RecursionError:  # headers that are about headers, by the hundred
            raise Refused(f"job {job_id}: the headers of its output are nested too deeply") from None


def _inside(name: str) -> str:
    """Where it was unpacked: `data_filter` takes no path from the root."""
    return name.lstrip("/")


def _shown(file: Path) -> str:
    """Its name as text, whatever bytes it is of."""
    return os.fsencode(file).decode(errors="backslashreplace")


def _bounded(most: int) -> Callable[[tarfile.TarInfo, str], tarfile.TarInfo | None]:
    """Let nothing lead out of its directory, no devices in, and no more than `most` bytes altogether."""
    left, members = most, 0

    def checked(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        nonlocal left, members
        left, members = left - member.size, members + 1
        if left < 0 or members > _MOST_MEMBERS:
            raise tarfile.ReadError(f"it unpacks to more than {most} bytes or {_MOST_MEMBERS} files (--most)")
        return tarfile.data_filter(member, path)

    return checked
