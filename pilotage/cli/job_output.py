"""`pilotage job output`."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from pilotage.cli import job_ids, options, output
from pilotage.cli.connection import connect
from pilotage.cli.failures import Refused, WrongUsage
from pilotage.fabric.client import Client
from pilotage.fabric.pilot import unpacking

#: What one output may unpack to unless it is said otherwise: whoever wrote it may mean to fill the disk.
_MOST_GB = 50.0


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
    """Fetch the output files of jobs, each job's into a new directory with its id as name."""
    wanted = job_ids.parse(ids)
    if not wanted:
        raise WrongUsage("name at least one job id")
    targets = {job_id: directory / str(job_id) for job_id in wanted}
    for job_id, target in targets.items():
        _refuse_taken(job_id, target)
    with connect(home=home, url=url) as client:
        found = {
            job_id: _unpack(client, job_id, target, most=int(most * (1 << 30)))
            for job_id, target in targets.items()
        }
    shown = {str(job_id): [_shown(file) for file in files] for job_id, files in found.items()}
    lines = [_shown(file).replace("\n", r"\n") for files in found.values() for file in files]
    output.emit(
        {"files": shown}, as_json=as_json, render=lambda: output.escape("\n".join(lines)) or "no files"
    )


def _refuse_taken(job_id: int, target: Path) -> None:
    """Refuse to fetch an output where something is already: it may be what somebody works on."""
    is_empty = target.is_dir() and not target.is_symlink() and not any(target.iterdir())
    if os.path.lexists(target) and not is_empty:
        raise Refused(
            f"job {job_id}: {target} exists already, and nothing is overwritten: "
            "remove it, or choose another place by --directory"
        )


def _unpack(client: Client, job_id: int, target: Path, *, most: int) -> list[Path]:
    """Fetch one archive, and make `target` of it: whole or not at all, and nothing is written elsewhere."""
    with tempfile.TemporaryFile() as stream:
        client.output(job_id, stream)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as aside:
            unpacked = Path(aside, target.name)
            unpacked.mkdir()
            try:
                files = unpacking.unpack(stream, unpacked, limit=most, links=False)
            except unpacking.UnsafeArchive as error:
                hint = "; --most GB allows more" if isinstance(error, unpacking.ArchiveTooLarge) else ""
                raise Refused(f"job {job_id}: its output {error}{hint}") from None
            unpacked.rename(target)  # fails where somebody has put something in the meantime
    return [target / name for name in files]


def _shown(file: Path) -> str:
    """Its name as text, whatever bytes it is of."""
    return os.fsencode(file).decode(errors="backslashreplace")
