"""Unpacking an archive that somebody sent: whatever it holds, nothing is written outside its directory.

Tar archives can name absolute paths and `..`, lead out through links made a moment before, bring devices
and set-user-id programs, or unpack a few kilobytes to terabytes. All of these are refused.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from pilotage.fabric.pilot import host

_CHUNK = 1 << 20
_MOST_MEMBERS = 100_000
#: Directories below each other; what walks through them recurses.
_DEEPEST = 100
#: Bytes that are read at a time; tarfile copies contents in smaller pieces.
_LARGEST_PIECE = 4 << 20
#: Bytes that all headers may have together, and more with each member: tarfile keeps them in memory.
_HEADERS, _HEADERS_OF_MEMBER = 4 << 20, 2 << 10


class UnsafeArchive(Exception):
    """The archive is damaged, too large or wants to leave its directory."""


class ArchiveTooLarge(UnsafeArchive):
    """Its files have more bytes than allowed."""


def unpack(archive: BinaryIO, root: Path, *, limit: int, links: bool = True) -> list[str]:
    """Unpack a tar archive, compressed or not, into an existing empty directory.

    Args:
        archive: Read from its start.
        root: Nothing is written elsewhere.
        limit: Bytes that all files may have together.
        links: Whether links may be in it: symbolic ones that stay inside, and hard ones.

    Returns:
        The paths of its files below `root`, in their order.

    Raises:
        UnsafeArchive: It was refused; `root` then holds a part of it.
    """
    stream = _plain(archive)
    unpacker = _Unpacker(root, stream, limit=limit, links=links)
    try:
        with tarfile.open(fileobj=stream, mode="r:") as members:
            for member in members:
                unpacker.add(members, member)
    except UnsafeArchive:
        raise
    except OSError as error:
        if host.is_to_blame(error):
            raise
        raise UnsafeArchive(f"cannot be unpacked: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001 - tarfile and its decompressors raise anything on bad input
        raise UnsafeArchive(f"is no readable tar archive: {error}") from None
    return unpacker.files


def _plain(archive: BinaryIO) -> _Piecemeal:
    """The archive without its compression, which its first bytes tell."""
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
    """A stream that is never read in large pieces, and of which headers are a small part.

    tarfile takes headers with long names into memory whole, keeps those of all members, and a few
    kilobytes unpack to gigabytes of them.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream
        self.header_room = _HEADERS  #: bytes of headers that may still be read
        self.is_in_content = False  #: of a member: what is read is no header

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LARGEST_PIECE:
            raise UnsafeArchive(f"has a header of {size} bytes")
        found = bytes(self._stream.read(size))
        if not self.is_in_content:
            self.header_room -= len(found)
            if self.header_room < 0:
                raise UnsafeArchive("has headers of more bytes than its members need")
        return found

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
        self.files: list[str] = []

    def add(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._stream.header_room += _HEADERS_OF_MEMBER
        self._members += 1
        if self._members > _MOST_MEMBERS:
            raise UnsafeArchive(f"has more than {_MOST_MEMBERS} members")
        parts = _inside(member.name, member.name)
        if len(parts) > _DEEPEST:
            raise UnsafeArchive(f"{member.name!r:.200} lies more than {_DEEPEST} directories deep")
        if member.isdir():
            self._directory(parts)
            return
        if not parts:
            raise UnsafeArchive(f"{member.name!r} is no name of a file")
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

    def _directory(self, parts: tuple[str, ...]) -> Path:
        """The directory with this path, made where missing; no component may be a link."""
        path = self._root
        for part in parts:
            path = path / part
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                raise UnsafeArchive(f"{'/'.join(parts)!r} leads through a link or a file")
            path.mkdir(mode=0o755, exist_ok=True)
        return path

    def _link(self, member: tarfile.TarInfo, parts: tuple[str, ...], target: Path) -> None:
        """A symbolic link that stays inside: `..` only at its start, and not further up than the root.

        Since its own directory is reached without links, and `..` never follows another link, no
        link made later can give it another meaning.
        """
        steps = PurePosixPath(member.linkname).parts
        up = next((number for number, step in enumerate(steps) if step != ".."), len(steps))
        if not steps or steps[0] == "/" or ".." in steps[up:] or up > len(parts) - 1:
            raise UnsafeArchive(f"{member.name!r} is a link out of its directory: {member.linkname!r}")
        target.symlink_to(member.linkname)

    def _earlier(self, member: tarfile.TarInfo) -> Path:
        """The file that a hard link names, which must have come before."""
        parts = _inside(member.linkname, member.name)
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


def _inside(name: str, shown: str) -> tuple[str, ...]:
    """The components of a relative path without `..`."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise UnsafeArchive(f"{shown!r} leaves its directory")
    return path.parts
