"""Packing the files of an input sandbox."""

import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

#: Bytes that stay in memory; a larger archive goes to a temporary file.
_IN_MEMORY = 8 << 20


@contextmanager
def packed(files: Iterable[Path]) -> Iterator[BinaryIO]:
    """A tar archive of `files` under their base names, read from its start.

    Equal files give equal bytes, so the service stores them once: owner and times are left out.
    Links are followed; sockets and devices stay behind.
    """
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as stream:
        with tarfile.open(fileobj=stream, mode="w", dereference=True) as archive:
            for file in sorted(files, key=lambda each: each.name):
                archive.add(file, arcname=file.name, filter=_anonymous)
        stream.seek(0)
        yield stream  # type: ignore[misc]  # SpooledTemporaryFile is a binary file in all but its declared type


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if not (member.isfile() or member.isdir()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member
