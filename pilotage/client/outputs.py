"""The output of jobs, unpacked into new directories."""

import os
import tempfile
from pathlib import Path

from pilotage.client.api import ServiceClient
from pilotage.client.errors import CommandRefused
from pilotage.fabric.pilot.payload import archives


def refuse_taken(job_id: int, target: Path) -> None:
    """Raise if the target is not empty: its files may be in use."""
    is_empty = target.is_dir() and not target.is_symlink() and not any(target.iterdir())
    if os.path.lexists(target) and not is_empty:
        raise CommandRefused(
            f"job {job_id}: {target} exists already, and nothing is overwritten: "
            "remove it, or choose another place by --directory"
        )


def fetch_files(client: ServiceClient, job_id: int, target: Path, *, most: int) -> list[Path]:
    """Download and unpack one output into `target`, which must not have files: all of it, or nothing."""
    refuse_taken(job_id, target)
    return unpack_output(client, job_id, target, most=most)


def unpack_output(client: ServiceClient, job_id: int, target: Path, *, most: int) -> list[Path]:
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
