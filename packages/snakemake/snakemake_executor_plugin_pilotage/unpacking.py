"""Unpack what a job made, below the current directory and nowhere else."""

import os
import tarfile
from pathlib import Path


def unpack(path: Path) -> None:
    """Unpack a tar into the current directory; TarError for a member that would lie elsewhere.

    By tarfile's filter `data`. Python 3.11.0 to 3.11.3, as in Debian 12, does not have it: there links are
    refused, too.
    """
    with tarfile.open(path) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(filter="data")
            return
        for member in archive:
            place = Path(member.name).resolve()
            if not (member.isfile() or member.isdir()) or not place.is_relative_to(Path.cwd().resolve()):
                raise tarfile.ExtractError(f"{member.name} is no file below the directory of the workflow")
            member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
            member.mode = member.mode & 0o755 | 0o600 | (0o100 if member.isdir() else 0)
            archive.extract(member, set_attrs=not member.isdir())
