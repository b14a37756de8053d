"""Headers of tar archives that others made, checked before `tarfile` parses them.

`tarfile` takes quadratic time for digits in extended headers (before Python 3.11.10, CVE-2024-6232), and
keeps the interpreter meanwhile: 200 bytes of an archive stopped a process for 5 s, a kilobyte for hours. Of
sparse files it reads maps of any length. Runs on nodes, too, with Python 3.9.
"""

from __future__ import annotations

import re
import tarfile
from typing import Any

#: Bytes of one extended header: a name, its target and some numbers.
LONGEST = 16 << 10
_PAX = frozenset({tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE})
_EXTENDED = frozenset({*_PAX, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK})
#: More than any number, or part of a name, has.
_DIGITS = re.compile(rb"\d{101}")
#: Bytes of the length that a record begins with.
_LENGTH = 6


class CheckedTarInfo(tarfile.TarInfo):
    """A member whose headers take little time and memory; `tarfile.ReadError` for others, and sparse files.

    For `tarfile.open(tarinfo=…)`.
    """

    def _proc_member(self, archive: Any) -> Any:
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("has a sparse file, which is not read: pack it as an ordinary one")
        if self.type in _EXTENDED and not 0 <= self.size <= LONGEST:
            raise tarfile.ReadError(f"has a header of {self.size} bytes, allowed are {LONGEST}")
        return super()._proc_member(archive)  # type: ignore[misc] # typeshed leaves it out

    def _proc_pax(self, archive: Any) -> Any:
        archive.fileobj = _PaxHeader(archive)
        return super()._proc_pax(archive)  # type: ignore[misc]


class _PaxHeader:
    """Stands in for the stream of an archive until one extended header is read, and checks that."""

    def __init__(self, archive: Any) -> None:
        self._archive, self._stream = archive, archive.fileobj

    def read(self, size: int) -> bytes:
        self._archive.fileobj = self._stream
        content = bytes(self._stream.read(size))
        if not _is_fine(content):
            raise tarfile.ReadError("has an extended header that is damaged, or of a sparse file")
        return content


def _is_fine(content: bytes) -> bool:
    """Whether a header consists of records, `30 path=…`, without long numbers and maps of sparse files."""
    if b"GNU.sparse." in content or _DIGITS.search(content):
        return False
    at, end = 0, len(content.rstrip(b"\0"))
    while at < end:
        space = content.find(b" ", at, at + _LENGTH)
        length = content[at : max(space, at)]
        if not length.isdigit():
            return False
        record = content[at : at + int(length)]
        if b"=" not in record[space - at :] or not record.endswith(b"\n"):
            return False
        at += len(record)
    return True
