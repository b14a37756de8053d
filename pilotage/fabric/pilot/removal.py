"""Removing what a payload left, whatever it left, also while it still changes it."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(top: Path) -> None:
    """Remove a file, or a directory with all below it, also what is protected or nested deeper than a path.

    Every directory is moved up, right below `top`, before it is looked into: so there is no recursion, of
    which Python has too little for hostile trees, and no long path. No link is followed, whatever takes the
    place of a directory meanwhile. What cannot be removed stays.
    """
    if top.is_symlink():
        return
    place = _opened(str(top))
    if place is None:
        _unlink(str(top))
        return
    try:
        found: list[str] = []
        _clear(place, place, found)
        for name in found:  # which grows
            directory = _opened(name, place)
            if directory is not None:
                _clear(directory, place, found)
                os.close(directory)
        for name in reversed(found):
            _unlink(name, place)
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=place)
    finally:
        os.close(place)
    with contextlib.suppress(OSError):
        top.rmdir()


def _opened(name: str, parent: int | None = None) -> int | None:
    """A descriptor of a directory, which is opened to us first; None: it is none, or not ours."""
    with contextlib.suppress(OSError):
        handle = os.open(name, _HANDLE, dir_fd=parent)
        try:
            with contextlib.suppress(OSError):
                os.chmod(f"/proc/self/fd/{handle}", 0o700)  # noqa: PTH101 - by its name it may be another one
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
        finally:
            os.close(handle)
    return None


def _clear(directory: int, place: int, found: list[str]) -> None:
    """Remove the files of a directory, and move its directories to `place` under the names that are found."""
    for entry in _entries(directory):
        if not entry.is_dir(follow_symlinks=False):
            _unlink(entry.name, directory)
        elif (child := _opened(entry.name, directory)) is not None:
            os.close(child)  # it is open to us now: a directory that changes its parent is written to
            aside = f".{secrets.token_hex(8)}"
            with contextlib.suppress(OSError):
                os.rename(entry.name, aside, src_dir_fd=directory, dst_dir_fd=place)
                found.append(aside)


def _entries(directory: int) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(directory) as found:
        return list(found)
    return []


def _unlink(name: str, parent: int | None = None) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=parent)
