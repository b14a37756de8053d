"""What happened as clients saw it, and what of it must not have happened.

A request took effect at some moment between its sending and its answer. Something is a flaw only if it is
one in every order that this allows.
"""

import json
import re
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

NEVER = float("inf")
SUBMITTING, POLLING, GATHERING = "submitting", "polling", "gathering"
#: Statuses in which a job is in the hands of a pilot.
PRESENT = frozenset({"Matched", "Running", "Stalled", "Completing"})


@dataclass(frozen=True)
class Event:
    """Something that a player or the campaign did or saw."""

    at: float  #: seconds since the beginning
    who: str
    what: str
    job_id: int | None = None
    fault: bool = False


class History:
    """All events in order, also written to a file."""

    def __init__(self, file: Path) -> None:
        self._began = time.monotonic()
        self._file = file.open("w", buffering=1)
        self._lock = threading.Lock()
        self.events: list[Event] = []
        self._losses: list[tuple[float, float]] = []

    def add_loss(self, behind: float, over: float) -> None:
        """Commits after `behind` were lost; at `over` (monotonic clock) the service is back."""
        self._losses.append((behind, over))

    def recently_lost(self, since: float) -> bool:
        """Whether commits were lost after a moment."""
        return any(over >= since for _, over in self._losses)

    def lost_between(self, began: float, ends: float) -> bool:
        """Whether commits of some time were lost, or those of before in it."""
        return any(behind <= ends and over >= began for behind, over in self._losses)

    def close(self) -> None:
        self._file.close()

    def add(self, who: str, what: str, job_id: int | None = None, *, fault: bool = False) -> None:
        event = Event(round(time.monotonic() - self._began, 3), who, what, job_id, fault)
        with self._lock:
            self.events.append(event)
            self._file.write(json.dumps(asdict(event)) + "\n")

    def shorten(self, flaw: str) -> list[Event]:
        """The events of the job that a flaw names, with the faults during its life; else the last faults."""
        named = re.search(r"\bjob (\d+)", flaw)
        own = [n for n, each in enumerate(self.events) if named and each.job_id == int(named[1])]
        if not own:
            return [each for each in self.events if each.fault][-10:]
        life = range(own[0], own[-1] + 1)
        return [self.events[n] for n in life if n in own or self.events[n].fault]


@dataclass(kw_only=True)
class Held:
    """A job in the hands of a simulated pilot; times of one monotonic clock."""

    lease: str
    job_id: int
    site: str
    asked: float  #: the request that brought it
    answered: float
    good_until: float = NEVER  #: the end of the lease
    nth: int = 0  #: in the answer that brought it
    taken_away: bool = False  #: a repetition of the request did not bring it again
    start_sent: float = NEVER
    end_sent: float = NEVER  #: its pilot says that it ends
    end_answered: float = NEVER
    kind: str = ""  #: its job type
    output: str | None = None  #: digest of the output that the service acknowledged
    finished: str = ""  #: the status of the acknowledged end
    may_have_failed: bool = False  #: a late report of its failure was not refused
    lost: bool = False  #: its pilot died, it was killed or taken away: who counts it when is open


@dataclass(kw_only=True)
class Advert:
    """An advertisement that the service took, or may have taken."""

    scope: str
    sent: float
    answered: float
    contained: float  #: what was started after that it cannot have acknowledged
    busy: int  #: submitting and gathering, as it says
    listed: frozenset[str] = frozenset()  #: leases that it names
    sure: bool = True  #: False: nobody knows whether it was taken


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What the throttle of a site allows; None: any number."""

    jobs: int | None = None
    submitting: int | None = None
    busy: int | None = None  #: no match is made while submitting and gathering are as many


@dataclass
class Truth:
    """What is really at a site, and the most that ever was."""

    bounds: Bounds
    phases: dict[str, str] = field(default_factory=dict)  #: by lease; a job is there before its start
    until: dict[str, float] = field(default_factory=dict)  #: by lease, when the site ends it by itself
    most: Counter[str] = field(default_factory=Counter)
    then: dict[str, str] = field(default_factory=dict)  #: what was there when there was most, by name
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, lease: str, phase: str, until: float = NEVER) -> None:
        """A job is there now; at the end of that time it is gone, whether or not its pilot has noticed."""
        with self.lock:
            self.phases[lease], self.until[lease] = phase, until
            self._note()

    def prolong(self, lease: str, until: float) -> None:
        """Let a job run on that is still there."""
        with self.lock:
            self.expire()
            if lease in self.phases:
                self.until[lease] = until

    def expire(self) -> None:
        """End the jobs whose time is over."""
        now = time.monotonic()
        for lease in [lease for lease in self.phases if self.until[lease] <= now]:
            del self.phases[lease]

    def go_on(self, lease: str, phase: str) -> None:
        """Into another phase, if it has not left meanwhile."""
        with self.lock:
            if lease in self.phases:
                self.phases[lease] = phase
                self._note()

    def leave(self, lease: str) -> None:
        with self.lock:
            self.phases.pop(lease, None)

    def clear(self) -> None:
        """Forget all jobs: the service lost them, so that it cannot count them."""
        with self.lock:
            self.phases.clear()

    def count(self, *phases: str) -> int:
        return sum(phase in phases for phase in self.phases.values()) if phases else len(self.phases)

    def _note(self) -> None:
        self.expire()
        now = {
            "jobs": self.count(),
            "submitting": self.count(SUBMITTING),
            "busy": self.count(SUBMITTING, GATHERING),
        }
        for name, number in now.items():
            if number > self.most[name]:
                self.most[name] = number
                there = ", ".join(f"{lease[:8]} {phase}" for lease, phase in self.phases.items())
                self.then[name] = f"at {time.monotonic():.3f} s of the clock: {there}"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A line of the jobs' log, with what limits ask about."""

    job_id: int
    to_status: str
    site: str
    kind: str  #: the value that is limited


def over_the_throttle(site: str, truth: Truth) -> Iterator[str]:
    """I1 and I2: more jobs were there at one moment than the site allows."""
    for name in ("jobs", "submitting"):
        bound = getattr(truth.bounds, name)
        if bound is not None and truth.most[name] > bound:
            yield f"{site}: {truth.most[name]} {name} at once, allowed are {bound}; {truth.then[name]}"


def crowd(steps: Iterable[Step], site: str, kind: str) -> Iterator[tuple[int, int]]:
    """For each match of a job of a kind at a site how many are there then, in the order of the log."""
    there: set[int] = set()
    for step in steps:
        if step.kind != kind:
            continue
        if step.to_status not in PRESENT:
            there.discard(step.job_id)
        elif step.site == site and step.to_status == "Matched":
            there.add(step.job_id)
            yield step.job_id, len(there)


def over_the_limit(steps: Iterable[Step], site: str, kind: str, most: int) -> Iterator[str]:
    """Jobs of a kind that were matched while as many as are allowed were there."""
    for job_id, number in crowd(steps, site, kind):
        if number > most:
            yield f"{site}: {number} jobs of the type {kind} with job {job_id}, allowed are {most}"


def too_fast(matches: Iterable[Held], *, seconds: float, burst: int) -> Iterator[str]:
    """Matches that came faster than the tokens of a delay, between their requests and answers."""
    ordered = sorted(matches, key=lambda each: each.answered)
    for first in ordered:
        inside = [each.answered for each in ordered if each.asked >= first.asked]
        for number, last in enumerate(inside, 1):
            allowed = burst + (last - first.asked) / seconds
            if number > allowed:
                yield f"{number} matches in {last - first.asked:.2f} s, allowed are {allowed:.1f}"
                break


def matched_while_closed(
    helds: Iterable[Held], adverts: Iterable[Advert], scope: str, most: int
) -> Iterator[str]:
    """I3: a match was made although what was reported and what was not contained reached the limit.

    The advertisements of a scope come one after the other.
    """
    here = sorted((each for each in adverts if each.scope == scope), key=lambda each: each.sent)
    there = [each for each in helds if each.site == scope.partition("/")[0]]
    for match in there:
        possible = _current(here, match)
        if not possible:
            yield f"{scope}: job {match.job_id} was matched before anything was advertised"
            continue
        least = min(_busy(each, match, there) for each in possible)
        if least >= most:
            yield f"{scope}: job {match.job_id} was matched while {least} were busy, allowed are {most}"


def doubled(helds: Iterable[Held]) -> Iterator[str]:
    """Jobs that two pilots held at the same time, and neither of them was given up for lost."""
    last: dict[int, Held] = {}
    for held in sorted(helds, key=lambda each: each.answered):
        before = last.get(held.job_id)
        if before is not None and not before.lost and held.answered < before.end_sent:
            if held.lost and held.asked < before.answered:
                continue  # a late answer about what was given out, and taken away, before
            yield f"job {held.job_id} was given out while another had it"
        last[held.job_id] = held


def _current(ordered: Sequence[Advert], match: Held) -> Sequence[Advert]:
    """Those that may have been the last one taken when the match was made."""
    first = bisect_left(ordered, match.asked, key=lambda each: each.answered) - 1
    while first > 0 and not ordered[first].sure:
        first -= 1
    return ordered[max(0, first) : bisect_left(ordered, match.answered, key=lambda each: each.sent)]


def _busy(advert: Advert, match: Held, there: Iterable[Held]) -> int:
    """What counted for sure when the match was made, if this was the advertisement."""
    return (
        advert.busy
        + match.nth
        + sum(
            each.answered < match.asked
            and match.answered < each.end_sent
            and advert.contained < each.start_sent
            and each.lease not in advert.listed
            and not each.lost
            for each in there
        )
    )
