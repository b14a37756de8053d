"""What a pilot asks of the service and tells it, request by request.

Trying again while the service is away.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO, Callable, TypeVar
from urllib.parse import quote, urlencode

from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.pilot.service.transport import Answer, Away, Refused, Transport
from pilotage.fabric.pilot.settings import QueuePlace

#: Seconds within which an answer to a request for work can still be used.
_WAIT_FOR_WORK = 20
#: Seconds for what is only news: the next one comes soon.
_WAIT_FOR_NEWS = 10.0


@dataclass(frozen=True)
class Match:
    """A job that was handed to us: the attempt and what to run."""

    job_id: int
    epoch: int
    lease: str
    lease_seconds: float  #: within which it has to be started
    description: Mapping[str, Any]
    processors: int | None = None  #: that it may use; None: the service does not say
    ram_mb: int | None = None
    gpus: int | None = None


@dataclass(frozen=True)
class Work:
    """The answer to a request for work: matches, or why there are none."""

    matches: tuple[Match, ...]
    reason: str  #: one word, if there is nothing to do
    retry_after: float | None  #: seconds


@dataclass(frozen=True)
class News:
    """The answer to start and heartbeat."""

    commands: tuple[str, ...]
    heartbeat_seconds: float | None  #: how often the service wants to hear from us, if it says


@dataclass(frozen=True)
class Token:
    """A token that the service has just made."""

    text: str = field(repr=False)
    life: float  #: seconds that it is good from now on


class Service:
    """The service as a pilot sees it. Every method raises `Away` or `Refused`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def exchange_secret(self, stamp: str, *, request_id: str) -> Token:
        """Exchange the secret that the transport shows for a token, which it shows from then on.

        The same `request_id` again gets a token again, so a lost answer costs nothing.
        """
        path = f"/pilots/{quote(stamp, safe='')}/token"
        return self._taken(self._transport.call("POST", path, {"request_id": request_id}))

    def renew_token(self) -> Token:
        """Exchange the token for one that is good for longer, and show that from then on."""
        return self._taken(self._transport.call("POST", "/tokens/renew"))

    def queue_parameters(self, place: QueuePlace, vo: str | None) -> dict[str, Any]:
        """The effective parameters of a queue."""
        path = f"/resources/queues/{quote(place.site)}/{quote(place.ce)}/{quote(place.queue)}"
        query = f"?{urlencode({'vo': vo})}" if vo else ""
        parameters = self._transport.call("GET", path + query).body.get("parameters", {})
        return {name: parameter.get("value") for name, parameter in parameters.items()}

    def submit_pools(self, place: QueuePlace) -> tuple[str, ...]:
        """The ids of the SubmitPools that a queue is eligible for."""
        body = {"queues": [str(place)]}
        answer = self._transport.call("POST", "/matcher/getSubmitPoolsForQueue", body).body
        return tuple(answer["pools"].get(str(place), ()))

    def request_job(
        self,
        offer: Mapping[str, object],
        *,
        count: int,
        request_id: str,
        said_before: bool = True,
    ) -> Work:
        """Ask for work; the same `request_id` again gets the same jobs, so a lost answer costs nothing.

        To who has not `said_before` that id the service need not look for what it was given.
        """
        named = {"count": count, "request_id": request_id, "said_before": said_before}
        answer = self._transport.call(
            "POST",
            "/matcher/requestJob",
            {**offer, **named},
            headers={"Request-Timeout": str(_WAIT_FOR_WORK - 5)},
            timeout=_WAIT_FOR_WORK,
        )
        body = answer.body
        retry_after = body.get("retry_after")
        return Work(
            matches=tuple(_match(each, answer.at) for each in body.get("matches", ())),
            reason=str(body.get("reason") or "nothing"),
            retry_after=None if retry_after is None else float(retry_after),
        )

    def start(self, lease: str, facts: Mapping[str, object]) -> News:
        """Say that the payload is about to run."""
        return _news(self._transport.call("POST", f"/leases/{quote(lease)}/start", facts).body)

    def heartbeat(self, lease: str, facts: Mapping[str, object]) -> News:
        """Say that the payload runs."""
        path = f"/leases/{quote(lease)}/heartbeat"
        return _news(self._transport.call("POST", path, facts, timeout=_WAIT_FOR_NEWS).body)

    def finish(self, lease: str, report: Report) -> Report:
        """Say how the payload ended; the report that was taken: a shorter one where the first was refused."""
        path = f"/leases/{quote(lease)}/finish"
        try:
            self._transport.call("POST", path, report.as_json())
        except Refused as error:
            if error.ends_attempt:
                raise
            report = report.without_details(str(error))
            self._transport.call("POST", path, report.as_json())
        return report

    def release(self, lease: str, reason: str) -> None:
        """Give the job back."""
        self._transport.call("POST", f"/leases/{quote(lease)}/release", {"reason": reason})

    def fetch_sandbox(self, lease: str, to: BinaryIO, *, limit: int) -> bool:
        """Write the input sandbox to a file; False if the job has none.

        Raises:
            TooLarge: It has more than `limit` bytes.
        """
        to.seek(0)
        to.truncate()
        try:
            self._transport.download(f"/leases/{quote(lease)}/sandbox", to, limit=limit)
        except Refused as error:
            if error.status == 404 and error.code == "blob_not_found":
                return False
            raise
        return True

    def deliver_output(self, lease: str, archive: BinaryIO, *, size: int) -> None:
        """Send the output archive."""
        self._transport.upload(f"/leases/{quote(lease)}/output", archive, size=size)

    def report_pilot(self, stamp: str, *, status: str, reason: str, empty_reason: str | None = None) -> None:
        """Say what became of this pilot; of one that got no job, also in a word why."""
        body = {"status": status, "reason": reason}
        if empty_reason is not None:
            body["empty_reason"] = empty_reason
        self._transport.call("POST", f"/pilots/{quote(stamp, safe='')}/status", body, timeout=_WAIT_FOR_NEWS)

    def _taken(self, answer: Answer) -> Token:
        token = _token(answer)
        self._transport.speak_with(token.text)
        return token


def _token(answer: Answer) -> Token:
    try:
        life = (_time(answer.body["expires_at"]) - answer.at).total_seconds()
        return Token(text=str(answer.body["token"]), life=life)
    except (KeyError, TypeError, ValueError):
        raise Away("the service answers a token that cannot be read") from None


def _time(text: object) -> datetime:
    return datetime.fromisoformat(str(text).replace("Z", "+00:00"))


def _match(raw: Mapping[str, Any], now: datetime) -> Match:
    try:
        return Match(
            job_id=int(raw["job_id"]),
            epoch=int(raw["epoch"]),
            lease=str(raw["lease"]),
            lease_seconds=(_time(raw["lease_expires_at"]) - now).total_seconds(),
            description=dict(raw["description"]),
            processors=_number(raw.get("processors")),
            ram_mb=_number(raw.get("ram")),
            gpus=_number(raw.get("gpus")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Away(f"the service answers a match that cannot be read: {error!r}") from None


def _news(body: Mapping[str, Any]) -> News:
    seconds = body.get("heartbeat_seconds")
    return News(
        commands=tuple(map(str, body.get("commands", ()))),
        heartbeat_seconds=float(seconds) if isinstance(seconds, (int, float)) else None,
    )


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))


log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST = 0.5  # seconds
_LONGEST_DELAY = 30.0  # seconds; soon after the service is back everybody has noticed


def retry_delays(random_number: Callable[[], float] = random.random) -> Iterator[float]:
    """Seconds to wait before each further try: doubled each time, and scattered so that pilots come apart."""
    delay = _FIRST
    while True:
        yield delay * (0.5 + random_number())
        delay = min(2 * delay, _LONGEST_DELAY)


def retry_while_away(
    request: Callable[[], T],
    *,
    patience: float,
    stop: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Make a request until it is answered.

    Args:
        request: May raise `Away`; all else it raises is an answer.
        patience: Seconds after which it is given up; it is tried once at least.
        stop: Once set it is tried no more.
        clock: Seconds that never go back.

    Raises:
        Away: It was not answered in all this time.
    """
    deadline = clock() + patience
    for number, delay in enumerate(retry_delays()):
        try:
            return request()
        except Away as error:
            pause = max(delay, min(error.retry_after or 0.0, _LONGEST_DELAY))
            if stop.is_set() or clock() + pause > deadline:
                raise
            if number == 0:
                log.warning("the service is away, trying again: %s", error)
        stop.wait(pause)
    raise AssertionError("delays never end")
