"""Disk space that a payload uses, measured in small steps beside the monitoring of its processes."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Callable

#: Seconds from the end of a measurement to the next one.
_EVERY = 10.0
#: Most files that are looked at in one step, which takes a few milliseconds.
_STEP = 2_000
#: Unit of `st_blocks`. Source: stat(2).
_BLOCK = 512
#: Bytes from which on a file is remembered until the end of a measurement, so that it counts once although
#: it is renamed meanwhile. Smaller ones may be very many.
_LARGE = 1 << 20


class DiskUse:
    """Disk space of a directory, which is changed meanwhile."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.peak: int | None = None  #: bytes, as far as it was measured
        self._directory = directory
        self._clock = clock
        self._sizes: Iterator[int] | None = None  #: of the files that are still to be counted
        self._sum = 0
        self._due = clock()

    def measure_step(self, most: int = _STEP) -> None:
        """Count so many files at most, if a measurement is going on or due."""
        if self._sizes is None:
            if self._clock() < self._due:
                return
            self._sizes, self._sum = _list_sizes(str(self._directory)), 0
        sizes = list(islice(self._sizes, most))
        self._sum += sum(sizes)
        self.peak = max(self.peak or 0, self._sum)
        if len(sizes) < most:
            self._sizes, self._due = None, self._clock() + _EVERY

    def measure_end(self) -> None:
        """Count once more, in a step that may be larger, after the payload has ended."""
        self._sizes, self._due = None, self._clock()
        self.measure_step(20 * _STEP)


def _list_sizes(directory: str) -> Iterator[int]:
    """The bytes of each file and directory below; what cannot be read is left out.

    File systems that the payload has mounted there, such as CVMFS, are not of this disk.
    """
    ahead = [directory]
    counted: set[int] = set()  #: inodes
    device = None
    with suppress(OSError):
        device = os.lstat(directory).st_dev
    while ahead:
        with suppress(OSError), os.scandir(ahead.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if found.st_dev != device:
                        continue
                    if stat.S_ISDIR(found.st_mode):
                        ahead.append(entry.path)
                        names = 1
                    else:
                        names = found.st_nlink
                    size = found.st_blocks * _BLOCK
                    if names > 1 or size >= _LARGE:
                        size = 0 if found.st_ino in counted else size
                        counted.add(found.st_ino)
                    yield size
