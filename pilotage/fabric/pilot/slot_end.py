"""When the batch system ends the slot, as far as it tells its jobs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

#: Variables with the end, in seconds since the epoch: Slurm from 23.02 on.
_ENDS = ("SLURM_JOB_END_TIME",)
#: Variables with the length in seconds, counted from the start, which is ours: PBS/Torque, OAR.
_LENGTHS = ("PBS_WALLTIME", "OAR_JOB_WALLTIME_SECONDS")
#: Variables with the number of the job, and what tells the time that it has left, as `[days-][hours:]min:s`.
_COMMANDS = {"SLURM_JOB_ID": ("squeue", "--noheader", "--format=%L", "--jobs")}
_LEFT = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)")
#: Seconds to wait for such a command.
_PATIENCE = 15
#: Seconds; beyond three years nobody has set a limit.
_FOREVER = 3 * 365 * 86_400


def seconds_left(environment: Mapping[str, str], now: float) -> int | None:
    """Seconds until the slot ends; None: the batch system does not say, or sets no limit.

    Args:
        environment: The one that the batch system gave us.
        now: Seconds since the epoch.
    """
    ends = [number - now for name in _ENDS if (number := _number(environment, name))]
    lengths = [number for name in _LENGTHS if (number := _number(environment, name))]
    known = [int(left) for left in (*ends, *lengths) or _told(environment) if left < _FOREVER]
    return max(1, min(known)) if known else None


def _number(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name, "").strip()
    return float(text) if text.isdigit() else None


def _told(environment: Mapping[str, str]) -> list[int]:
    """What commands of the batch system say."""
    texts = [
        _asked((*command, environment[name]), environment)
        for name, command in _COMMANDS.items()
        if environment.get(name)
    ]
    found = [_LEFT.fullmatch(text) for text in texts]
    return [_seconds(*(int(each or 0) for each in match.groups())) for match in found if match]


def _seconds(days: int, hours: int, minutes: int, seconds: int) -> int:
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _asked(command: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """What a command says; nothing where it fails."""
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout.strip()
