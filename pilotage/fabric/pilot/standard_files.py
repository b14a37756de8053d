"""The files that a payload's standard output and error go to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pilotage.fabric.pilot import host, tail
from pilotage.fabric.pilot.description import UnfitDescription


@dataclass(frozen=True)
class StandardFiles:
    """Open files, read by us while the payload writes them."""

    descriptors: dict[str, int]  #: by name; one name if both go to one file
    output: int
    error: int

    def tail(self) -> str:
        """The last lines of both."""
        return tail.of_files(self.descriptors)

    def close(self) -> None:
        """Close them; they stay where they are."""
        for descriptor in self.descriptors.values():
            os.close(descriptor)


def make(home: Path, *, output: str, error: str) -> StandardFiles:
    """Make both files, empty, below the work directory.

    Raises:
        UnfitDescription: A name leads elsewhere, or there is something else.
    """
    names = {"StdOutput": output, "StdError": error}
    descriptors: dict[str, int] = {}
    try:
        for keyword, name in names.items():
            if name not in descriptors:
                descriptors[name] = _make(home, keyword, name)
    except UnfitDescription:
        for descriptor in descriptors.values():
            os.close(descriptor)
        raise
    return StandardFiles(descriptors, descriptors[output], descriptors[error])


def _make(home: Path, keyword: str, name: str) -> int:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise UnfitDescription(f"{keyword}: {name!r} is no name of a file below the work directory")
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        return os.open(home / path, flags, 0o600)
    except OSError as error:
        if host.is_to_blame(error):
            raise
        raise UnfitDescription(f"{keyword}: {name!r}: {error.strerror}") from None
