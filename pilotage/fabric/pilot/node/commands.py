"""Commands on the node, each bounded in time: one that hangs, even in the kernel, is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import BinaryIO

#: Bytes that are read of an output.
_MOST = 1 << 20
#: Seconds for the end of a killed process; one that waits for a broken device ends later, or never.
_LAST = 1.0


def run_command(
    words: Sequence[str], environment: Mapping[str, str], patience: float, output: BinaryIO
) -> int:
    """Exit status of a command in a session of its own, whose processes are killed at its end.

    Raises:
        OSError: It cannot be started.
        subprocess.TimeoutExpired: It did not end within `patience` seconds.
    """
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.DEVNULL,
        env=dict(environment),
        cwd="/",
        start_new_session=True,
    )
    try:
        return process.wait(patience)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LAST)


def read_output(words: Sequence[str], environment: Mapping[str, str], patience: float) -> str:
    """What a command prints; empty if it fails, hangs, or is not installed."""
    try:
        with tempfile.TemporaryFile() as output:
            status = run_command(words, environment, patience, output)
            output.seek(0)
            return "" if status else output.read(_MOST).decode("utf-8", errors="replace")
    except (OSError, subprocess.TimeoutExpired):  # also where no temporary file can be made
        return ""
