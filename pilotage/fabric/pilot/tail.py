"""The end of what a payload wrote so far."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_MOST_LINES = 20
_MOST_BYTES = 4096


def of_files(descriptors: dict[str, int]) -> str:
    """The last lines of each file, headed by its name where there are several with something in them.

    Args:
        descriptors: By the name of the file. The files are read through these, never by their names:
            the payload may have put something else there.
    """
    tails = {name: _last_lines(descriptor) for name, descriptor in descriptors.items()}
    filled = {name: text for name, text in tails.items() if text}
    if len(filled) <= 1:
        return "".join(filled.values())
    return "\n".join(f"==> {name} <==\n{text}" for name, text in filled.items())


def of_path(path: Path) -> str:
    """The last lines of a file that the payload may have replaced by anything; empty if it is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return _last_lines(descriptor) if stat.S_ISREG(os.fstat(descriptor).st_mode) else ""
    finally:
        os.close(descriptor)


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line for line in reversed(text.split("\n")) if line.strip()), "").strip()


def printable(text: str, most: int) -> str:
    """The text as the service takes it: no NUL, nothing that is not Unicode, not too long."""
    clean = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def _last_lines(descriptor: int) -> str:
    try:
        size = os.fstat(descriptor).st_size
        data = os.pread(descriptor, _MOST_BYTES, max(0, size - _MOST_BYTES))
    except OSError:
        return ""
    lines = data.decode("utf-8", "replace").replace("\0", "\ufffd").rstrip("\n").split("\n")
    if size > _MOST_BYTES and len(lines) > 1:
        lines = lines[1:]  # the first is cut
    return "\n".join(lines[-_MOST_LINES:])
