"""Pilots of a director as recorded by the service, their counts, and reports about them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter

from pilotage.fabric.batch.batch_system import Handle
from pilotage.fabric.client import ApiError, Client
from pilotage.fabric.director.demand import QueueLimits
from pilotage.fabric.director.targets import (
    Pause,
    SubmittedAs,
    TargetGroup,
    Trial,
    flags_digest,
    most_to_send,
    parse_stamp,
)

_PAGE = 1000
_CONFLICT = 409


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
    landings: tuple[str, ...] = ()  #: where a broker may let it land; none: it was sent to its queue
    has_output: bool = False  #: the service has the end of what it wrote

    @property
    def handle(self) -> Handle:
        """Handle of its batch job."""
        return Handle(stamp=self.stamp, reference=self.reference)

    @property
    def queues(self) -> tuple[str, ...]:
        """Where it is, or may be as long as its broker has not picked."""
        return (self.queue,) if self.queue else self.landings


class Pilots:
    """The pilots of one VO and one director."""

    def __init__(self, client: Client, vo: str) -> None:
        self._client = client
        self._vo = vo

    def active(self) -> list[DirectorPilot]:
        """Those that have not ended, as far as the service knows."""
        return list(self._all({"status": _words(ACTIVE)}))

    def ended(self, since: datetime) -> list[DirectorPilot]:
        """Those that have ended since then."""
        return list(self._all({"status": _words(ENDED), "since": since.isoformat()}))

    def intend(self, stamp: str, post: TargetGroup) -> str:
        """Store the intent to submit a pilot; the secret for which it gets its token."""
        places: Mapping[str, Any] = {"landings": post.queues} if post.broker else {"queue": post.queues[0]}
        answer = self._client.register_pilot(stamp=stamp, vo=self._vo, secret=True, **places)
        return str(answer["secret"])

    def keep_output(self, stamp: str, *, stdout: str, stderr: str) -> None:
        """Store the ends of what a pilot wrote."""
        self._client.keep_pilot_output(stamp, stdout=stdout, stderr=stderr)

    def tell(self, stamp: str, status: Status, *, reference: str | None = None, reason: str = "") -> bool:
        """Say what became of a pilot; False: the service knows better, it has ended or runs already."""
        try:
            self._client.set_pilot_status(stamp, status, reference=reference, reason=reason)
        except ApiError as error:
            if error.status != _CONFLICT:
                raise
            return False
        return True

    def _all(self, filters: Mapping[str, str]) -> Iterator[DirectorPilot]:
        after: object = None
        while True:
            page = self._client.pilots({"vo": self._vo, **filters}, limit=_PAGE, after=after)
            yield from map(_pilot, page["pilots"])
            if (after := page["next"]) is None:
                return


def _words(statuses: Iterable[Status]) -> str:
    return ",".join(sorted(statuses))


_PILOT = TypeAdapter(DirectorPilot)


def _pilot(said: Mapping[str, Any]) -> DirectorPilot:
    queue = f"{said['site']}/{said['ce']}/{said['queue']}" if said["site"] else ""
    return _PILOT.validate_python({**said, "queue": queue})


_BAD = frozenset({Status.FAILED, Status.ABORTED})


def is_running(pilot: DirectorPilot) -> bool:
    """Whether it counts as running; what nobody knows of, is taken to be as it was: on its way."""
    return pilot.status is Status.RUNNING or pilot.last_seen_at is not None


def free_room(pilots: Iterable[DirectorPilot], limits: QueueLimits) -> int:
    """Pilots that may be added to a queue which has these."""
    active = [is_running(pilot) for pilot in pilots if pilot.status in ACTIVE]
    return limits.room(waiting=active.count(False), running=active.count(True))


def pilots_by_group(
    pilots: Iterable[DirectorPilot], posts: Iterable[TargetGroup], director: str
) -> Mapping[TargetGroup, tuple[DirectorPilot, ...]]:
    """The pilots of each post; those that were sent with flags which no post has now are in none.

    What a broker may pick from changes with what its queues take: its pilots belong to the post that has
    most in common with where they are or may be.
    """
    alike: dict[tuple[str, SubmittedAs], list[TargetGroup]] = defaultdict(list)
    for post in sorted(posts):
        alike[post.vo, SubmittedAs(kind=flags_digest(post.flags), broker=post.broker)].append(post)
    found: dict[TargetGroup, list[DirectorPilot]] = defaultdict(list)
    for pilot in pilots:
        sent = parse_stamp(pilot.stamp, director)
        closest = None if sent is None else _closest(pilot.queues, alike.get((pilot.vo, sent), ()))
        if closest is not None:
            found[closest].append(pilot)
    return {post: tuple(of_post) for post, of_post in found.items()}


def bad_landings(
    pilots: Iterable[DirectorPilot], director: str, pause: Pause, now: datetime
) -> frozenset[tuple[str, str, str]]:
    """VO, broker and queue where a broker's pilots fared so badly that it is not to pick this queue now.

    Counted are those of which it is known where they were: a queue on whose nodes pilots end at once is
    always free, and would get all of them.
    """
    of_landing: dict[tuple[str, str, str], list[DirectorPilot]] = defaultdict(list)
    for pilot in pilots:
        sent = parse_stamp(pilot.stamp, director)
        if sent is not None and sent.broker and len(pilot.queues) == 1:
            of_landing[pilot.vo, sent.broker, pilot.queues[0]].append(pilot)
    return frozenset(
        landing for landing, there in of_landing.items() if most_to_send(list_trials(there), pause, now) == 0
    )


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


def _closest(queues: Collection[str], posts: Sequence[TargetGroup]) -> TargetGroup | None:
    """The post that shares most queues, and of those the one that has fewest others."""

    def shared(post: TargetGroup) -> int:
        return len(set(queues).intersection(post.queues))

    best = max(posts, key=lambda post: (shared(post), -len(post.queues)), default=None)
    return best if best is not None and shared(best) else None


def will_take_a_job(pilot: DirectorPilot, now: datetime, *, lifetime: float | None, soon: timedelta) -> bool:
    """Whether a pilot takes one of the waiting jobs by itself.

    One that waits does, and one that has just begun. One that had jobs does if those were short: if it
    will be free soon, and as much time is left of its slot (`lifetime` in seconds; None: no end in sight) as
    its jobs took so far.
    """
    if pilot.status not in ACTIVE:
        return False
    if not is_running(pilot) or not pilot.jobs:
        return True
    age = now - pilot.created_at
    each = age / pilot.jobs
    left = timedelta.max if lifetime is None else timedelta(seconds=lifetime) - age
    return each <= min(soon, left)


def list_trials(pilots: Iterable[DirectorPilot]) -> Iterable[Trial]:
    """What is known of how pilots fared: of those that had a job, that failed, or that ended without one."""
    for pilot in pilots:
        broke = pilot.status in _BAD or (pilot.status is Status.DONE and not pilot.jobs)
        if pilot.jobs or broke:
            yield Trial(sent_at=pilot.created_at, known_at=pilot.updated_at, good=pilot.jobs > 0)
