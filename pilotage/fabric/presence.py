"""Reports of a director or gateway to the service in every cycle: it is at work, and what it cannot do.

A report extends a lease, by which the service keeps a second process of one director from sending pilots as
well. A process that was killed leaves its lease behind: a new one on the same host sees that it has ended,
and replaces it; elsewhere it waits until the lease has expired.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Characters of a problem, and numbers of problems and too small slots, in one report.
_LONGEST, _MOST_PROBLEMS, MOST_SLOTS = 500, 50, 1000
#: Task queues of all too small slots of a report: the service stores and reads it whole.
_MOST_TASK_QUEUES = 10_000
#: Cycles that a lease outlasts, and seconds in addition.
_CYCLES, _MARGIN = 2, 30.0


def identify_process() -> str:
    """The name of this process: no other one ever has it."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start_time(os.getpid())}"


def has_ended(holder: str) -> bool:
    """Whether a process of this host has ended; False for those of other hosts, of which nothing is known."""
    host, _, process = holder.partition(":")
    number, _, started = process.partition(":")
    return host == socket.gethostname() and number.isdecimal() and _start_time(int(number)) != started


def _start_time(process: int) -> str:
    """The time at which a process was started, in ticks since the host was; empty: it does not run."""
    try:
        state, *others = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else others[18]
    except (OSError, IndexError, ValueError):
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What is the same in all reports of a process."""

    kind: str  #: `director` or `gateway`
    name: str
    sites: Sequence[str]
    every: float  #: seconds between two cycles
    expected: float | None = None  #: seconds until the next report; None: `every`
    holder: str = field(default_factory=identify_process)

    def build_report(
        self,
        vo: str,
        *,
        problems: Sequence[str] = (),
        too_small: Sequence[Mapping[str, Any]] = (),
        ends: bool = False,
    ) -> dict[str, object]:
        """The body of a report for a VO; `ends`: no other one follows."""
        return {
            "kind": self.kind,
            "name": self.name,
            "vo": vo,
            "holder": self.holder,
            "every": self.expected or self.every,
            "lease": 0 if ends else min(_CYCLES * self.every + _MARGIN, 86_400),
            "sites": list(self.sites)[:1000],
            "problems": [each[:_LONGEST] for each in problems[:_MOST_PROBLEMS]],
            "too_small": _bound_slots(too_small),
        }


def _bound_slots(too_small: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """No more slots, and task queues of all of them, than a report may have."""
    found, left = [], _MOST_TASK_QUEUES
    for each in too_small[:MOST_SLOTS]:
        some = list(each["task_queues"])[:left]
        left -= len(some)
        found.append({**each, "task_queues": some})
    return found
