"""Where the outputs of local jobs lie until the service has them."""

import io
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pilotage.fabric.manager.records import LocalJob
from pilotage.fabric.pilot import host, packing, unpacking
from pilotage.fabric.pilot.packing import Packed

#: The manager's own files, which come first in the tar.
LOG, TABLE = "manager.log", "local-jobs.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The outputs of one grid job, in a directory of the manager's."""

    directory: Path
    limit: int  #: bytes of the output of one local job, packed and unpacked

    @property
    def archive(self) -> Path:
        """The one tar."""
        return self.directory / "output.tar.gz"

    def has(self, job: LocalJob) -> bool:
        """Whether the output of a local job is here."""
        mark = self._mark(job)
        return mark.exists() and mark.read_text() == _boot()

    def add_archive(self, job: LocalJob, archive: bytes) -> list[str]:
        """Add what a local job packed; lines for the log on what is not taken.

        Raises:
            OSError: There is no room.
        """
        if len(archive) > self.limit:
            return self._added(job, [f"its output is left out: more than {self.limit} bytes"])
        self._make()
        shutil.rmtree(self._aside, ignore_errors=True)
        self._aside.mkdir()
        try:
            unpacking.unpack(io.BytesIO(archive), self._aside, limit=self.limit)
        except unpacking.UnsafeArchive as error:
            # What came before the trouble is as good as any partial output.
            return self._added(job, [f"its output {error}", *self._taken(job)])
        return self._added(job, self._taken(job))

    def add_files(self, job: LocalJob, files: Mapping[str, bytes]) -> list[str]:
        """Add files of a local job that left no archive."""
        for name, content in files.items():
            self.write(f"{name}.{job.number}", content)
        return self._added(job, ["it left no output"])

    def write(self, name: str, content: bytes) -> None:
        """Add a file."""
        self._make()
        (self._files / name).write_bytes(content)

    def pack(self, limit: int) -> Packed:
        """Make the one tar, or make it anew.

        Args:
            limit: Bytes that all files may have together.

        Raises:
            OSError: There is no room.
        """
        names = (path for path in _regular(self._files) if path not in (LOG, TABLE))
        aside = self.archive.with_suffix(".new")
        with aside.open("wb") as file:
            packed = packing.pack(self._files, [LOG, TABLE, *sorted(names)], file, limit=limit)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.archive)
        _to_disk(self.directory)
        return packed

    def clear(self) -> None:
        """Remove all but the tar."""
        for path in (self._files, self._aside, self.directory / "fetched"):
            shutil.rmtree(path, ignore_errors=True)

    def remove(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _make(self) -> None:
        """Make the directories; outputs are nobody's business but their owners'."""
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

    def _added(self, job: LocalJob, log: list[str]) -> list[str]:
        self._mark(job).parent.mkdir(parents=True, exist_ok=True)
        self._mark(job).write_text(_boot())
        return [f"local job {job.number}: {line}" for line in log]

    def _taken(self, job: LocalJob) -> list[str]:
        """Move the files that were unpacked to the others; those that cannot be have a line each."""
        refused = []
        for name in _regular(self._aside):
            target = self._files / f"{name}.{job.number}"
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                (self._aside / name).replace(target)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                refused.append(f"{name!r:.200} is left out: there is another file in its way")
            except OSError as error:  # with its number it may be too long
                if host.is_to_blame(error):
                    raise
                refused.append(f"{name!r:.200} is left out: {error.strerror}")
        return refused


def _boot() -> str:
    """Which start of this host it is: what was written before a crash of it may not have reached the disk."""
    return Path("/proc/sys/kernel/random/boot_id").read_text()


def _to_disk(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _regular(root: Path) -> Iterator[str]:
    """The files below a directory that are no links, by their path in it."""
    for directory, _, files in os.walk(root):
        for name in sorted(files):
            path = Path(directory, name)
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(root))
