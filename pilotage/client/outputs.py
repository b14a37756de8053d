"""The output of jobs, unpacked into new directories, several at a time."""

import os
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pilotage.client.api import ApiError, ServiceClient
from pilotage.client.errors import CommandRefused
from pilotage.fabric.pilot.payload import archives
from requirements.states import FINAL

#: Downloads at a time.
PARALLEL = 8
#: The code of an output that is not there.
_NO_OUTPUT = "blob_not_found"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedOutputs:
    """The outputs of several jobs."""

    files: dict[int, list[Path]] = field(default_factory=dict)  #: by job
    refused: dict[int, str] = field(default_factory=dict)  #: why others have none
    skipped: list[int] = field(default_factory=list)  #: jobs whose directories were there before


def fetch_all(
    client: ServiceClient,
    ids: Iterable[int],
    directory: Path,
    *,
    most: int,
    skip_existing: bool = False,
    parallel: int = PARALLEL,
) -> FetchedOutputs:
    """Download and unpack outputs, each into a directory named by the job's id: one failure stops no other.

    Nothing is downloaded if a directory has files already, unless these jobs are skipped. `ApiError` if the
    service refuses the only job for another reason than that it has no output.
    """
    found = FetchedOutputs()
    targets = {job_id: directory / str(job_id) for job_id in ids}
    if skip_existing:
        found.skipped.extend(job_id for job_id, target in targets.items() if _is_taken(target))
    wanted = {job_id: target for job_id, target in targets.items() if job_id not in set(found.skipped)}
    for job_id, target in wanted.items():
        refuse_taken(job_id, target)
    with ThreadPoolExecutor(max_workers=parallel) as pool:
        try:
            started = [
                (job_id, pool.submit(_try_unpack, client, job_id, target, most, is_only=len(targets) == 1))
                for job_id, target in wanted.items()
            ]
            for job_id, future in started:
                outcome = future.result()
                if isinstance(outcome, str):
                    found.refused[job_id] = outcome
                else:
                    found.files[job_id] = outcome
        except BaseException:  # also Ctrl-C: what has begun is completed, nothing else begins
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _try_unpack(
    client: ServiceClient, job_id: int, target: Path, most: int, *, is_only: bool
) -> list[Path] | str:
    """The files of a job, or why there are none."""
    try:
        return unpack_output(client, job_id, target, most=most)
    except CommandRefused as error:
        return str(error)
    except ApiError as error:
        if is_only and error.code != _NO_OUTPUT:
            raise
        return f"job {job_id}: {_explain_missing(client, job_id, error)}"


def _explain_missing(client: ServiceClient, job_id: int, error: ApiError) -> str:
    """Why a job has no output."""
    if error.code != _NO_OUTPUT:
        return str(error)
    found = client.job(job_id)
    status, minor = found["status"], found["minor_status"]
    why = f"{status} ({minor})" if minor else status
    if status in FINAL:
        return f"has no output: it ended as {why}"
    return f"has no output yet: it is {why}; `pilotage job wait {job_id}` waits until it has ended"


def _is_taken(target: Path) -> bool:
    """Whether the target is there and not empty."""
    is_empty = target.is_dir() and not target.is_symlink() and not any(target.iterdir())
    return os.path.lexists(target) and not is_empty


def refuse_taken(job_id: int, target: Path) -> None:
    """Raise if the target is not empty: its files may be in use."""
    if _is_taken(target):
        raise CommandRefused(
            f"job {job_id}: {target} exists already, and nothing is overwritten: "
            "remove it, choose another place by --directory, or skip such jobs by --skip-existing"
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
