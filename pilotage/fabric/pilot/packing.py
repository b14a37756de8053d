"""Packing the files that a payload leaves: only what lies in its work directory.

The payload has ended, but what it left may be hostile: links to the host's files, pipes that block
whoever opens them, directories full of both.
"""

from __future__ import annotations

import fnmatch
import gzip
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

_MOST_FILES = 100_000
#: Directories below each other that are looked into; what lies deeper is refused. Walking recurses.
_DEEPEST = 100
#: Fast; most outputs are compressed already, and logs shrink anyway.
_LEVEL = 1


@dataclass
class Packed:
    """What became of the wanted names."""

    files: int = 0
    size: int = 0  #: bytes of all files, before compression
    missing: list[str] = field(default_factory=list)  #: names that match nothing
    refused: list[str] = field(default_factory=list)  #: lead out of the directory, or are no files
    too_large: list[str] = field(default_factory=list)  #: did not fit


def pack(root: Path, wanted: Iterable[str], archive: BinaryIO, *, limit: int) -> Packed:
    """Write the wanted files to a tar archive, compressed with gzip.

    Args:
        root: The work directory.
        wanted: Names, patterns and directories below it; what comes first is packed first.
        archive: Where to write.
        limit: Bytes that all files may have together.

    Returns:
        What was packed and what was not. Links are followed as long as they stay in `root`.
    """
    packer = _Packer(root.resolve(), limit)
    compressed = gzip.GzipFile(fileobj=archive, mode="wb", compresslevel=_LEVEL, mtime=0)
    with compressed, tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as members:
        for name in wanted:
            packer.add(members, name)
    return packer.packed


class _Packer:
    def __init__(self, root: Path, limit: int) -> None:
        self.packed = Packed()
        self._root = root
        self._limit = limit
        self._done: set[str] = set()

    def add(self, members: tarfile.TarFile, name: str) -> None:
        """Pack what a name, a pattern or a directory stands for."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            self.packed.refused.append(name)
            return
        found = sorted(self._matching(path))
        if not found:
            self.packed.missing.append(name)
        for each in found:
            for inner in self._files(each):
                self._file(members, inner)

    def _matching(self, path: PurePosixPath) -> Iterator[str]:
        """Paths relative to the root; the name itself if there is such a file, whatever signs it has."""
        if os.path.lexists(self._root / path):
            yield str(path)
        elif any(sign in str(path) for sign in "*?["):
            yield from (name for name in self._everything() if _fits(name.split("/"), path.parts))

    def _everything(self) -> Iterator[str]:
        """Every path below the root; links to directories are not followed."""
        for directory, below, files in self._walk(self._root):
            for name in (*below, *files):
                yield os.path.relpath(Path(directory, name), self._root)

    def _files(self, name: str) -> Iterator[str]:
        top = self._root / name
        if top.is_symlink() or not top.is_dir():
            yield name
            return
        for directory, below, files in self._walk(top):
            below.sort()
            for file in sorted(files):
                yield os.path.relpath(Path(directory, file), self._root)

    def _walk(self, top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        """As `os.walk`; directories that lie too deep stand among the files, as which they are refused."""
        for directory, below, files in os.walk(top):
            if len(Path(directory).parts) - len(self._root.parts) >= _DEEPEST:
                files += below
                below.clear()
            yield directory, below, files

    def _file(self, members: tarfile.TarFile, name: str) -> None:
        if name in self._done:
            return
        self._done.add(name)
        descriptor = self._open(name)
        if descriptor is None:
            self.packed.refused.append(name)
            return
        with os.fdopen(descriptor, "rb") as content:
            facts = os.fstat(content.fileno())
            if self.packed.size + facts.st_size > self._limit or self.packed.files >= _MOST_FILES:
                self.packed.too_large.append(name)
                return
            members.addfile(_member(name, facts), content)
        self.packed.files += 1
        self.packed.size += facts.st_size

    def _open(self, name: str) -> int | None:
        """A descriptor of a regular file inside; None if it is something else or elsewhere."""
        try:
            real = os.path.realpath(self._root / name)
        except RecursionError:  # it is the first of a thousand links
            return None
        if os.path.commonpath([real, self._root]) != str(self._root):
            return None
        try:
            descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        return None


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path fits a pattern: `*` stays in a directory, `**` does not, hidden files stay hidden."""
    reached = _skipping(pattern, {0})  # the places in the pattern that a part of the path may stand for next
    for part in parts:
        nexts = {
            at if pattern[at] == "**" else at + 1 for at in reached if _fits_part(part, pattern[at : at + 1])
        }
        reached = _skipping(pattern, nexts)
    return len(pattern) in reached


def _fits_part(part: str, pattern: Sequence[str]) -> bool:
    if not pattern or pattern[0] == "**":
        return bool(pattern)
    hidden = part.startswith(".") and not pattern[0].startswith(".")
    return not hidden and fnmatch.fnmatchcase(part, pattern[0])


def _skipping(pattern: Sequence[str], places: set[int]) -> set[int]:
    """These places and those behind a `**`, which may stand for nothing."""
    reached = set(places)
    for at, word in enumerate(pattern):
        if at in reached and word == "**":
            reached.add(at + 1)
    return reached


def _member(name: str, facts: os.stat_result) -> tarfile.TarInfo:
    """The entry of a file; whose it was is nobody's business elsewhere."""
    member = tarfile.TarInfo(name)
    member.size = facts.st_size
    member.mtime = int(facts.st_mtime)
    member.mode = 0o755 if facts.st_mode & stat.S_IXUSR else 0o644
    return member
