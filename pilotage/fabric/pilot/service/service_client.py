"""Client of the service's API for pilots, with retries while the service is away."""

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
from pilotage.fabric.pilot.service.transport import MOST_POOLS, Answer, Away, Refused, Transport
from pilotage.fabric.pilot.settings import QueuePlace

#: Seconds after which the response to a request for jobs would come too late.
_WAIT_FOR_WORK = 20
#: Timeout of heartbeats and status reports in seconds: short, since the next one follows soon.
_WAIT_FOR_NEWS = 10.0


@dataclass(frozen=True)
class Match:
    """A job leased to this pilot: the attempt and the job's description."""

    job_id: int
    epoch: int
    lease: str
    lease_seconds: float  #: time within which it has to be started
    description: Mapping[str, Any]
    processors: int | None = None  #: that it may use; None: not given by the service
    ram_mb: int | None = None
    gpus: int | None = None
    flags: tuple[str, ...] = ()  #: for the submit command, if `SubmitFlags` was requested
    owner: str = ""  #: if `SubmitFlags` was requested


@dataclass(frozen=True)
class Work:
    """The response to a request for jobs: matches, or the reason why there are none."""

    matches: tuple[Match, ...]
    reason: str  #: one word, if there are no matches
    retry_after: float | None  #: seconds


@dataclass(frozen=True)
class LeaseAnswer:
    """The response to start and heartbeat."""

    commands: tuple[str, ...]
    heartbeat_seconds: float | None  #: interval that the service wishes, if any
    run_on_seconds: float | None = None  #: time without an answer after which the payload has to end, if any


@dataclass(frozen=True)
class Token:
    """A new token from the service."""

    text: str = field(repr=False)
    life: float  #: seconds until it expires


class Service:
    """API of the service for pilots. Every method raises `Away` or `Refused`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def exchange_secret(self, stamp: str, *, request_id: str) -> Token:
        """Exchange the transport's secret for a token, which the transport uses from then on.

        The same `request_id` again gets a token again, so a lost response costs nothing.
        """
        path = f"/pilots/{quote(stamp, safe='')}/token"
        return self._use_token(self._transport.call("POST", path, {"request_id": request_id}))

    def renew_token(self) -> Token:
        """Exchange the token for one that expires later; the transport uses it from then on."""
        return self._use_token(self._transport.call("POST", "/tokens/renew"))

    def queue_parameters(self, place: QueuePlace, vo: str | None) -> dict[str, Any]:
        """The effective parameters of a queue."""
        path = f"/resources/queues/{quote(place.site)}/{quote(place.ce)}/{quote(place.queue)}"
        query = f"?{urlencode({'vo': vo})}" if vo else ""
        parameters = self._transport.call("GET", path + query).body.get("parameters", {})
        return {name: parameter.get("value") for name, parameter in parameters.items()}

    def submit_pools(self, place: QueuePlace) -> tuple[str, ...]:
        """Ids of the SubmitPools that a queue is eligible for."""
        path, body = "/matcher/getSubmitPoolsForQueue", {"queues": [str(place)]}
        query: dict[str, object] = {"limit": MOST_POOLS}
        found: list[str] = []
        while True:
            answer = self._transport.call("POST", f"{path}?{urlencode(query)}", body).body
            found += answer["pools"].get(str(place), ())
            if not answer.get("next"):  # a service of 1.0 answers with one page
                return tuple(found)
            query["after"] = answer["next"]

    def request_job(
        self,
        offer: Mapping[str, object],
        *,
        count: int,
        request_id: str,
        said_before: bool = True,
    ) -> Work:
        """Request jobs; the same `request_id` again gets the same jobs, so a lost response costs nothing.

        With `said_before=False` the service skips the search for jobs already given to that id.
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

    def start(self, lease: str, facts: Mapping[str, object]) -> LeaseAnswer:
        """Report that the payload is about to start."""
        return _read_answer(self._transport.call("POST", f"/leases/{quote(lease)}/start", facts).body)

    def heartbeat(self, lease: str, facts: Mapping[str, object]) -> LeaseAnswer:
        """Report that the payload is running."""
        path = f"/leases/{quote(lease)}/heartbeat"
        return _read_answer(self._transport.call("POST", path, facts, timeout=_WAIT_FOR_NEWS).body)

    def finish(self, lease: str, report: Report) -> Report:
        """Report how the payload ended; return the accepted report, shortened if the first was refused."""
        path = f"/leases/{quote(lease)}/finish"
        try:
            self._transport.call("POST", path, report.as_json())
        except Refused as error:
            if error.ends_attempt or error.needs_output:
                raise
            report = report.without_details(str(error))
            self._transport.call("POST", path, report.as_json())
        return report

    def release(self, lease: str, reason: str, *, undelivered: bool = False) -> None:
        """Give the job back; `undelivered`: a gateway cannot submit it, for no reason of the job."""
        body = {"reason": reason, **({"undelivered": True} if undelivered else {})}
        self._transport.call("POST", f"/leases/{quote(lease)}/release", body)

    def fetch_sandbox(self, lease: str, to: BinaryIO, *, limit: int) -> bool:
        """Write the input sandbox to a file; False if the job has none. Raises `TooLarge` beyond `limit`."""
        to.seek(0)
        to.truncate()
        try:
            self._transport.download(f"/leases/{quote(lease)}/sandbox", to, limit=limit)
        except Refused as error:
            if error.status == 404 and error.code == "blob_not_found":
                return False
            raise
        return True

    def deliver_output(self, lease: str, archive: BinaryIO, *, size: int) -> str | None:
        """Send the output archive; return its name for `finish`, if the service gives one."""
        answer = self._transport.upload(f"/leases/{quote(lease)}/output", archive, size=size)
        return answer.body.get("output")

    def keep_log(self, stamp: str, log: str) -> None:
        """Send the end of this pilot's log; replaces what was sent before."""
        self._transport.call(
            "POST", f"/pilots/{quote(stamp, safe='')}/log", {"log": log}, timeout=_WAIT_FOR_NEWS
        )

    def report_node(self, stamp: str, node: str, process: str) -> str:
        """Report the name of this host; why this pilot is to take no jobs here, empty: it may.

        `process` is the same in each try of a process, and in those of no other one.
        """
        body = {"node": node, "process": process}
        answer = self._transport.call("POST", f"/pilots/{quote(stamp, safe='')}/node", body).body
        until = answer.get("excluded_until")
        return f"excluded until {until}: {answer.get('reason')}" if until else ""

    def report_pilot(
        self,
        stamp: str,
        *,
        status: str,
        reason: str,
        empty_reason: str | None = None,
        host_trouble: bool = False,
    ) -> None:
        """Report the end of this pilot; if it got no job, also the reason in a word."""
        body: dict[str, object] = {"status": status, "reason": reason}
        if host_trouble:
            body["host_trouble"] = True
        if empty_reason is not None:
            body["empty_reason"] = empty_reason
        self._transport.call("POST", f"/pilots/{quote(stamp, safe='')}/status", body, timeout=_WAIT_FOR_NEWS)

    def _use_token(self, answer: Answer) -> Token:
        try:
            life = (_time(answer.body["expires_at"]) - answer.at).total_seconds()
            token = Token(text=str(answer.body["token"]), life=life)
        except (KeyError, TypeError, ValueError):
            raise Away("the service sent an unreadable token") from None
        self._transport.use_token(token.text)
        return token


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
            flags=tuple(map(str, raw.get("flags") or ())),
            owner=str(raw.get("owner") or ""),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Away(f"the service sent an unreadable match: {error!r}") from None


def _read_answer(body: Mapping[str, Any]) -> LeaseAnswer:
    return LeaseAnswer(
        commands=tuple(map(str, body.get("commands", ()))),
        heartbeat_seconds=_seconds(body.get("heartbeat_seconds")),
        run_on_seconds=_seconds(body.get("run_on_seconds")),
    )


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))


log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST = 0.5  # seconds
_LONGEST_DELAY = 30.0  # seconds; all pilots are back soon after the service is


def retry_delays(random_number: Callable[[], float] = random.random) -> Iterator[float]:
    """Seconds to wait before each retry: exponential backoff, with jitter so that pilots spread out."""
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
    """Retry a request while it raises `Away`, at least once, for `patience` seconds or until `stop` is set.

    Raises:
        Away: No answer within `patience`.
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
