"""Pilots as the service knows them, and what it is told of them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from pilotage.fabric.api_errors import ApiError
from pilotage.fabric.client import Client
from pilotage.fabric.director.posts import Post

_PAGE = 1000
_CONFLICT = 409


class Status(StrEnum):
    """What the service may be told of a pilot. Source: DIRAC, states of pilots."""

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
class Pilot:
    """One pilot."""

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
    def queues(self) -> tuple[str, ...]:
        """Where it is, or may be as long as its broker has not picked."""
        return (self.queue,) if self.queue else self.landings


class Pilots:
    """The pilots of one VO, seen by its director."""

    def __init__(self, client: Client, vo: str) -> None:
        self._client = client
        self._vo = vo

    def active(self) -> list[Pilot]:
        """Those that have not ended, as far as the service knows."""
        return list(self._all({"status": _words(ACTIVE)}))

    def ended(self, since: datetime) -> list[Pilot]:
        """Those that have ended since then."""
        return list(self._all({"status": _words(ENDED), "since": since.isoformat()}))

    def intend(self, stamp: str, post: Post) -> str:
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

    def _all(self, filters: Mapping[str, str]) -> Iterator[Pilot]:
        after: object = None
        while True:
            page = self._client.pilots({"vo": self._vo, **filters}, limit=_PAGE, after=after)
            yield from map(_pilot, page["pilots"])
            if (after := page["next"]) is None:
                return


def _words(statuses: Iterable[Status]) -> str:
    return ",".join(sorted(statuses))


def _pilot(said: Mapping[str, Any]) -> Pilot:
    seen = said["last_seen_at"]
    return Pilot(
        stamp=said["stamp"],
        vo=said["vo"],
        queue=f"{said['site']}/{said['ce']}/{said['queue']}" if said["site"] else "",
        status=Status(said["status"]),
        reference=said["reference"],
        jobs=said["jobs"],
        created_at=datetime.fromisoformat(said["created_at"]),
        updated_at=datetime.fromisoformat(said["updated_at"]),
        last_seen_at=None if seen is None else datetime.fromisoformat(seen),
        landings=tuple(said["landings"]),
        has_output=said["has_output"],
    )
