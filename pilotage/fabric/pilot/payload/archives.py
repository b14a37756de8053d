"""Archives and directories that may be hostile: pack a payload's output, unpack archives, remove trees.

The files that a payload leaves may be links to the host's files, pipes that block on open, or directories
full of both: only regular files below its work directory are packed, and nothing else is followed or opened.
Tar archives can name absolute paths and `..`, lead out through links that they contain, bring devices and
set-user-id programs, or unpack from a few kilobytes to terabytes. All of these are refused: nothing is
written outside the target directory. Trees are removed whatever they contain, even while they change.
"""

from __future__ import annotations

import bz2
import contextlib
import fnmatch
import gzip
import io
import lzma
import os
import secrets
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from pilotage.fabric.pilot import errors
from pilotage.tar_headers import CheckedTarInfo

_MOST_FILES = 100_000
#: Maximum depth of directories; deeper files are refused, since walking recurses.
_DEEPEST = 100
#: Fast; most outputs are compressed already, and logs shrink anyway.
_COMPRESSION = 1


@dataclass
class PackedOutput:
    """Result of packing the requested names."""

    files: int = 0
    size: int = 0  #: bytes of all files, before compression
    missing: list[str] = field(default_factory=list)  #: names without a match
    refused: list[str] = field(default_factory=list)  #: outside the directory, or not regular files
    too_large: list[str] = field(default_factory=list)  #: beyond the size limit


def pack(root: Path, wanted: Iterable[str], archive: BinaryIO, *, limit: int) -> PackedOutput:
    """Write the files of a work directory to a tar archive, compressed with gzip.

    Names, patterns and directories are packed in their order, up to `limit` bytes of all files together.
    Links are followed as long as they stay in `root`.
    """
    packer = _Packer(root.resolve(), limit)
    compressed = gzip.GzipFile(fileobj=archive, mode="wb", compresslevel=_COMPRESSION, mtime=0)
    with compressed, tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as members:
        for name in wanted:
            packer.add(members, name)
    return packer.packed


class _Packer:
    def __init__(self, root: Path, limit: int) -> None:
        self.packed = PackedOutput()
        self._root = root
        self._limit = limit
        self._done: set[str] = set()

    def add(self, members: tarfile.TarFile, name: str) -> None:
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
        """Paths relative to the root; a file of that very name wins over the pattern."""
        if os.path.lexists(self._root / path):
            yield str(path)
        elif any(sign in str(path) for sign in "*?["):
            yield from (name for name in self._everything() if _fits(name.split("/"), path.parts))

    def _everything(self) -> Iterator[str]:
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
        """Like `os.walk`, but too deep directories are listed as files, so that they are refused."""
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
            member = tarfile.TarInfo(name)  # without the owner
            member.size = facts.st_size
            member.mtime = int(facts.st_mtime)
            member.mode = 0o755 if facts.st_mode & stat.S_IXUSR else 0o644
            members.addfile(member, content)
        self.packed.files += 1
        self.packed.size += facts.st_size

    def _open(self, name: str) -> int | None:
        """Open a regular file inside the root; None if it is something else or elsewhere."""
        try:
            real = os.path.realpath(self._root / name)
        except RecursionError:  # a chain of a thousand links
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
    """Whether a path matches: `*` stays in a directory, `**` does not, hidden files stay hidden."""
    reached = _skipping(pattern, {0})  # pattern positions that may match the next part of the path
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
    """These positions and those after a `**`, which may match nothing."""
    reached = set(places)
    for at, word in enumerate(pattern):
        if at in reached and word == "**":
            reached.add(at + 1)
    return reached


_CHUNK = 1 << 20
_MOST_MEMBERS = 100_000

#: Maximum bytes of one read; tarfile copies contents in smaller pieces.
_LARGEST_PIECE = 4 << 20
#: Maximum bytes of all headers together, and the addition per member: tarfile keeps them in memory.
_HEADERS, _HEADERS_OF_MEMBER = 4 << 20, 2 << 10


class UnsafeArchive(Exception):
    """The archive is damaged, too large or leads out of its directory."""


class ArchiveTooLarge(UnsafeArchive):
    """The files of the archive exceed the size limit."""


def unpack(archive: BinaryIO, root: Path, *, limit: int, links: bool = True) -> list[str]:
    """Unpack a tar archive, compressed or not, into an existing empty directory; return its files' paths.

    `limit` is the maximum of bytes of all files together. `links` allows symbolic ones that stay inside, and
    hard ones.

    Raises:
        UnsafeArchive: It was refused; `root` may hold part of it.
    """
    stream = _plain(archive)
    unpacker = _Unpacker(root, stream, limit=limit, links=links)
    try:
        with tarfile.open(fileobj=stream, mode="r:", tarinfo=CheckedTarInfo) as members:
            for member in members:
                unpacker.add(members, member)
        stream.require_end()
    except UnsafeArchive:
        raise
    except OSError as error:
        if errors.is_to_blame(error):
            raise
        raise UnsafeArchive(f"cannot be unpacked: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001 - tarfile and its decompressors raise anything on bad input
        raise UnsafeArchive(f"is not a readable tar archive: {error}") from None
    return unpacker.files


def _plain(archive: BinaryIO) -> _Piecemeal:
    archive.seek(0)
    start = archive.read(6)
    archive.seek(0)
    if start.startswith(b"\x1f\x8b"):
        return _Piecemeal(gzip.GzipFile(fileobj=archive))
    if start.startswith(b"BZh"):
        return _Piecemeal(bz2.BZ2File(archive))
    if start == b"\xfd7zXZ\x00":
        return _Piecemeal(lzma.LZMAFile(archive))
    return _Piecemeal(archive)


class _Piecemeal(io.RawIOBase):
    """A stream that limits the size of each read and of all headers.

    tarfile reads headers with long names into memory as a whole and keeps those of all members; a few
    kilobytes can unpack to gigabytes of them.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream
        self.last_header = b""  #: last block read outside of members; empty or zeros at the end of an archive
        self.header_room = _HEADERS  #: bytes of headers that may still be read
        self.is_in_content = False  #: whether a member's content is being read, not a header

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LARGEST_PIECE:
            raise UnsafeArchive(f"has a header of {size} bytes")
        found = bytes(self._stream.read(size))
        if not self.is_in_content:
            self.last_header = found
            self.header_room -= len(found)
            if self.header_room < 0:
                raise UnsafeArchive("has headers of more bytes than its members need")
        return found

    def require_end(self) -> None:
        """Refuse an archive with data after its members: tarfile would stop there silently."""
        if self.last_header.strip(b"\0"):
            raise UnsafeArchive("is damaged: what follows its readable members is no header")

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self._stream.tell())


class _Unpacker:
    def __init__(self, root: Path, stream: _Piecemeal, *, limit: int, links: bool) -> None:
        self._root = root
        self._stream = stream
        self._limit = self._left = limit
        self._links = links
        self._members = 0
        self._made: dict[tuple[str, ...], Path] = {(): root}
        self.files: list[str] = []

    def add(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._stream.header_room += _HEADERS_OF_MEMBER
        self._count()
        parts = _components(member.name, member.name)
        if len(parts) - (not member.isdir()) > _DEEPEST:
            raise UnsafeArchive(f"{member.name!r:.200} lies more than {_DEEPEST} directories deep")
        if member.isdir():
            self._directory(parts)
            return
        if not parts:
            raise UnsafeArchive(f"{member.name!r} is not a valid name of a file")
        target = self._directory(parts[:-1]) / parts[-1]
        if os.path.lexists(target):
            raise UnsafeArchive(f"{member.name!r} is in it twice")
        if (member.issym() or member.islnk()) and not self._links:
            raise UnsafeArchive(f"{member.name!r} is a link: only files and directories are allowed")
        if member.issym():
            self._link(member, parts, target)
        elif member.islnk():
            os.link(self._earlier(member), target, follow_symlinks=False)
        elif member.isreg():
            self._file(members, member, target)
            self.files.append("/".join(parts))
        else:
            raise UnsafeArchive(f"{member.name!r} is neither file, directory nor link")

    def _count(self) -> None:
        self._members += 1
        if self._members > _MOST_MEMBERS:
            raise UnsafeArchive(f"has more than {_MOST_MEMBERS} members and directories of theirs")

    def _directory(self, parts: tuple[str, ...]) -> Path:
        """Create the directory with this path, once; no component may be a link."""
        known = len(parts)
        while parts[:known] not in self._made:
            known -= 1
        path = self._made[parts[:known]]
        for at in range(known, len(parts)):
            self._count()
            path = path / parts[at]
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                raise UnsafeArchive(f"{'/'.join(parts)!r} leads through a link or a file")
            path.mkdir(mode=0o755, exist_ok=True)
            self._made[parts[: at + 1]] = path
        return path

    def _link(self, member: tarfile.TarInfo, parts: tuple[str, ...], target: Path) -> None:
        """Create a symbolic link that stays inside: `..` only at its start, and not above the root.

        Its own directory is reached without links, and `..` never follows another link, so no later link
        can change its target.
        """
        steps = PurePosixPath(member.linkname).parts
        up = next((number for number, step in enumerate(steps) if step != ".."), len(steps))
        if not steps or steps[0] == "/" or ".." in steps[up:] or up > len(parts) - 1:
            raise UnsafeArchive(f"{member.name!r} is a link out of its directory: {member.linkname!r}")
        target.symlink_to(member.linkname)

    def _earlier(self, member: tarfile.TarInfo) -> Path:
        parts = _components(member.linkname, member.name)
        path = self._directory(parts[:-1]) / parts[-1] if parts else self._root
        if path.is_symlink() or not path.is_file():
            raise UnsafeArchive(f"{member.name!r} is a link to {member.linkname!r}, no file before it")
        return path

    def _file(self, members: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
        content = members.extractfile(member)
        mode = 0o700 | (member.mode & 0o055) if member.mode & 0o100 else 0o600 | (member.mode & 0o044)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        self._stream.is_in_content = True
        with os.fdopen(descriptor, "wb") as file:
            while content is not None and (chunk := content.read(_CHUNK)):
                self._left -= len(chunk)
                if self._left < 0:
                    raise ArchiveTooLarge(f"has more bytes than allowed when unpacked ({self._limit})")
                file.write(chunk)
            if file.tell() != member.size:
                raise UnsafeArchive(f"breaks off in {member.name!r}")
        self._stream.is_in_content = False


def _components(name: str, shown: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise UnsafeArchive(f"{shown!r} leaves its directory")
    return path.parts


_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(top: Path) -> None:
    """Remove a file or a directory tree, even if protected or nested deeper than a path can name.

    Every directory is moved right below `top` before it is listed: this avoids recursion, which hostile
    trees could exhaust in Python, and long paths. No link is followed, even if it replaces a directory
    meanwhile. Entries that cannot be removed stay.
    """
    if top.is_symlink():
        return
    place = _open_directory(str(top))
    if place is None:
        _unlink(str(top))
        return
    try:
        found: list[str] = []
        _clear(place, place, found)
        for name in found:  # which grows
            directory = _open_directory(name, place)
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


def _open_directory(name: str, parent: int | None = None) -> int | None:
    """Open a directory after making it accessible; None if it is not a directory, or not ours."""
    with contextlib.suppress(OSError):
        handle = os.open(name, _HANDLE, dir_fd=parent)
        try:
            with contextlib.suppress(OSError):
                os.chmod(f"/proc/self/fd/{handle}", 0o700)  # noqa: PTH101 - its name may be replaced meanwhile
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
        finally:
            os.close(handle)
    return None


def _clear(directory: int, place: int, found: list[str]) -> None:
    """Remove the files of a directory; move its directories to `place` and add their new names to `found`."""
    for entry in _entries(directory):
        if not entry.is_dir(follow_symlinks=False):
            _unlink(entry.name, directory)
        elif (child := _open_directory(entry.name, directory)) is not None:
            os.close(child)  # opened to make it writable: renaming a directory changes its `..`
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
