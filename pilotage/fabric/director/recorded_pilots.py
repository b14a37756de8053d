"""Pilots of a director as recorded by the service, their counts, and reports about them."""

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter

from pilotage.client.api import ApiError, ServiceClient
from pilotage.fabric.batch.batch_system import Handle
from pilotage.fabric.director.demand import QueueLimits
from pilotage.fabric.director.targets import (
    Pause,
    QueuePause,
    SubmittedAs,
    TargetGroup,
    Trial,
    find_pause,
    flags_digest,
    parse_stamp,
    read_last_reason,
)

_PAGE = 1000
#: Queues in one request with intents: each may have a name of 200 characters.
_PLACES = 10_000
#: Reports in one request: each may have a reason of 2,000 characters.
_REPORTS = 400
#: How long pilots that ended are kept for experience and clearing up.
_MEMORY = timedelta(days=1)
#: Transactions may commit in another order than their times.
_OVERLAP = timedelta(minutes=5)


#: The code of the service's refusal of fields that it does not know, as one of 1.0 those of this release.
INVALID: Final = "invalid_request"


class Status(StrEnum):
    """States of pilots that a director reports. Source: DIRAC, states of pilots."""

    SUBMITTED = "Submitted"  #: intended; what its batch system made of it nobody knows yet
    WAITING = "Waiting"
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    DONE = "Done"
    FAILED = "Failed"  #: it spoke to the service, and broke
    ABORTED = "Aborted"  #: it broke without a word, or nothing is left of it
    DELETED = "Deleted"  #: it was removed, or never got anywhere


ACTIVE = frozenset({Status.SUBMITTED, Status.WAITING, Status.RUNNING, Status.UNKNOWN})
ENDED = frozenset(Status) - ACTIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorPilot:
    """A pilot as recorded by the service."""

    stamp: str
    vo: str
    queue: str  #: `Site/CE/Queue`; empty as long as a broker has not picked it
    status: Status
    reference: str | None  #: the batch system's; None: not known
    jobs: int  #: how many it was given
    created_at: datetime
    updated_at: datetime
    last_seen_at: datetime | None  #: its own last request
    possible_queues: tuple[str, ...] = ()  #: where a broker may let it land; none: it was sent to its queue
    has_output: bool = False  #: the service has the end of what it wrote
    open_jobs: int = 0  #: that it has now
    used_cores: int = 0  #: of these jobs
    ended_jobs: int = 0  #: whose payload ended there
    empty_reason: str = ""  #: why it got no job, in a word
    reason: str = ""  #: why it ended, in a line

    @property
    def handle(self) -> Handle:
        """Handle of its batch job."""
        return Handle(stamp=self.stamp, reference=self.reference)

    def with_report(self, report: "PilotReport") -> "DirectorPilot":
        """The pilot as it is after a report."""
        return replace(self, status=report.status, reason=_read_first_line(report.reason) or self.reason)

    @property
    def queues(self) -> tuple[str, ...]:
        """Where it is, or may be as long as its broker has not picked."""
        return (self.queue,) if self.queue else self.possible_queues


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotReport:
    """Report to be sent about a pilot."""

    stamp: str
    status: Status
    reference: str | None = None
    reason: str = ""
    node: str = ""  #: of one that ended before it spoke to the service; empty: not known


class Pilots:
    """The pilots of one VO and one director; the service has them, those that ended are kept here as well."""

    def __init__(self, client: ServiceClient, vo: str, director: str) -> None:
        self._client = client
        self._vo = vo
        self._director = director
        self._ended: dict[str, DirectorPilot] = {}

    def refresh(self, now: datetime) -> list[DirectorPilot]:
        """The pilots that live, and those that ended not long ago; of these only the changes are read."""
        begin = now - _MEMORY
        latest = max((pilot.updated_at for pilot in self._ended.values()), default=begin)
        # Those that live first: who ends between the two queries is in both, not in neither.
        found = {pilot.stamp: pilot for pilot in self._read({"status": _words(ACTIVE)})}
        since = max(begin, latest - _OVERLAP)
        for pilot in self._read({"status": _words(ENDED), "since": since.isoformat()}):
            known = self._ended.get(pilot.stamp)
            self._ended[pilot.stamp] = known if known is not None and known.has_output else pilot
        self._ended = {stamp: each for stamp, each in self._ended.items() if each.updated_at >= begin}
        return list((found | self._ended).values())

    def intend(self, groups: Mapping[str, TargetGroup]) -> Mapping[str, str]:
        """Store the intents to submit pilots, by stamp; the secrets for which they get their tokens."""
        secrets: dict[str, str] = {}
        widest = max((len(group.queues) for group in groups.values()), default=1)
        for some in _split([*groups], max(1, min(_PAGE, _PLACES // widest))):
            intents = [{"stamp": stamp, **_places(groups[stamp])} for stamp in some]
            secrets |= self._client.register_pilots(intents, vo=self._vo)
        return secrets

    def keep_output(self, pilot: DirectorPilot, *, stdout: str, stderr: str) -> None:
        """Store the ends of what a pilot that ended wrote."""
        self._client.keep_pilot_output(pilot.stamp, stdout=stdout, stderr=stderr)
        self._ended[pilot.stamp] = replace(pilot, has_output=True)

    def report(self, reports: Sequence[PilotReport]) -> frozenset[str]:
        """Report statuses; the stamps of pilots of which the service has newer ones."""
        unchanged: frozenset[str] = frozenset()
        for some in _split(reports, _REPORTS):
            rows = [asdict(each) for each in some]
            plain = [{name: value for name, value in row.items() if name != "node"} for row in rows]
            has_nodes = any(each.node for each in some)
            try:
                unchanged |= self._client.set_pilot_statuses(rows if has_nodes else plain)
            except ApiError as error:
                if not has_nodes or error.code != INVALID:
                    raise
                unchanged |= self._client.set_pilot_statuses(plain)  # a service of 1.0 takes no nodes
        return unchanged

    def _read(self, filters: Mapping[str, str]) -> Iterator[DirectorPilot]:
        after: object = None
        while True:
            page = self._client.pilots({"vo": self._vo, **filters}, limit=_PAGE, after=after)
            for each in page["pilots"]:
                if parse_stamp(each["stamp"], self._director) is not None:
                    yield _pilot(each)
            if (after := page["next"]) is None:
                return


def _places(group: TargetGroup) -> Mapping[str, object]:
    return {"possible_queues": group.queues} if group.broker else {"queue": group.queues[0]}


_Entry = TypeVar("_Entry")


def _split(entries: Sequence[_Entry], most: int) -> Iterator[Sequence[_Entry]]:
    for begin in range(0, len(entries), most):
        yield entries[begin : begin + most]


def _words(statuses: Iterable[Status]) -> str:
    return ",".join(sorted(statuses))


_PILOT = TypeAdapter(DirectorPilot)
_LONGEST_REASON = 200  #: characters


def _pilot(said: Mapping[str, Any]) -> DirectorPilot:
    # Thousands have the same.
    queue = sys.intern(f"{said['site']}/{said['ce']}/{said['queue']}") if said["site"] else ""
    return _PILOT.validate_python({**said, "queue": queue, "reason": _read_first_line(said["status_reason"])})


def _read_first_line(reason: str) -> str:
    return sys.intern(reason.strip().partition("\n")[0][:_LONGEST_REASON])


_BAD = frozenset({Status.FAILED, Status.ABORTED})


def is_running(pilot: DirectorPilot) -> bool:
    """Whether it counts as running: its state is Running, or the service has heard from it."""
    return pilot.status is Status.RUNNING or pilot.last_seen_at is not None


def is_waiting(pilot: DirectorPilot) -> bool:
    """Whether it has not ended, and has not started as far as anybody knows."""
    return pilot.status in ACTIVE and not is_running(pilot)


def free_room(pilots: Iterable[DirectorPilot], limits: QueueLimits) -> int:
    """Pilots that may be added to a queue which has these."""
    active = [is_running(pilot) for pilot in pilots if pilot.status in ACTIVE]
    return limits.room(waiting=active.count(False), running=active.count(True))


def are_places_taken_by_waiting(pilots: Iterable[DirectorPilot], limits: QueueLimits) -> bool:
    """Whether a queue has no room only because so many pilots wait."""
    known = list(pilots)
    running = [each for each in known if not is_waiting(each)]
    return free_room(known, limits) == 0 < free_room(running, limits)


def pilots_by_group(
    pilots: Iterable[DirectorPilot], groups: Iterable[TargetGroup], director: str
) -> Mapping[TargetGroup, tuple[DirectorPilot, ...]]:
    """The pilots of each group; those that were sent with flags which no group has now are in none.

    What a broker may pick from changes with what its queues take: its pilots belong to the group that has
    most in common with where they are or may be.
    """
    alike: dict[tuple[str, SubmittedAs], list[TargetGroup]] = defaultdict(list)
    by_queue: dict[tuple[str, SubmittedAs, str], list[TargetGroup]] = defaultdict(list)
    for group in sorted(groups):
        sent_as = SubmittedAs(kind=flags_digest(group.flags), broker=group.broker)
        if group.broker:
            alike[group.vo, sent_as].append(group)
        else:
            by_queue[group.vo, sent_as, group.queues[0]].append(group)
    found: dict[TargetGroup, list[DirectorPilot]] = defaultdict(list)
    for pilot in pilots:
        sent = parse_stamp(pilot.stamp, director)
        if sent is None:
            continue
        near = (
            alike.get((pilot.vo, sent), ())
            if sent.broker
            else by_queue.get((pilot.vo, sent, pilot.queue), ())
        )
        closest = _closest(pilot.queues, near)
        if closest is not None:
            found[closest].append(pilot)
    return {group: tuple(of_group) for group, of_group in found.items()}


def list_others(
    pilots: Iterable[DirectorPilot],
    by_group: Mapping[TargetGroup, Iterable[DirectorPilot]],
    vos: Collection[str],
) -> list[DirectorPilot]:
    """The pilots of some VOs that are in no group."""
    known = {own.stamp for of_group in by_group.values() for own in of_group}
    return [each for each in pilots if each.vo in vos and each.stamp not in known]


def list_bad_targets(
    pilots: Iterable[DirectorPilot], director: str, pause: Pause, now: datetime
) -> Mapping[tuple[str, str, str], QueuePause]:
    """VO, broker and queue where a broker's pilots fared so badly that it is not to pick this queue now.

    Counted are those of which it is known where they were: a queue on whose nodes pilots end at once is
    always free, and would get all of them.
    """
    by_queue: dict[tuple[str, str, str], list[DirectorPilot]] = defaultdict(list)
    for pilot in pilots:
        sent = parse_stamp(pilot.stamp, director)
        if sent is not None and sent.broker and len(pilot.queues) == 1:
            by_queue[pilot.vo, sent.broker, pilot.queues[0]].append(pilot)
    found = {}
    for queue, there in by_queue.items():
        trials = list(list_trials(there, now))
        if (until := find_pause(trials, pause, now)) is not None:
            found[queue] = QueuePause(until=until, reason=read_last_reason(trials))
    return found


def pilots_by_queue(
    pilots: Iterable[DirectorPilot], limits: Mapping[str, QueueLimits]
) -> Mapping[str, Sequence[DirectorPilot]]:
    """The active pilots of each queue; one on its way counts where most room is left of where it may land."""
    found: dict[str, list[DirectorPilot]] = defaultdict(list)

    def left(queue: str) -> int:
        of_queue = limits.get(queue, QueueLimits())
        return min(of_queue.total, of_queue.waiting) - len(found[queue])

    active = (pilot for pilot in pilots if pilot.status in ACTIVE)
    for pilot in sorted(active, key=lambda each: not each.queue):
        found[pilot.queue or max(pilot.queues, key=left)].append(pilot)
    return found


def _closest(queues: Collection[str], groups: Sequence[TargetGroup]) -> TargetGroup | None:
    """The group that shares most queues, and of those the one that has fewest others."""

    def shared(group: TargetGroup) -> int:
        return len(set(queues).intersection(group.queues))

    best = max(groups, key=lambda group: (shared(group), -len(group.queues)), default=None)
    return best if best is not None and shared(best) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotSlot:
    """Slot of a group's pilots, and how their queue is filled."""

    cores: int
    lifetime: float | None  #: seconds; None: no end in sight
    is_full: bool = False  #: no pilot would start at once, as far as the batch system reports
    soon: timedelta = timedelta(minutes=15)


#: So long a pilot may need to start where cores are free.
START = timedelta(minutes=2)


def count_free(pilot: DirectorPilot, slot: PilotSlot, now: datetime) -> float:
    """The part of its slot for which a running pilot requests jobs now or soon.

    One without a job does. One that had jobs does if those that ended were short: if it will be free soon,
    and has as much time left as they took. A job that still runs shows nothing about its length.
    """
    age = now - pilot.created_at
    left = timedelta.max if slot.lifetime is None else timedelta(seconds=slot.lifetime) - age
    if left <= timedelta(0):
        return 0.0
    ended = pilot.jobs - pilot.open_jobs
    if not pilot.open_jobs or (ended and age / ended <= min(slot.soon, left)):
        return 1.0
    return max(0.0, 1 - pilot.used_cores / slot.cores)


def is_late(pilot: DirectorPilot, slot: PilotSlot, now: datetime) -> bool:
    """Whether other queues may be faster: a pilot waits in a full one, or longer than a start takes."""
    age = now - pilot.created_at
    return age > (START if slot.is_full else slot.soon)


def weigh_waiting(pilot: DirectorPilot, slot: PilotSlot, now: datetime) -> float:
    """How much a waiting pilot counts: the less, the longer it has waited."""
    return min(1.0, slot.soon / max(now - pilot.created_at, timedelta(seconds=1)))


def count_slots(pilots: Iterable[DirectorPilot], slot: PilotSlot, now: datetime) -> tuple[float, float]:
    """Slots of a group's pilots that take jobs soon, and those of pilots that wait where it may last."""
    there, prompt, late = 0.0, 0.0, 0.0
    for pilot in pilots:
        if pilot.status not in ACTIVE:
            continue
        if is_running(pilot):
            there += count_free(pilot, slot, now)
        elif is_late(pilot, slot, now):
            late += weigh_waiting(pilot, slot, now)
        else:
            prompt += weigh_waiting(pilot, slot, now)
    # Of waiting pilots whole ones: a part of one would make one more of each that has waited a while.
    return there + round(prompt), float(round(late))


#: A job that has run for so long shows that jobs can run where it is.
_PROVEN = timedelta(minutes=10)


_NODE_FEATURES = "node_features"
#: Reasons why a pilot got no job that say nothing of its queue for other jobs: the service gave none to its
#: place, or those that wait need what its node lacks, and the service wants no further pilots for them.
_NOT_OF_QUEUE = frozenset({"banned", "limits", "throttled", _NODE_FEATURES})
#: Of one that ended since the service excludes its node: no experience of the queue, which has others.
_EXCLUDED_NODE = "node_excluded"


def list_trials(
    pilots: Iterable[DirectorPilot], now: datetime, *, with_flags: bool = False
) -> Iterator[Trial]:
    """How pilots fared: those that have or had jobs, that failed, that ended without a job, or that wait.

    A job that was given to a pilot proves nothing: on a node that can run none, each is given back at once.
    Pilots that an excluded node refuses show nothing of their queue. `with_flags`: the batch system was asked
    for certain nodes, so that one which lacks what jobs need shows that the flags do not find them.
    """
    for pilot in pilots:
        was_refused = pilot.empty_reason == _EXCLUDED_NODE and not pilot.jobs
        trial = None if was_refused else read_trial(pilot, now, with_flags=with_flags)
        if trial is not None:
            yield trial


def read_trial(pilot: DirectorPilot, now: datetime, *, with_flags: bool = False) -> Trial | None:
    """How a pilot fared where it is; None: this shows nothing."""
    is_empty = pilot.status is Status.DONE and not pilot.jobs
    is_good = _could_run_jobs(pilot, now)
    waits = pilot.status in ACTIVE and not pilot.jobs
    is_known = waits or is_good is not False or is_empty or pilot.status in _BAD
    is_other = pilot.empty_reason in _NOT_OF_QUEUE and not (
        with_flags and pilot.empty_reason == _NODE_FEATURES
    )
    if not is_known or (is_empty and is_other):
        return None
    return Trial(
        sent_at=pilot.created_at,
        known_at=max(pilot.updated_at, pilot.last_seen_at or pilot.updated_at),
        good=None if waits else is_good,
        empty=is_empty,
        waits=waits,
        reason=pilot.reason or (f"it got no job: {pilot.empty_reason}" if is_empty else ""),
    )


def _could_run_jobs(pilot: DirectorPilot, now: datetime) -> bool | None:
    """Whether a job ended at a pilot, or runs there for a while; else whether it ended well after jobs.

    None: it has jobs that have just begun.
    """
    if pilot.ended_jobs:
        return True
    if pilot.status in ACTIVE and is_running(pilot) and pilot.open_jobs:
        return True if now - pilot.updated_at >= _PROVEN else None
    return pilot.status is Status.DONE and pilot.jobs > 0
