"""Shortcut for the most frequent requests of pilots, past the framework's routing and models.

The routes are ordinary routes of the framework, which describes them and answers every request that is not
plain (a body that does not fit, a query, another content type), since it produces the error messages. For a
plain request the shortcut does what the route would do, with the same authentication, handler and errors, at
a third of the cost.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pilotage.service import error_handlers, middleware, routing
from pilotage.service.models.matching import JobRequest
from pilotage.service.routes import leases, matcher
from pilotage.service.routes.leases import FinishBody, HeartbeatBody, StartBody
from pilotage.service.routing import StrictRequest
from pilotage.service.services import Services

_PREFIX = "/api/v1"
_LEASE = re.compile(rf"{_PREFIX}/leases/([A-Za-z0-9_-]{{1,64}})/([a-z]+)")
_JSON = b"application/json"


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


_REQUEST_JOB = FastRoute(path="/matcher/requestJob", endpoint=matcher.request_job, body=JobRequest)
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
    """ASGI middleware that answers plain requests by a shortcut and passes on all others."""

    def __init__(self, app: ASGIApp, parts: Services) -> None:
        self._app = app
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer by a shortcut, if there is one."""
        found = _find(scope) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        shortcut, lease = found
        request = StrictRequest(scope, receive)
        try:
            body = await self._answer(request, shortcut, lease)
        except NotPlain:
            await self._app(scope, _replay(request, receive), send)
            return
        except Exception as error:
            scope["route"] = shortcut
            if (response := await error_handlers.answer_to(request, error)) is None:
                raise
            await response(scope, receive, middleware.sending(scope, send))
            return
        scope["route"] = shortcut
        await _send(scope, send, body)

    async def _answer(self, request: StrictRequest, shortcut: FastRoute, lease: str) -> bytes:
        caller = await routing.admit(request, self._parts, shortcut.endpoint, takes_json=True)
        if not request.headers.get("content-type", "application/json").startswith("application/json"):
            raise NotPlain
        body = shortcut.read(request.content)
        if shortcut is not _REQUEST_JOB:
            answer: BaseModel = await shortcut.endpoint(self._parts, caller, lease, body)
            return answer.model_dump_json().encode()
        timeout = _read_timeout(request)
        answer = await shortcut.endpoint(self._parts, caller, request, body, timeout)
        return answer.model_dump_json(exclude_none=True).encode()


def _read_timeout(request: StrictRequest) -> float | None:
    try:
        return _TIMEOUT.validate_python(request.headers.get("request-timeout"))
    except ValidationError:
        raise NotPlain from None


def _find(scope: Scope) -> tuple[FastRoute, str] | None:
    """Find the shortcut and the lease in the path."""
    if scope["method"] != "POST" or scope["query_string"] or scope.get("root_path"):
        return None
    path: str = scope["path"]
    if path == f"{_PREFIX}{_REQUEST_JOB.path}":
        return _REQUEST_JOB, ""
    found = _LEASE.fullmatch(path)
    shortcut = _LEASE_ROUTES.get(found[2]) if found else None
    return (shortcut, found[1]) if found and shortcut else None


def _replay(request: StrictRequest, receive: Receive) -> Receive:
    """Replay the body that was read already, then receive as before."""
    read: list[Message] = [{"type": "http.request", "body": request.whole, "more_body": False}]

    async def replay() -> Message:
        return read.pop() if read else await receive()

    return replay


async def _send(scope: Scope, send: Send, body: bytes) -> None:
    length = str(len(body)).encode()
    headers = [(b"content-length", length), (b"content-type", _JSON), *middleware.headers(scope)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
