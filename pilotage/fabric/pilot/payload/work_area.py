"""The work area of one attempt: its directories, and the files for standard output and error."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pilotage.fabric.pilot import errors
from pilotage.fabric.pilot.payload import archives
from pilotage.fabric.pilot.payload.description import UnfitDescription


@dataclass(frozen=True)
class WorkArea:
    """The directories of one attempt."""

    top: Path  #: the pilot's, not accessible to an isolated payload
    home: Path  #: the payload's work directory
    scratch: Path  #: its temporary files

    @property
    def progress(self) -> Path:
        """File to which the payload may write its progress."""
        return self.scratch / "progress"

    @property
    def sandbox(self) -> Path:
        """The input sandbox as downloaded."""
        return self.top / "sandbox.tar"

    @property
    def output(self) -> Path:
        """The output archive."""
        return self.top / "output.tar.gz"

    def remove(self) -> None:
        """Remove the whole area, even files that the payload protected."""
        archives.remove_tree(self.top)


def missing_space(below: Path, least: int) -> str:
    """Why jobs cannot be run below a directory: less than `least` MB are free, or no file can be created."""
    try:
        below.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=below) as file:
            file.write(b"0")
        found = os.statvfs(below)
    except OSError as error:
        return f"{below}: {error.strerror}"
    free = found.f_bavail * found.f_frsize >> 20
    return f"{below}: {free} MB are free, less than {least} MB" if free < least else ""


def make_work_area(below: Path, *, job_id: int, epoch: int) -> WorkArea:
    """Create a new area that only this user may enter; raises OSError if this host has no space for it."""
    below.mkdir(parents=True, exist_ok=True)
    top = Path(tempfile.mkdtemp(prefix=f"job-{job_id}-{epoch}-", dir=below)).resolve()
    area = WorkArea(top=top, home=top / "work", scratch=top / "tmp")
    area.home.mkdir(mode=0o700)
    area.scratch.mkdir(mode=0o700)
    return area


def make_standard_files(home: Path, *, output: str, error: str) -> dict[str, int]:
    """Create both files, empty, below the work directory; return their descriptors by name.

    Raises:
        UnfitDescription: A name leads elsewhere, or cannot be created.
    """
    names = {"StdOutput": output, "StdError": error}
    descriptors: dict[str, int] = {}
    try:
        for keyword, name in names.items():
            if name not in descriptors:
                descriptors[name] = _make_file(home, keyword, name)
    except UnfitDescription:
        for descriptor in descriptors.values():
            os.close(descriptor)
        raise
    return descriptors


def _make_file(home: Path, keyword: str, name: str) -> int:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise UnfitDescription(f"{keyword}: {name!r} is not a valid name of a file below the work directory")
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        return os.open(home / path, flags, 0o600)
    except OSError as error:
        if errors.is_to_blame(error):
            raise
        raise UnfitDescription(f"{keyword}: {name!r}: {error.strerror}") from None
