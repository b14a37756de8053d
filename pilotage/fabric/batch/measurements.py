"""Measurements of a batch system: the load of its host, how long submissions take, and how many fail.

They are advertised as `requirements.measured_values` names them, for throttles such as `Load < 10`.
Source: SAM-Grid, whose gateways died of the load that their own submissions made.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pilotage.fabric.batch.batch_system import BatchSystemAway, SubmissionRefused, SubmissionUncertain
from pilotage.fabric.batch.shell import Shell
from requirements.measured_values import LOAD, SUBMIT_ERRORS, SUBMIT_SECONDS, WINDOW

#: Latest submissions that are kept.
MOST_SUBMISSIONS: Final = 100
#: Seconds between two measurements of the load, and that one may take.
_LOAD_EVERY, _LOAD_WITHIN = 15.0, 5.0
_LOAD_COMMAND: Final = ("sh", "-c", "cat /proc/loadavg && getconf _NPROCESSORS_ONLN")

_Answer = TypeVar("_Answer")


def measure_load(shell: Shell) -> float | None:
    """The load average of the last minute per core of a shell's host; None: it is no Linux.

    `BatchSystemAway`: the host cannot be reached.
    """
    done = shell.run(_LOAD_COMMAND, seconds=_LOAD_WITHIN)
    try:
        averages, cores = done.stdout.splitlines()
        return round(float(averages.split()[0]) / int(cores), 2)
    except (ValueError, IndexError, ZeroDivisionError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSubmission:
    """An attempt to submit a job."""

    ended_at: float
    seconds: float
    has_failed: bool


@dataclass(slots=True, kw_only=True)
class Measurements:
    """Latest measurements of one batch system; in memory only. One thread measures, others may read."""

    clock: Callable[[], float] = time.monotonic  #: seconds
    _load: tuple[float, float | None] | None = None  #: when it was measured, and the value
    _submissions: deque[MeasuredSubmission] = field(default_factory=lambda: deque(maxlen=MOST_SUBMISSIONS))

    def measure_load_if_due(self, shell: Shell) -> None:
        """Measure the load of the host; `BatchSystemAway`: the value before stays until it is too old."""
        now = self.clock()
        if self._load is None or now - self._load[0] >= _LOAD_EVERY:
            self._load = (now, measure_load(shell))

    def measure_submission(self, submit: Callable[[], _Answer]) -> _Answer:
        """Submit, and record how long it took and whether it failed."""
        began, has_failed = self.clock(), False
        try:
            return submit()
        except (BatchSystemAway, SubmissionRefused, SubmissionUncertain):
            has_failed = True
            raise
        finally:
            ended = self.clock()
            done = MeasuredSubmission(ended_at=ended, seconds=ended - began, has_failed=has_failed)
            self._submissions.append(done)

    def read(self) -> Mapping[str, float]:
        """The values by their names; without the load if it is not known or too old."""
        now = self.clock()
        latest = [each for each in self._submissions.copy() if now - each.ended_at < WINDOW]
        found: dict[str, float] = {
            SUBMIT_SECONDS: _find_p90([each.seconds for each in latest]),
            SUBMIT_ERRORS: sum(each.has_failed for each in latest),
        }
        match self._load:
            case (at, float(load)) if now - at < WINDOW:
                found[LOAD] = load
        return found


def combine_measurements(found: Collection[Mapping[str, float]]) -> Mapping[str, float]:
    """The values of a place with several batch systems: the highest ones; of failed submissions the sum."""
    names = {name for each in found for name in each}
    values = {name: [each[name] for each in found if name in each] for name in sorted(names)}
    return {name: sum(some) if name == SUBMIT_ERRORS else max(some) for name, some in values.items()}


def _find_p90(seconds: Collection[float]) -> float:
    """The least of some durations that nine of ten do not exceed; 0 without any."""
    if not seconds:
        return 0.0
    return round(sorted(seconds)[math.ceil(0.9 * len(seconds)) - 1], 3)
