"""The directory of one attempt, away from those of all others."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from pilotage.fabric.pilot import removal


@dataclass(frozen=True)
class WorkArea:
    """Where one attempt has its files."""

    top: Path  #: what is ours, not the payload's
    home: Path  #: the payload's work directory
    scratch: Path  #: its temporary files

    @property
    def progress(self) -> Path:
        """File to which the payload may write how far it is."""
        return self.scratch / "progress"

    @property
    def sandbox(self) -> Path:
        """The input sandbox as it came."""
        return self.top / "sandbox.tar"

    @property
    def output(self) -> Path:
        """The output archive."""
        return self.top / "output.tar.gz"

    def remove(self) -> None:
        """Remove all of it, also what the payload protected from removal."""
        removal.remove(self.top)


def make(below: Path, *, job_id: int, epoch: int) -> WorkArea:
    """A fresh area that only we may enter.

    Raises:
        OSError: This host has no place for it.
    """
    below.mkdir(parents=True, exist_ok=True)
    top = Path(tempfile.mkdtemp(prefix=f"job-{job_id}-{epoch}-", dir=below)).resolve()
    area = WorkArea(top=top, home=top / "work", scratch=top / "tmp")
    area.home.mkdir(mode=0o700)
    area.scratch.mkdir(mode=0o700)
    return area
