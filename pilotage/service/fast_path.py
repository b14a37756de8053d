"""Shortcut for the most frequent requests of pilots, past all layers of the framework.

The routes are ordinary routes of the framework, which describes them and answers every request that is not
plain (a body that does not fit, a query, another content type), since it produces the error messages. For a
plain request the shortcut does what the route would do, with the same authentication, handler and errors, at
a small part of the cost.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.types import Message, Receive, Scope, Send

from cs_config.cache import Cache
from pilotage.service import error_handlers, middleware, routing
from pilotage.service.auth import access
from pilotage.service.models.matching import JobRequest
from pilotage.service.routes import leases, matcher
from pilotage.service.routes.leases import FinishBody, HeartbeatBody, StartBody
from pilotage.service.routes.matcher import RequestedJobs
from pilotage.service.routing import StrictRequest
from pilotage.service.services import Services

_PREFIX = "/api/v1"
_LEASE = re.compile(rf"{_PREFIX}/leases/([A-Za-z0-9_-]{{1,64}})/([a-z]+)")
_REQUEST_JOB = "/matcher/requestJob"
_JSON = b"application/json"

#: Bodies of requestJob that are known, and the most bytes of one.
_BODIES = 4096
_LONGEST_KNOWN = 8192
_REQUEST_ID = re.compile(rb'"request_id"\s*:\s*"([A-Za-z0-9._:-]{1,255})"')


class NotPlain(Exception):
    """The request is not plain: the framework must handle it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FastRoute:
    """A shortcut to one route."""

    path: str  #: as the route declares it
    endpoint: Callable[..., Any]  #: of the route: carries its allowed roles and body limit
    body: type[BaseModel]
    is_body_optional: bool = False

    def read(self, content: object) -> BaseModel | None:
        """Validate a body, or raise `NotPlain`."""
        if content is None and self.is_body_optional:
            return None
        try:
            return self.body.model_validate(content)
        except ValidationError:
            raise NotPlain from None


_LEASE_ROUTES: Mapping[str, FastRoute] = {
    "start": FastRoute(
        path="/leases/{lease}/start", endpoint=leases.start, body=StartBody, is_body_optional=True
    ),
    "heartbeat": FastRoute(
        path="/leases/{lease}/heartbeat", endpoint=leases.heartbeat, body=HeartbeatBody, is_body_optional=True
    ),
    "finish": FastRoute(path="/leases/{lease}/finish", endpoint=leases.finish, body=FinishBody),
}
_TIMEOUT: TypeAdapter[float | None] = TypeAdapter(matcher.RequestTimeout)


class FastPath:
    """Answers plain requests, in front of the application, which answers all others."""

    def __init__(self, app: FastAPI, parts: Services) -> None:
        self._app = app
        self._parts = parts
        self._bodies = JobRequestReader()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Answer by a shortcut; if there is none, what the application has to receive from instead."""
        found = _find(scope)
        if found is None:
            return receive
        route, lease = found
        scope["app"] = self._app
        request = StrictRequest(scope, receive)
        begun, status = time.perf_counter(), 200
        try:
            if route is None:
                body = await self._request_job(request)
            else:
                body = await self._report(request, route, lease)
        except NotPlain:
            return _replay(request, receive)
        except Exception as error:
            response, is_defect = await error_handlers.answer_to(request, error)
            status = response.status_code
            await response(scope, receive, middleware.sending(scope, send))
            if is_defect:
                raise
        else:
            await _send(scope, send, body)
        path = _REQUEST_JOB if route is None else route.path
        self._parts.metrics.served(
            method="POST", route=path, status=status, seconds=time.perf_counter() - begun
        )
        return None

    async def _request_job(self, request: StrictRequest) -> bytes:
        parts = self._parts
        caller = await routing.authorize(request, parts, matcher.request_job)
        timeout = _read_timeout(request)
        _require_json(request)
        await request.read(routing.limit_body(parts, matcher.request_job, caller))
        asked, request_id = self._bodies.read(request.whole)
        return await matcher.find_jobs(parts, caller, request, asked, request_id, timeout)

    async def _report(self, request: StrictRequest, route: FastRoute, lease: str) -> bytes:
        caller = await routing.admit(request, self._parts, route.endpoint, takes_json=True)
        _require_json(request)
        body = route.read(request.content)
        answer: BaseModel = await route.endpoint(self._parts, caller, lease, body)
        return answer.model_dump_json().encode()


def _require_json(request: StrictRequest) -> None:
    stated = access.read_header(request, b"content-type")
    if stated is not None and not stated.startswith("application/json"):
        raise NotPlain


class JobRequestReader:
    """Bodies of requestJob, checked once for all that differ in the text of their `request_id` only.

    Equal bytes before and after that text make equal JSON around it, as long as the text is the whole value
    of the only name `request_id` in the body, and no name or text is written with escapes. Of any other body
    all bytes count.
    """

    def __init__(self) -> None:
        self._known: Cache[bytes | tuple[bytes, bytes], RequestedJobs] = Cache(_BODIES)

    def read(self, content: bytes) -> tuple[RequestedJobs, str | None]:
        """What a body asks for, and its request id; `InvalidRequest` or `NotPlain` if it is not valid."""
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


def _read_timeout(request: StrictRequest) -> float | None:
    if (stated := access.read_header(request, b"request-timeout")) is None:
        return None
    try:
        return _TIMEOUT.validate_python(stated)
    except ValidationError:
        raise NotPlain from None


def _find(scope: Scope) -> tuple[FastRoute | None, str] | None:
    """Find the lease route and the lease in the path, or that it is requestJob, which is no lease route."""
    if scope["method"] != "POST" or scope["query_string"] or scope.get("root_path"):
        return None
    path: str = scope["path"]
    if path == f"{_PREFIX}{_REQUEST_JOB}":
        return None, ""
    found = _LEASE.fullmatch(path)
    shortcut = _LEASE_ROUTES.get(found[2]) if found else None
    return (shortcut, found[1]) if found and shortcut else None


def _replay(request: StrictRequest, receive: Receive) -> Receive:
    """Replay the body if it was read already, then receive as before."""
    if not request.is_read:
        return receive
    read: list[Message] = [{"type": "http.request", "body": request.whole, "more_body": False}]

    async def replay() -> Message:
        return read.pop() if read else await receive()

    return replay


async def _send(scope: Scope, send: Send, body: bytes) -> None:
    length = str(len(body)).encode()
    headers = [(b"content-length", length), (b"content-type", _JSON), *middleware.headers(scope)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
