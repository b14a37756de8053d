"""The specification of a local job from its manager: a file that comes with its script."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class JobSpec:
    """Specification of one try of a local job."""

    job_id: int  #: of the grid job
    number: int  #: of the local job
    place: tuple[str, str, str]  #: site, CE, queue
    description: Mapping[str, Any]  #: of the grid job, with the command of this local job
    marks: str  #: directory for its status files and its output, shared with the manager
    files: Mapping[str, bytes] = field(default_factory=dict)  #: to add to its work directory, by name
    processors: int = 1
    memory: int | None = None  #: MB of the slot
    wall_time: int | None = None  #: seconds of the slot
    beat: float = 10.0  #: seconds between two status reports
    grace: float = 10.0  #: seconds between TERM and KILL
    sandbox_limit: int = 1 << 30  #: maximum bytes of the input sandbox
    output_limit: int = 1 << 30  #: maximum bytes of all output files

    def as_json(self) -> bytes:
        """Serialise the specification."""
        files = {name: b64encode(content).decode("ascii") for name, content in self.files.items()}
        return json.dumps({**vars(self), "files": files}).encode()


def read_spec(file: Path) -> JobSpec:
    """Read the specification on the node."""
    raw = json.loads(file.read_bytes())
    files = {name: b64decode(content) for name, content in raw.pop("files").items()}
    return JobSpec(**{**raw, "files": files, "place": tuple(raw["place"])})
