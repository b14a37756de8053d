"""The program that a job names: in its sandbox, or on this host."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath


class NotFound(Exception):
    """There is no such program; the message says where it was looked for."""


def find(name: str, *, home: Path, environment: Mapping[str, str], on_host: bool = True) -> str:
    """The path of a program.

    A bare name is first looked for in the work directory, then in the payload's PATH. What came in the
    sandbox is made executable: archives made elsewhere often lose that.

    Args:
        name: As the job says it.
        home: The work directory.
        environment: The payload's.
        on_host: What is not in the sandbox is on this host; else a container will look for it.

    Raises:
        NotFound: Neither there nor there.
    """
    path = PurePosixPath(name)
    if path.is_absolute():
        return _on_host(name) if on_host else name
    if ".." in path.parts:
        raise NotFound(f"{name}: leads out of the work directory")
    own = home / path
    if own.is_file():
        if not os.access(own, os.X_OK):
            own.chmod(own.stat().st_mode | 0o100)
        return str(own)
    if len(path.parts) > 1:
        raise NotFound(f"{name}: not in the input sandbox")
    if not on_host:
        return name
    found = shutil.which(name, path=environment.get("PATH", os.defpath))
    if found is None:
        raise NotFound(f"{name}: neither in the input sandbox nor in PATH")
    return str(Path(found).absolute())


def _on_host(name: str) -> str:
    if not Path(name).is_file():
        raise NotFound(f"{name}: not on this host")
    if not os.access(name, os.X_OK):
        raise NotFound(f"{name}: not executable")
    return name
