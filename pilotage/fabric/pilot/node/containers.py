"""The program of this host that starts containers, and mounted repositories of CVMFS."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping

from pilotage.fabric.pilot.node.commands import read_output

#: Timeout of a command in seconds.
_PATIENCE = 5.0
#: Mounting a repository at its first use takes longer.
_MOUNT_PATIENCE = 60.0
_RUNTIMES = ("apptainer", "singularity")
#: There are other programs of these names.
_VERSION = re.compile(r"(?:apptainer|singularity)(?:-ce|-ce-pro)? version \S+|[23]\.\d+\.\d+\S*")
_CVMFS = re.compile(r"/cvmfs/([A-Za-z0-9][A-Za-z0-9_.-]*)(?:/|$)")


def find_runtime(environment: Mapping[str, str]) -> str | None:
    """The path of apptainer, or else of singularity; None: the PATH has neither."""
    for name in _RUNTIMES:
        path = shutil.which(name, path=environment.get("PATH"))
        if path and _VERSION.fullmatch(read_output((path, "--version"), environment, _PATIENCE).strip()):
            return path
    return None


def find_repository(image: str) -> str | None:
    """The repository of CVMFS with an image; None: it is elsewhere."""
    found = _CVMFS.match(image)
    return found[1] if found else None


def is_mounted(repository: str, environment: Mapping[str, str]) -> bool:
    """Whether a repository of CVMFS can be read, mounted or at its first use."""
    words = ("ls", "-d", f"/cvmfs/{repository}/.")
    return bool(read_output(words, environment, _MOUNT_PATIENCE).strip())
