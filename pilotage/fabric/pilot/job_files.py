"""Race-free access to files in directories that jobs can change meanwhile.

Below the trusted directory any name may become a link, a pipe, a device or a socket at any moment. Each part
of a path is therefore opened relative to the previous one, without following links and without blocking. The
module also runs as a program, on hosts where this package is not installed.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

#: Errors that a job can cause by replacing a file; readers treat it as missing.
_NO_FILE = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EACCES, errno.EPERM),
        *(errno.ENXIO, errno.ENODEV, errno.EAGAIN, errno.ENAMETOOLONG),
    }
)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20


def read_end(directory: str, name: str, *, last: int) -> bytes:
    """Read the last bytes of a file; empty if there is none.

    The directory is trusted, including links in its path; the path below it is not.
    """
    with _open_trusted(directory) as place, _open_file(place, name) as file:
        return b"" if file is None else _read(file, max(0, os.fstat(file).st_size - last), last)


def read_small(directory: str, names: Sequence[str], *, most: int) -> dict[str, bytes]:
    """Read small files, by name; entries that are no files, or larger than `most` bytes, are left out."""
    contents = {}
    with _open_trusted(directory) as place:
        for name in names:
            with _open_file(place, name) as file:
                if file is not None and len(content := _read(file, 0, most + 1)) <= most:
                    contents[name] = content
    return contents


def write(directory: str, name: str, content: bytes, *, executable: bool = False) -> None:
    """Write a file atomically, readable by its owner only; missing directories are created.

    Raises:
        OSError: It cannot be written, or there is a link in its path.
    """
    os.makedirs(directory, mode=0o700, exist_ok=True)  # noqa: PTH103 - paths are texts here
    parts = _parts(name)
    parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            parent = _enter(parent, part, make=True)
        _write(parent, parts[-1], content, 0o700 if executable else 0o600)
    finally:
        os.close(parent)


@contextmanager
def _open_trusted(directory: str) -> Iterator[int | None]:
    """Open a directory, following links; None if there is none."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _open_file(place: int | None, name: str) -> Iterator[int | None]:
    """Open a regular file below a directory; None if there is no such file."""
    descriptor = None
    try:
        try:
            descriptor = None if place is None else _open_path(place, name)
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
        is_regular = descriptor is not None and stat.S_ISREG(os.fstat(descriptor).st_mode)
        yield descriptor if is_regular else None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open_path(place: int, name: str) -> int:
    parts = _parts(name)
    parent = os.dup(place)
    try:
        for part in parts[:-1]:
            parent = _enter(parent, part)
        return os.open(parts[-1], _FILE, dir_fd=parent)
    finally:
        os.close(parent)


def _parts(name: str) -> list[str]:
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{name!r} is not a path below a directory")
    return parts


def _enter(parent: int, name: str, *, make: bool = False) -> int:
    """Open a subdirectory and close its parent."""
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
    descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    os.close(parent)
    return descriptor


def _read(file: int, offset: int, most: int) -> bytes:
    chunks, length = [], 0
    while length < most and (chunk := os.pread(file, min(_CHUNK, most - length), offset + length)):
        chunks.append(chunk)
        length += len(chunk)
    return b"".join(chunks)


def _write(parent: int, name: str, content: bytes, mode: int) -> None:
    aside = f".{secrets.token_hex(8)}"
    descriptor = os.open(aside, _NEW, mode, dir_fd=parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
        os.rename(aside, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        os.unlink(aside, dir_fd=parent)
        raise


def _main(words: Sequence[str]) -> None:
    """Run one of the functions for another host; contents and names of small files come on standard input."""
    verb, directory, *rest = words
    source, target = sys.stdin.buffer, sys.stdout.buffer
    if verb == "read_end":
        target.write(read_end(directory, rest[0], last=int(rest[1])))
    elif verb == "read_small":
        found = read_small(directory, json.loads(source.read()), most=int(rest[0]))
        target.write(json.dumps({name: text.decode("latin-1") for name, text in found.items()}).encode())
    else:
        write(directory, rest[0], source.read(), executable=rest[1] == "executable")


if __name__ == "__main__":
    try:
        _main(sys.argv[1:])
    except OSError as error:
        sys.exit(f"{error}")
