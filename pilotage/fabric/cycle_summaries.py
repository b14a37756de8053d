"""Summaries of the cycles of directors and gateways: lines of their logs, and reports to the service.

A report states that the process is at work, and what it cannot do. It extends a lease, by which the service
keeps a second process of one director from sending pilots as well. A process that was killed leaves its lease
behind: a new one on the same host sees that it has ended, and replaces it; elsewhere it waits until the lease
has expired.
"""

import os
import socket
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from pilotage.client.api import ApiError
from requirements.errors import format_count
from requirements.values import fold

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
    """Data that are the same in all reports of a process."""

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


#: Names in a line.
_SHOWN = 5


@dataclass(slots=True, kw_only=True)
class CycleProblems:
    """Begin, errors and problems of any cycle."""

    at: datetime
    away: list[str] = field(default_factory=list)  #: errors of what could not be reached
    problems: list[str] = field(default_factory=list)
    vo_problems: dict[str, list[str]] = field(default_factory=dict)  #: by VO, those that concern it alone

    def note_problem(self, vo: str, problem: str) -> None:
        """Note a problem that concerns one VO alone."""
        self.vo_problems.setdefault(fold(vo), []).append(problem)

    def list_problems(self, vo: str | None = None) -> list[str]:
        """The problems for the report of a VO, without those of other VOs; None: all, for the log."""
        own = self.vo_problems.values() if vo is None else [self.vo_problems.get(fold(vo), [])]
        return list(dict.fromkeys((*self.problems, *chain.from_iterable(own))))


@dataclass(slots=True, kw_only=True)
class DirectorSummary(CycleProblems):
    """Counts and problems of one cycle of a director."""

    kind: ClassVar[str] = "director"
    jobs: int = 0  #: that wait and that some queue of ours could take
    waiting: int = 0  #: pilots, at the begin of the cycle
    running: int = 0
    wanted: int = 0  #: new pilots by decision
    submitted: int = 0
    uncertain: int = 0  #: without an answer; the next cycles find out
    refused: int = 0
    adopted: int = 0  #: found by their stamps
    ended: Counter[str] = field(default_factory=Counter)  #: by how
    killed: int = 0  #: batch jobs whose pilots had ended
    removed: int = 0  #: pilots that waited too long in their batch systems
    withdrawn: int = 0  #: pilots that waited for no job, or in the place of others
    unsubmitted: int = 0  #: intents that were given back at once
    paused: list[str] = field(default_factory=list)  #: queues that get nothing after bad experience
    closed: list[str] = field(
        default_factory=list
    )  #: queues that are down in their batch systems, while jobs wait
    surplus: list[str] = field(default_factory=list)  #: waiting pilots that are too many, in words
    unserved: dict[str, int] = field(default_factory=dict)  #: jobs, by queue and its too small slot
    polled: int = 0  #: batch systems
    skipped: list[str] = field(default_factory=list)  #: batch systems, after failures
    outputs: Counter[str] = field(default_factory=Counter)  #: that were stored, by VO
    refusals: dict[str, ApiError] = field(default_factory=dict)  #: by VO, the first that the service refused

    @contextmanager
    def noting_refusals(self, vo: str) -> Iterator[None]:
        """Work for a VO; where the service refuses something of it, the others' work goes on."""
        try:
            yield
        except ApiError as error:
            if vo not in self.refusals:
                self.refusals[vo] = error
                self.note_problem(vo, f"nothing more is done for the VO {vo} in this cycle: {error}")

    def problems_of(self, vo: str, queues: Collection[str]) -> list[str]:
        """Problems that concern a VO and its queues: its own, and those of batch systems."""
        down = [queue for queue in self.closed if queue in queues]
        found = [*self.away, *self.list_problems(vo)]
        return [*found, f"down in their batch systems: {_join_some(down)}"] if down else found

    def __str__(self) -> str:
        told = [
            format_count(self.jobs, "job waits", "jobs wait"),
            f"pilots: {self.waiting} waiting, {self.running} running, {self.submitted} of {self.wanted} new",
        ]
        counts = {
            "without an answer": self.uncertain,
            "refused": self.refused,
            "adopted": self.adopted,
            "killed": self.killed,
            "removed after a long wait": self.removed,
            "withdrawn": self.withdrawn,
            "not submitted": self.unsubmitted,
            **{f"now {status}": number for status, number in sorted(self.ended.items())},
        }
        told += _list_counts(counts)
        told += [f"{what}: {_join_some(names)}" for what, names in self._lists().items() if names]
        return "; ".join(told)

    def _lists(self) -> Mapping[str, Sequence[str]]:
        return {
            "paused": self.paused,
            "down in their batch systems": self.closed,
            "systems skipped": self.skipped,
            "surplus": self.surplus,
            "slots too small": [
                f"{format_count(jobs, 'job fits', 'jobs fit')} {where}"
                for where, jobs in self.unserved.items()
            ],
        }

    @property
    def has_failed(self) -> bool:
        """Whether nothing worked: no batch system answered, or no submission succeeded."""
        return not self.polled or bool((self.refused or self.uncertain) and not self.submitted)


@dataclass(slots=True, kw_only=True)
class GatewaySummary(CycleProblems):
    """Counts and problems of one cycle of a gateway."""

    kind: ClassVar[str] = "gateway"
    grid_jobs: Counter[str] = field(default_factory=Counter)  #: by phase
    local_jobs: Counter[str] = field(default_factory=Counter)  #: by state
    taken: int = 0
    killed: int = 0  #: the service has requested their end
    lost: int = 0  #: the service has closed their attempts
    refused: Counter[str] = field(default_factory=Counter)  #: empty responses by reason
    advertised: int = 0  #: scopes
    stuck: int = 0  #: grid jobs with a problem, such as that their batch system refuses their local jobs

    @property
    def has_failed(self) -> bool:
        """Whether nothing worked: the service is away, or it refused all, or no grid job goes on."""
        is_refused = self.list_problems() and not self.advertised and not self.taken
        return bool(self.away or is_refused or (self.stuck and self.stuck == self.grid_jobs.total()))

    def __str__(self) -> str:
        told = [
            f"grid jobs: {_join_counts(self.grid_jobs) or 'none'}",
            f"local jobs: {_join_counts(self.local_jobs) or 'none'}",
        ]
        told += _list_counts({"taken": self.taken, "to be killed": self.killed, "lost": self.lost})
        if self.refused:
            told.append(f"no work: {_join_counts(self.refused)}")
        return "; ".join(told)


def _list_counts(counts: Mapping[str, int]) -> list[str]:
    return [f"{number} {what}" for what, number in counts.items() if number]


def _join_some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _join_counts(counted: Counter[str]) -> str:
    return ", ".join(_list_counts(dict(sorted(counted.items()))))
