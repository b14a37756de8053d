"""Output of a grid job: one tar of the files of its local jobs, with their numbers as suffixes.

A limited number of outputs is fetched in each cycle and stored in the manager's directory, so that a manager
that was killed continues. Archives are treated as hostile when unpacked, and so are their files when packed.
"""

import io
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pilotage.fabric.batch.batch_system import BatchSystem, BatchSystemAway
from pilotage.fabric.manager import grid_job
from pilotage.fabric.manager.context import ManagerContext
from pilotage.fabric.manager.grid_job import GridJobEntry, LocalJob, LocalState
from pilotage.fabric.manager.shared_area import SharedArea
from pilotage.fabric.pilot import attempt, errors
from pilotage.fabric.pilot.payload import archives
from pilotage.fabric.pilot.payload.archives import PackedOutput

#: The manager's own files, first in the tar.
LOG, TABLE = "manager.log", "local-jobs.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputStore:
    """The outputs of one grid job, in a directory of the manager."""

    directory: Path
    limit: int  #: maximum bytes of one local job's output, packed and unpacked

    @property
    def archive(self) -> Path:
        """The final tar."""
        return self.directory / "output.tar.gz"

    def has(self, job: LocalJob) -> bool:
        """Whether the output of a local job is stored."""
        mark = self._mark(job)
        return mark.exists() and mark.read_text() == _boot_id()

    def add_archive(self, job: LocalJob, archive: bytes) -> list[str]:
        """Add the output archive of a local job; return log lines about refused files."""
        if len(archive) > self.limit:
            return self._mark_added(job, [f"its output is left out: more than {self.limit} bytes"])
        self._make()
        shutil.rmtree(self._aside, ignore_errors=True)
        self._aside.mkdir()
        try:
            archives.unpack(io.BytesIO(archive), self._aside, limit=self.limit)
        except archives.UnsafeArchive as error:
            # Files before the error are kept, like any partial output.
            return self._mark_added(job, [f"its output {error}", *self._move_unpacked(job)])
        return self._mark_added(job, self._move_unpacked(job))

    def add_files(self, job: LocalJob, files: Mapping[str, bytes]) -> list[str]:
        """Add files of a local job without an output archive."""
        for name, content in files.items():
            self.write(f"{name}.{job.number}", content)
        return self._mark_added(job, ["it left no output"])

    def write(self, name: str, content: bytes) -> None:
        """Add a file."""
        self._make()
        (self._files / name).write_bytes(content)

    def pack(self, limit: int) -> PackedOutput:
        """Write the final tar, or replace it; all files together have at most `limit` bytes."""
        names = (path for path in _regular(self._files) if path not in (LOG, TABLE))
        aside = self.archive.with_suffix(".new")
        with aside.open("wb") as file:
            packed = archives.pack(self._files, [LOG, TABLE, *sorted(names)], file, limit=limit)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.archive)
        _to_disk(self.directory)
        return packed

    def clear(self) -> None:
        """Remove everything except the tar."""
        for path in (self._files, self._aside, self.directory / "fetched"):
            shutil.rmtree(path, ignore_errors=True)

    def remove(self) -> None:
        """Remove the whole directory."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _make(self) -> None:
        """Create the directories, private: outputs belong to different owners."""
        self.directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._files.mkdir(parents=True, exist_ok=True)

    @property
    def _files(self) -> Path:
        return self.directory / "files"

    @property
    def _aside(self) -> Path:
        return self.directory / "aside"

    def _mark(self, job: LocalJob) -> Path:
        return self.directory / "fetched" / str(job.number)

    def _mark_added(self, job: LocalJob, log: list[str]) -> list[str]:
        self._mark(job).parent.mkdir(parents=True, exist_ok=True)
        self._mark(job).write_text(_boot_id())
        return [f"local job {job.number}: {line}" for line in log]

    def _move_unpacked(self, job: LocalJob) -> list[str]:
        """Move unpacked files to the others; return a log line for each that is refused."""
        refused = []
        for name in _regular(self._aside):
            target = self._files / f"{name}.{job.number}"
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                (self._aside / name).replace(target)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                refused.append(f"{name!r:.200} is left out: there is another file in its way")
            except OSError as error:  # the name may be too long with the number
                if errors.is_to_blame(error):
                    raise
                refused.append(f"{name!r:.200} is left out: {error.strerror}")
        return refused


def _boot_id() -> str:
    """Id of the host's boot: files written before a crash may not have reached the disk."""
    return Path("/proc/sys/kernel/random/boot_id").read_text()


def _to_disk(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _regular(root: Path) -> Iterator[str]:
    """Relative paths of regular files below a directory."""
    for directory, _, files in os.walk(root):
        for name in sorted(files):
            path = Path(directory, name)
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(root))


#: Maximum bytes of the batch job's own output, kept if there is no output archive.
_LAST_WORDS = 1 << 20


def begin_gathering(context: ManagerContext, entry: GridJobEntry) -> None:
    """Record that a grid job gathers from now on."""
    log = ["all local jobs have ended: gathering their output"]
    context.journal.write(entry.key, entry=replace(entry, gathering=True), log=log)


def gather_outputs(context: ManagerContext, entry: GridJobEntry) -> None:
    """Fetch some outputs; once all are stored, pack them and record the outcome of the grid job."""
    area = context.area_of(entry)
    if not area.is_there and not entry.cancelled:
        raise BatchSystemAway(f"{area.directory}: cannot be seen; the output of local jobs is there")
    store, most = output_store(context, entry), context.options.max_jobs_per_cycle
    jobs = context.journal.local_jobs(entry.key)
    wanted = [each for each in jobs if each.was_submitted and not store.has(each)]
    for job in wanted[:most]:
        _fetch(context, job, context.system_of(entry).system, area, store)
    if len(wanted) <= most:
        _finish(context, entry, store)


def output_store(context: ManagerContext, entry: GridJobEntry) -> OutputStore:
    """The outputs of a grid job."""
    directory = context.options.directory / "outputs" / entry.taken.name
    return OutputStore(directory=directory, limit=context.options.local_output_limit)


def _fetch(
    context: ManagerContext, job: LocalJob, system: BatchSystem, area: SharedArea, store: OutputStore
) -> None:
    archive = area.output(job, limit=context.options.local_output_limit)
    log = store.add_archive(job, archive) if archive else store.add_files(job, _last_words(job, system))
    if log:
        # The message marks a finished job whose output is missing: it lowers the grid job's outcome.
        lacking = [replace(job, message=log[0])] if job.state is LocalState.DONE else []
        context.journal.write(job.key, local_jobs=lacking, log=log)


def _last_words(job: LocalJob, system: BatchSystem) -> dict[str, bytes]:
    """Batch output and tail of a local job without an output archive."""
    wrote = system.output(job.handle)
    found = {
        "batch.out": wrote.stdout[-_LAST_WORDS:],
        "batch.err": wrote.stderr[-_LAST_WORDS:],
        "tail": job.tail.encode(),
    }
    return {name: content for name, content in found.items() if content}


def _finish(context: ManagerContext, entry: GridJobEntry, store: OutputStore) -> None:
    jobs = context.journal.local_jobs(entry.key)
    said = grid_job.job_outcome(entry, jobs)
    store.write(LOG, context.journal.log(entry.key).encode())
    store.write(TABLE, grid_job.outcome_table(jobs))
    packed = store.pack(context.options.output_limit)
    ended = replace(entry, output=str(store.archive), outcome=attempt.with_shortcomings(said, packed))
    log = [f"{said.minor_status}: {said.application_status}; output of {packed.files} files"]
    context.journal.write(entry.key, entry=ended, log=log)
    store.clear()
