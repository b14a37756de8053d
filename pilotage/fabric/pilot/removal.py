"""Removing what a payload left, whatever it left."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def remove(top: Path) -> None:
    """Remove a directory with all below it, also what is protected or nested deeper than a path can say.

    Every directory is moved up, right below `top`, before it is looked into: so there is no recursion, of
    which Python has too little for hostile trees, and no long path. What cannot be removed stays.
    """
    if top.is_symlink():
        return
    aside = top / f".{secrets.token_hex(8)}"
    found = [top]
    for directory in found:  # which grows
        for entry in _entries(directory):
            if entry.is_dir(follow_symlinks=False):
                found.append(_moved(Path(entry.path), aside.with_name(f"{aside.name}-{len(found)}")))
            else:
                _unlink(entry.path)
    for directory in reversed(found):
        with contextlib.suppress(OSError):
            directory.rmdir()


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError):
        directory.chmod(0o700)
        with os.scandir(directory) as found:
            return list(found)
    return []


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        Path(path).unlink()


def _moved(directory: Path, aside: Path) -> Path:
    """Where the directory is now: aside, if that can be."""
    with contextlib.suppress(OSError):
        directory.chmod(0o700)  # a directory that changes its parent is written to
        directory.rename(aside)
        return aside
    return directory
