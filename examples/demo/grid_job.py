"""The grid job: one Monte Carlo job for its user, many local jobs for Slurm, one tar in the end."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from examples.demo.installation import Installation, console
from pilotage.client.api import ServiceClient

SITE = Path(__file__).parents[1] / "slurm"
#: As in montecarlo.yaml, and what generate.sh calls them.
EVENTS, PHASE = 2000, "generated"
_EVENT = re.compile(r"^event (\d+) ", re.MULTILINE)
_ENDED = frozenset({"Done", "Failed", "Killed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of the grid job."""

    status: str
    generated: int  #: events
    local_jobs: Mapping[str, int]  #: by state

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self.status in _ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class GridJob:
    """One that was submitted."""

    installation: Installation
    job_id: int

    @classmethod
    def submit(cls, installation: Installation) -> Self:
        """Submit it."""
        [job_id] = installation.run("job", "submit", SITE / "montecarlo.yaml")["job_ids"]
        return cls(installation=installation, job_id=job_id)

    def look(self, client: ServiceClient) -> Standing:
        """What the service knows of it now."""
        told = client.job(self.job_id)
        attempt = told["attempt"] or {"phases": (), "local_jobs": {}}
        done = {each["name"]: int(each["done"]) for each in attempt["phases"]}
        return Standing(status=told["status"], generated=done.get(PHASE, 0), local_jobs=attempt["local_jobs"])

    def fetch(self) -> str | None:
        """Bring its output; what is wrong with it, None: every event is there once."""
        target = self.installation.directory / "output"
        answer = self.installation.run("job", "output", str(self.job_id), "--directory", target)
        files = [Path(each) for found in answer["files"].values() for each in found]
        kinds = Counter(file.name.rstrip("0123456789").rstrip(".") for file in files)
        console.print(", ".join(f"{number} × {name}" for name, number in sorted(kinds.items())))
        numbers = Counter(
            int(event)
            for file in files
            if file.name.startswith("events.txt")
            for event in _EVENT.findall(file.read_text())
        )
        if numbers != Counter(range(1, EVENTS + 1)):
            return f"{numbers.total()} events came back, {len(numbers)} different ones; {EVENTS} were wanted"
        console.print(f"Events 1 to {EVENTS}, each of them once.")
        return None
