"""Shortcut for the most frequent requests of pilots, past the server's and all layers of the framework.

The routes are ordinary routes of the framework, which describes them and answers every request that is not
plain: another form of HTTP (see `PlainExchange`), a query, another content type, or a body that does not
fit, since it produces the error messages; also one that is not authenticated, before its body is read. For a
plain request the shortcut does what the route would do, with the same authentication, functions and errors,
at a small part of the cost: the connection hands over the head, then the whole request, and what is in memory
is answered at once. A claim is waited for by a callback, all else by a task.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.types import Scope

from cs_config.cache import Cache
from cs_config.options import bounds
from matcher.request.match_request import MatchResult
from pilotage.service import error_handlers, middleware, routing
from pilotage.service.auth import access
from pilotage.service.auth.access import AccessRules
from pilotage.service.auth.callers import Caller
from pilotage.service.auth.tokens import BearerToken
from pilotage.service.http_errors import BodyTooLarge, ServiceEnding
from pilotage.service.models.matching import JobRequest
from pilotage.service.routes import leases, matcher
from pilotage.service.routes.leases import FinishBody, HeartbeatBody, NoteBody, ReleaseBody, StartBody
from pilotage.service.routes.matcher import JobSearch, RequestedJobs, begin_search
from pilotage.service.services import Services

_log = logging.getLogger(__name__)

_REQUEST_JOB = "/matcher/requestJob"
_LEASE = re.compile(rb"/api/v1/leases/([A-Za-z0-9_-]{1,64})/([a-z]+)")

#: Bytes of the longest body of a plain request; longer ones are parsed in a thread.
LONGEST = routing.AT_ONCE
#: Bodies of requestJob that are known, and the most bytes of one.
_BODIES = 4096
_LONGEST_KNOWN = 8192
_REQUEST_ID = re.compile(rb'"request_id"\s*:\s*"([A-Za-z0-9._:-]{1,255})"')

#: Answer to what waits when the service ends; seconds for these answers.
_ENDING = "the service is being stopped, try again"
_END = 2.0

_Headers = list[tuple[bytes, bytes]]


class NotPlain(Exception):
    """The request is not plain: the framework must handle it."""


class Connection(Protocol):
    """The connection of an exchange, as the server implements it."""

    def write_answer(self, status: int, headers: _Headers | None, body: bytes) -> None:
        """Write the answer, which ends the exchange; None: the headers of JSON."""

    async def send_answer(self, status: int, headers: _Headers | None, body: bytes) -> None:
        """Write a long answer in pieces, and return when all are sent, or none will be."""

    def abort(self) -> None:
        """Close it at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FastRoute:
    """A shortcut to one route."""

    path: str  #: as the route declares it
    endpoint: Callable[..., Coroutine[Any, Any, BaseModel]]
    rules: AccessRules
    body: type[BaseModel]
    is_body_optional: bool = False

    def read(self, content: bytes) -> BaseModel | None:
        """Parse and validate a body; `InvalidRequest` or `NotPlain` if it is not valid."""
        if not content:
            if self.is_body_optional:
                return None
            raise NotPlain
        value = routing.parse(content)
        if value is None and self.is_body_optional:
            return None
        try:
            return self.body.model_validate(value)
        except ValidationError:
            raise NotPlain from None


def _route(path: str, endpoint: Any, body: type[BaseModel], *, is_body_optional: bool = False) -> FastRoute:
    rules = access.rules_of(endpoint)
    return FastRoute(path=path, endpoint=endpoint, rules=rules, body=body, is_body_optional=is_body_optional)


_JOB_ROUTE = _route(_REQUEST_JOB, matcher.request_job, JobRequest)
_LEASE_ROUTES: Mapping[bytes, FastRoute] = {
    b"start": _route("/leases/{lease}/start", leases.start, StartBody, is_body_optional=True),
    b"heartbeat": _route("/leases/{lease}/heartbeat", leases.heartbeat, HeartbeatBody, is_body_optional=True),
    b"note": _route("/leases/{lease}/note", leases.note, NoteBody),
    b"finish": _route("/leases/{lease}/finish", leases.finish, FinishBody),
    b"release": _route("/leases/{lease}/release", leases.release, ReleaseBody, is_body_optional=True),
}
_TIMEOUT: TypeAdapter[float | None] = TypeAdapter(matcher.RequestTimeout)


class PlainExchange:
    """A plain request and its answer.

    HTTP/1.1 on a connection that stays open; POST to the path of a shortcut, without query; each header once;
    a body of at most `LONGEST` bytes, sent without waiting, in one piece (`Content-Length`).
    The attributes up to `keep_alive` are those of uvicorn's own class that its connection reads.
    """

    __slots__ = (
        *("response_complete", "disconnected", "keep_alive", "connection", "route", "lease", "scope"),
        *("headers", "body", "begun", "token", "work", "_gone"),
    )

    def __init__(
        self, connection: Connection, route: FastRoute, lease: str, scope: Scope, headers: dict[bytes, bytes]
    ) -> None:
        self.response_complete = False
        self.disconnected = False
        self.keep_alive = True
        self.connection = connection
        self.route = route
        self.lease = lease
        self.scope = scope
        self.headers = headers
        self.body = b""
        self.begun = 0.0
        self.token: BearerToken | None = None  #: None: not authenticated
        self.work: asyncio.Future[Any] | None = None  #: what the answer waits for
        self._gone: asyncio.Event | None = None

    def lose(self) -> None:
        """Note that the client has closed the connection."""
        self.disconnected = True
        if self._gone is not None:
            self._gone.set()

    def is_gone(self) -> bool:
        """Whether the client has closed the connection."""
        return self.disconnected

    async def wait_until_gone(self) -> None:
        """Return when the client has closed the connection."""
        if not self.disconnected:
            self._gone = asyncio.Event()
            await self._gone.wait()


def find_route(url: bytes) -> tuple[FastRoute, str] | None:
    """The shortcut of an address, and the lease in it; None: there is none."""
    if url == b"/api/v1/matcher/requestJob":
        return _JOB_ROUTE, ""
    found = _LEASE.fullmatch(url)
    route = _LEASE_ROUTES.get(found[2]) if found else None
    return (route, found[1].decode()) if found and route else None


class FastPath:
    """Answers plain requests, in front of the application, which answers all others."""

    def __init__(self, app: FastAPI, parts: Services) -> None:
        self._app = app
        self._parts = parts
        self._bodies = JobRequestReader()
        self._open: dict[PlainExchange, None] = {}

    def authenticate(self, exchange: PlainExchange) -> bool:
        """Authenticate a request by its head; False: the application has to answer it."""
        exchange.begun = time.perf_counter()
        try:
            text = access.read_bearer(exchange.headers.get(b"authorization", b"").decode("latin-1"))
            token = access.admit(access.verify(text, self._parts), self._parts)
        except Exception:  # noqa: BLE001  (of any kind: the application meets it, too)
            return False
        exchange.token = exchange.scope["state"]["token"] = token
        return True

    def begin(self, exchange: PlainExchange) -> bool:
        """Answer an authenticated request, now or later; False: the application has to."""
        try:
            self._begin(exchange)
        except NotPlain:
            return False
        except Exception as error:  # noqa: BLE001  (of any kind: it is the answer)
            self._work(exchange, self._refuse(exchange, error))
        return True

    def _begin(self, exchange: PlainExchange) -> None:
        parts, route, headers, body = self._parts, exchange.route, exchange.headers, exchange.body
        if (token := exchange.token) is None:
            raise TypeError("the request was not authenticated")
        caller = access.require(exchange.scope, token.caller, route.rules)
        if caller is not token.caller:
            exchange.token = replace(token, caller=caller)
        stated = headers.get(b"content-type")
        if stated is not None and not stated.startswith(b"application/json"):
            raise NotPlain
        if len(body) > (most := routing.limit_body(parts, route.rules, caller)):
            raise BodyTooLarge(most)
        access.require_room(exchange.scope, parts)
        if route is _JOB_ROUTE:
            stated = headers.get(b"request-timeout")
            timeout = None if stated is None else _read_timeout(stated)
            search = begin_search(parts, caller, *self._bodies.read(body), timeout)
            if isinstance(search, bytes):
                self._answer(exchange, search)
            elif (claim := search.submit(exchange.is_gone)) is None:
                self._work(exchange, self._finish(exchange, search))
            else:
                self._open[exchange], exchange.work = None, claim
                claim.add_done_callback(partial(self._end_claim, exchange, search))
        else:
            self._work(exchange, self._report(exchange, caller, route.read(body)))

    def _end_claim(
        self, exchange: PlainExchange, search: JobSearch, claim: "asyncio.Future[MatchResult | None]"
    ) -> None:
        """Answer after a claim, or serve the request otherwise."""
        del self._open[exchange]
        try:
            body = search.end(exchange, claim)
        except asyncio.CancelledError:
            self._work(exchange, self._refuse(exchange, ServiceEnding(_ENDING)))
        except Exception as error:  # noqa: BLE001  (of any kind: it is the answer)
            self._work(exchange, self._refuse(exchange, error))
        else:
            if body is None:
                self._work(exchange, self._finish(exchange, search, is_tried=True))
            elif len(body) > bounds.SHORT_ANSWER:
                self._work(exchange, self._send(exchange, body))
            else:
                self._answer(exchange, body)

    async def _finish(self, exchange: PlainExchange, search: JobSearch, *, is_tried: bool = False) -> None:
        await self._send(exchange, await search.finish(exchange, is_tried=is_tried))

    async def _report(self, exchange: PlainExchange, caller: Caller, body: BaseModel | None) -> None:
        answer = await exchange.route.endpoint(self._parts, caller, exchange.lease, body)
        await self._send(exchange, answer.model_dump_json().encode())

    def _work(self, exchange: PlainExchange, work: Coroutine[Any, Any, None]) -> None:
        """Answer by a task."""
        self._open[exchange] = None
        exchange.work = task = asyncio.ensure_future(self._guard(exchange, work))
        task.add_done_callback(partial(self._end_work, exchange, work))

    async def _guard(self, exchange: PlainExchange, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:  # the server has waited for requests under way, and ends
            await self._refuse(exchange, ServiceEnding(_ENDING))
        except Exception as error:  # noqa: BLE001  (of any kind: it is the answer)
            await self._refuse(exchange, error)

    def _end_work(
        self, exchange: PlainExchange, work: Coroutine[Any, Any, None], task: "asyncio.Task[None]"
    ) -> None:
        """Forget a task; without an answer, the client learns from the closed connection."""
        del self._open[exchange]
        work.close()  # if the task was cancelled before it began
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a request could not be refused", exc_info=error)
        if not exchange.response_complete:
            exchange.connection.abort()

    async def _refuse(self, exchange: PlainExchange, error: Exception) -> None:
        scope = {**exchange.scope, "app": self._app, "state": {"token": exchange.token}}
        response, is_defect = await error_handlers.answer_to(Request(scope), error)
        if is_defect:
            _log.error("Exception in ASGI application\n", exc_info=error)
        headers = [*response.raw_headers, *middleware.headers(scope)]
        self._answer(exchange, bytes(response.body), response.status_code, headers)

    async def _send(self, exchange: PlainExchange, body: bytes) -> None:
        """Answer; the bytes of a long answer count until they are sent."""
        if len(body) <= bounds.SHORT_ANSWER:
            self._answer(exchange, body)
            return
        with self._parts.answers.keep(*access.find_holder(exchange.scope), len(body)):
            try:
                await exchange.connection.send_answer(200, None, body)
            except asyncio.CancelledError:  # nothing else can be answered: the connection is closed
                return
        self._count(exchange, 200)

    def _answer(
        self, exchange: PlainExchange, body: bytes, status: int = 200, headers: _Headers | None = None
    ) -> None:
        exchange.connection.write_answer(status, headers, body)
        self._count(exchange, status)

    def _count(self, exchange: PlainExchange, status: int) -> None:
        seconds = time.perf_counter() - exchange.begun
        self._parts.metrics.served(method="POST", route=exchange.route.path, status=status, seconds=seconds)

    async def close(self) -> None:
        """Refuse all requests that are not answered: the service ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END):
                while works := [each.work for each in self._open if each.work is not None]:
                    await asyncio.sleep(0)  # a task that has not begun would not answer
                    for work in works:
                        work.cancel()
                    await asyncio.wait(works)


class JobRequestReader:
    """Bodies of requestJob, checked once for all that differ in the text of their `request_id` only.

    Equal bytes before and after that text make equal JSON around it, as long as the text is the whole value
    of the only name `request_id` in the body, and no name or text is written with escapes. Of any other body
    all bytes count.
    """

    def __init__(self) -> None:
        self._known: Cache[bytes | tuple[bytes, bytes], RequestedJobs] = Cache(_BODIES)

    def read(self, content: bytes) -> tuple[RequestedJobs, str | None]:
        """The request in a body, and its request id; `InvalidRequest` or `NotPlain` if it is not valid."""
        if len(content) > _LONGEST_KNOWN:
            body = _read_job_request(content)
            return RequestedJobs.from_body(body), body.request_id
        found = _REQUEST_ID.search(content)
        if found is None:
            if (asked := self._known.find(content)) is not None:
                return asked, None
        elif (asked := self._known.find((content[: found.start(1)], content[found.end(1) :]))) is not None:
            return asked, found[1].decode()
        body = _read_job_request(content)
        asked = RequestedJobs.from_body(body)
        if found is None:
            if body.request_id is None:
                self._known.store(content, asked)
        elif (
            body.request_id == found[1].decode()
            and content.count(b'"request_id"') == 1
            and b"\\" not in content
        ):
            self._known.store((content[: found.start(1)], content[found.end(1) :]), asked)
        return asked, body.request_id


def _read_job_request(content: bytes) -> JobRequest:
    if not 0 < len(content) <= routing.AT_ONCE:
        raise NotPlain
    try:
        return JobRequest.model_validate(routing.parse(content))
    except ValidationError:
        raise NotPlain from None


def _read_timeout(stated: bytes) -> float | None:
    try:
        return _TIMEOUT.validate_python(stated.decode("latin-1"))
    except ValidationError:
        raise NotPlain from None
