"""The power of a processor by the DIRAC benchmark 2012 (DB12): run once for a node and user, or sampled.

Power is in normalised seconds per second of CPU time: 250 over the CPU seconds that one processor takes for
12.5 million normally distributed random numbers and their sums; about 10 to 50 on machines of the grid. It
depends on the version of Python; for those that DB12 has factors of, it is corrected as there.

Source: DB12 (github.com/DIRACGrid/DB12); DIRAC's CPUNormalizationFactor.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import socket
import stat
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Callable, TextIO

#: When the benchmark runs: at the start of the pilot, while it has no job, never.
START, IDLE, NEVER = "start", "idle", "never"
TIMES = (IDLE, START, NEVER)

_REFERENCE = 250.0
_NUMBERS = 12_500_000
#: Equal parts of the benchmark, and how many of them are enough where a slow machine runs out of time.
_PARTS, _ENOUGH = 100, 10
#: Seconds of wall time for all parts.
_PATIENCE = 60.0
#: Random numbers per round of the sample, and rounds: about a second in all.
_ROUND, _ROUNDS = 150_000, 3
#: Seconds for which a result is kept.
_KEPT = 30 * 86_400
#: Characters of the file with it, and the largest power; more is an error.
_LONGEST, _MOST_POWER = 4096, 10_000
#: Of Pythons that differ, by the first word of the processor's model.
_CORRECTIONS: Mapping[tuple[int, int], Mapping[str, float]] = {(3, 9): {"Intel": 0.86, "AMD": 0.71}}


def sample_power(clock: Callable[[], float] = time.process_time) -> float:
    """Power of one processor from a sample of the benchmark, rounded to two decimals."""
    powers = [_REFERENCE / (_seconds(_ROUND, clock) * _NUMBERS / _ROUND) for _ in range(_ROUNDS)]
    return round(statistics.median(powers), 2)


def run_benchmark(
    is_stopped: Callable[[], bool],
    model: str,
    clock: Callable[[], float] = time.thread_time,
    now: Callable[[], float] = time.monotonic,
) -> float | None:
    """Power of one processor by the whole benchmark, rounded to two decimals; None: it was stopped."""
    began = now()
    seconds: list[float] = []
    _seconds(_NUMBERS // _PARTS, clock)  # a processor with variable speed begins slowly
    while len(seconds) < _PARTS and now() - began < _PATIENCE:
        if is_stopped():
            return None
        seconds.append(_seconds(_NUMBERS // _PARTS, clock))
    if len(seconds) < _ENOUGH:
        return None
    factors = _CORRECTIONS.get(sys.version_info[:2], {})
    factor = next((factors[word] for word in factors if model.startswith(word)), 1.0)
    return round(factor * _REFERENCE / (sum(seconds) * _PARTS / len(seconds)), 2)


def _seconds(numbers: int, clock: Callable[[], float]) -> float:
    draw = random.Random(1).normalvariate
    total = squares = 0.0
    began = clock()
    for _ in range(numbers):
        number = draw(10, 1)
        total += number
        squares += number * number
    return max(clock() - began, 1e-6)


def _try_lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class PowerCache:
    """The result of the benchmark on this node, for this user, processor and version of Python."""

    def __init__(self, model: str, directory: Path | None = None) -> None:
        """Nothing is read yet; `directory` is that of the node for this user."""
        self._model = model
        self._directory = directory or Path(f"/var/tmp/pilotage-{os.getuid()}")  # noqa: S108 - checked below
        self._file = self._directory / f"db12-{socket.gethostname()}.json"

    def read(self, now: float) -> float | None:
        """The power; None: it was not measured in the last 30 days."""
        if not self._is_private():
            return None
        try:
            with self._file.open(encoding="utf-8") as file:
                found = json.loads(file.read(_LONGEST))
            is_fresh = 0 <= now - found["at"] < _KEPT and found["of"] == self._identity()
            power = float(found["power"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        return power if is_fresh and 0 < power <= _MOST_POWER else None

    def measure(self, benchmark: Callable[[], float | None], now: float) -> float | None:
        """The power, measured unless it is known; None: another pilot of the node measures it now."""
        with self._lock() as is_ours:
            if not is_ours:
                return None
            power = self.read(now) or benchmark()
            if power is not None and self._is_private():
                found = {"of": self._identity(), "power": power, "at": now}
                new = self._file.with_suffix(".new")
                with contextlib.suppress(OSError):
                    new.write_text(json.dumps(found), encoding="utf-8")
                    new.replace(self._file)
            return power

    def _identity(self) -> list[str]:
        return [self._model, ".".join(map(str, sys.version_info[:2]))]

    @contextlib.contextmanager
    def _lock(self) -> Iterator[bool]:
        """Whether no other pilot of this user measures here; where none can write, none is known."""
        with contextlib.ExitStack() as stack:
            is_ours = True
            with contextlib.suppress(OSError):
                self._directory.mkdir(mode=0o700)
            with contextlib.suppress(OSError):
                if self._is_private():
                    file = stack.enter_context((self._directory / "db12.lock").open("a", encoding="utf-8"))
                    is_ours = _try_lock(file)
            yield is_ours

    def _is_private(self) -> bool:
        """Whether only this user can write there: others may have made a directory of this name."""
        try:
            found = self._directory.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
