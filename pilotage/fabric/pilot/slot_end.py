"""When the batch system ends the slot, as far as it tells its jobs."""

from __future__ import annotations

from collections.abc import Mapping

#: Variables with the end, in seconds since the epoch: Slurm.
_ENDS = ("SLURM_JOB_END_TIME",)
#: Variables with the length in seconds, counted from the start, which is ours: PBS/Torque, OAR.
_LENGTHS = ("PBS_WALLTIME", "OAR_JOB_WALLTIME_SECONDS")
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
    known = [int(left) for left in (*ends, *lengths) if left < _FOREVER]
    return max(1, min(known)) if known else None


def _number(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name, "").strip()
    return float(text) if text.isdigit() else None
