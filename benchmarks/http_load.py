"""Clients over HTTP, in processes of their own: keep-alive connections that each hold a conversation.

A conversation is a generator: it yields the bytes of a request and is sent the answer; what it returns comes
back to the benchmark. When the time is over, `Over` is thrown into it. All connections live in one thread
(uvloop, httptools), so that the clients cost the machine as little as Python allows: `cpu_seconds` says how
much it was.
"""

import asyncio
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import uvloop

from benchmarks.results import quantile
from requirements.errors import PilotageError

#: Loads at the same time; one more waits until one of them is over.
_AT_A_TIME = 8
_LONGEST_ERROR = 200


class RequestsFailed(PilotageError):
    """Requests got no answer, or one that is no success, where what follows needs it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


class Over(Exception):
    """The time is over: thrown into a conversation, which may return something all the same."""


class Named(bytes):
    """A request whose kind is told apart from those of others on the same connection."""

    kind: str = ""


class Held(bytes):
    """A request that takes its connection until the end of the load: its answer is never read."""

    rate: int = 0  #: bytes of a body a second that are sent after it

    @classmethod
    def trickling(cls, content: bytes, rate: int) -> "Held":
        """The head of a request whose body comes slowly."""
        found = cls(content)
        found.rate = rate
        return found


#: One connection's requests and what it learns from the answers.
Conversation = Generator[bytes, Answer, Any]
#: Makes the conversation of the connection with this number; it has to survive pickling.
Script = Callable[[int], Conversation]


def _lists() -> defaultdict[str, list[float]]:
    return defaultdict(list)


@dataclass(slots=True, kw_only=True)
class Load:
    """What the clients saw."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0  #: of the clients themselves
    latencies: list[float] = field(default_factory=list)  #: seconds, of every answer
    by_kind: defaultdict[str, list[float]] = field(default_factory=_lists)  #: of `Named`
    statuses: Counter[int] = field(default_factory=Counter)
    broken: int = 0  #: requests without an answer: the connection ended
    failed: Counter[str] = field(default_factory=Counter)  #: errors of conversations, by message
    returned: list[Any] = field(default_factory=list)  #: by the conversations that came to their end

    @property
    def per_second(self) -> float:
        """Answers, whatever they said."""
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    @property
    def errors(self) -> int:
        """Requests that got no answer, one that is no success, or one that a conversation rejects."""
        refused = sum(count for status, count in self.statuses.items() if status >= 400)
        return self.broken + self.failed.total() + refused

    def describe_errors(self) -> str:
        """The answers by status, with what conversations raised."""
        return f"{dict(self.statuses)} {dict(self.failed.most_common(3)) if self.failed else ''}".strip()

    def quantile_ms(self, share: float) -> float:
        """Milliseconds within which this share of the answers came."""
        return round(1000 * quantile(self.latencies, share), 2)


#: Of a request whose answer is measured, however long it takes.
PATIENT = {"Request-Timeout": "60"}


def request(
    method: str, path: str, *, token: str = "", body: object = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """The bytes of one request."""
    content = b"" if body is None else json.dumps(body).encode()
    said = {"Host": "localhost", **(headers or {})}
    if token:
        said["Authorization"] = f"Bearer {token}"
    if body is not None:
        said |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def named(kind: str, content: bytes) -> Named:
    """The request, of this kind."""
    found = Named(content)
    found.kind = kind
    return found


def drive(url: str, script: Script, *, connections: int, seconds: float, per_second: float = 0) -> Load:
    """Hold conversations for a while, and say how they went.

    Args:
        url: Of the service, `http://host:port`.
        script: Makes the conversation of each connection.
        connections: How many there are at the same time.
        seconds: When no new request is begun any more; conversations may end before.
        per_second: Requests of all connections together; 0: as fast as answers come. A latency counts
            from when its request was due, so a service that lags behind cannot hide it.
    """
    return begin(url, script, connections=connections, seconds=seconds, per_second=per_second).result()


def begin(
    url: str, script: Script, *, connections: int, seconds: float, per_second: float = 0
) -> "Future[Load]":
    """The same beside other things that the caller does."""
    return _processes().submit(_run, url, script, connections, seconds, per_second)


def get_ready(loads: int) -> None:
    """Have processes for so many loads that are to begin at the same time: one takes seconds to start."""
    with tempfile.TemporaryDirectory(prefix="pilotage-bench-") as place:
        for each in [_processes().submit(_meet, place, loads) for _ in range(loads)]:
            each.result()


def _meet(name: str, count: int) -> None:
    """Wait until so many processes have come to a directory."""
    place = Path(name)
    (place / str(os.getpid())).touch()
    while len(list(place.iterdir())) < count:
        time.sleep(0.02)


@cache
def _processes() -> ProcessPoolExecutor:
    """Those whose load is over take the next one: to start one takes longer than many a measurement."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(_AT_A_TIME, mp_context=context, initializer=_end_with_the_parent)


def _end_with_the_parent() -> None:
    """Also if it is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run(url: str, script: Script, connections: int, seconds: float, per_second: float) -> Load:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_converse(url, script, connections, seconds, per_second))


async def _converse(url: str, script: Script, connections: int, seconds: float, per_second: float) -> Load:
    loop, load = asyncio.get_running_loop(), Load()
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    conversations = [script(number) for number in range(connections)]
    clients = []
    for conversation in conversations:
        client = _Client(load, conversation, connections / per_second if per_second else 0.0)
        await loop.create_connection(lambda client=client: client, address.hostname, address.port)  # type: ignore[misc]
        clients.append(client)
    began, cpu = time.perf_counter(), time.process_time()
    for number, client in enumerate(clients):
        client.begin(began + number * client.every / connections, until=began + seconds)
    await asyncio.wait([client.ended for client in clients])
    load.seconds = time.perf_counter() - began
    load.cpu_seconds = time.process_time() - cpu
    return load


class _Client(asyncio.Protocol):
    """One connection and its conversation."""

    def __init__(self, load: Load, conversation: Conversation, every: float) -> None:
        self.every = every  #: seconds between two requests; 0: at once
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._load = load
        self._conversation = conversation
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._next: bytes | None = None
        self._due = self._until = 0.0
        self._waits = False

    def begin(self, at: float, *, until: float) -> None:
        """Send the first request at this time, and none after the end."""
        self._due, self._until = at, until
        self._advance(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.ended.done():
            self._load.broken += self._waits
            self.ended.set_result(None)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        self._waits = False
        answer = Answer(self._parser.get_status_code(), bytes(self._body))
        self._load.latencies.append(now - self._due)
        if isinstance(self._next, Named):
            self._load.by_kind[self._next.kind].append(now - self._due)
        self._load.statuses[answer.status] += 1
        self._body.clear()
        self._due = self._due + self.every if self.every else now
        self._advance(answer)

    def _advance(self, answer: Answer | None) -> None:
        """Go on with the conversation; its next request is sent when it is due."""
        try:
            self._next = next(self._conversation) if answer is None else self._conversation.send(answer)
        except StopIteration as end:
            self._end(end)
            return
        except Exception as error:  # noqa: BLE001 - of any kind: the event loop would only log it
            self._load.failed[f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]] += 1
            self._end(None, failed=True)
            return
        wait = self._due - time.perf_counter()
        if wait > 0:
            asyncio.get_running_loop().call_later(wait, self._send)
        else:
            self._send()

    def _send(self) -> None:
        if max(self._due, time.perf_counter()) >= self._until:
            self._end(None)
        elif not self.ended.done():
            assert self._next is not None
            self._waits = not isinstance(self._next, Held)
            self._transport.write(self._next)
            if isinstance(self._next, Held):
                self._transport.pause_reading()
                self._hold(self._next.rate)

    def _hold(self, rate: int) -> None:
        """Send so many bytes each second; the end of the load closes the connection."""
        left = self._until - time.perf_counter()
        if left <= 0 or self._transport.is_closing():
            self._transport.abort()
            self._end(None)
        else:
            self._transport.write(bytes(rate))
            asyncio.get_running_loop().call_later(min(1.0, left), self._hold, rate)

    def _end(self, end: StopIteration | None, *, failed: bool = False) -> None:
        if end is None and not failed:
            try:
                self._conversation.throw(Over())
            except StopIteration as last:
                end = last
            except Over:
                pass
        if end is not None:
            self._load.returned.append(end.value)
        self._transport.close()
        if not self.ended.done():
            self.ended.set_result(None)
