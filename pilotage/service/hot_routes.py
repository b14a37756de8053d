"""The most frequent requests of pilots: an ASGI application in front of the framework, their only form.

The framework describes these routes and refuses other methods; its layers would cost more than a claim. What
a request states is checked with the types of the route's function, as the framework does.
"""

import asyncio
import inspect
import logging
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final, get_args

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.params import Header, Path
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from cs_config.cache import Cache
from cs_config.options import bounds
from pilotage.service import error_handlers, middleware, routing
from pilotage.service.auth import access
from pilotage.service.clients import find_client
from pilotage.service.http_errors import ServiceEnding
from pilotage.service.routes import leases, matcher
from pilotage.service.routes.matcher import RequestedJobs
from pilotage.service.routing import StrictRequest
from pilotage.service.services import Services

_log = logging.getLogger(__name__)

_PREFIX: Final = "/api/v1"
_LEASE: Final = re.compile(rf"{_PREFIX}/leases/([^/]+)/([a-z]+)")
#: The functions of the routes, by their paths as the framework describes them.
_ENDPOINTS: Final[Mapping[str, Callable[..., Coroutine[Any, Any, Any]]]] = {
    "/matcher/requestJob": matcher.request_job,
    "/leases/{lease}/start": leases.start,
    "/leases/{lease}/heartbeat": leases.heartbeat,
    "/leases/{lease}/note": leases.note,
    "/leases/{lease}/finish": leases.finish,
    "/leases/{lease}/release": leases.release,
}
#: Bodies of requestJob that are known, and the most bytes of one.
_BODIES: Final = 4096
_LONGEST_KNOWN: Final = 8192
#: Bytes that all of them take, as they were read.
MOST_BYTES: Final = 64 << 20
#: The two names with values that differ from request to request: each name, and its value.
_VARYING: Final = re.compile(
    rb'("request_id"\s*:\s*")([A-Za-z0-9._:-]{1,255})(?=")'
    rb'|("wall_time"\s*:\s*)((?:0|[1-9][0-9]{0,11})(?:\.[0-9]{1,9})?)(?=\s*[,}])'
)
_NAMES: Final = (b'"request_id"', b'"wall_time"')
#: A body without these values: what stands before, between and behind them, with the names.
_Pieces = tuple[bytes | None, ...]
_JSON: Final = (b"content-type", b"application/json")
_Headers = list[tuple[bytes, bytes]]
_MISSING: Final = {"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}


class HotRoute:
    """A route that is answered here."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.endpoint = _ENDPOINTS[path]
        self.rules = access.rules_of(self.endpoint)
        stated = inspect.signature(self.endpoint).parameters
        body = stated["body"]
        self._body: TypeAdapter[Any] = TypeAdapter(body.annotation)
        self._is_body_optional = body.default is None
        self.is_for_jobs = "client" in stated
        #: Parameters in the path or a header: kind, name there, and type.
        self._others: Mapping[str, tuple[str, str, TypeAdapter[Any]]] = {
            name: (kind, name.replace("_", "-"), TypeAdapter(each.annotation))
            for name, each in stated.items()
            for kind, form in (("path", Path), ("header", Header))
            if any(isinstance(about, form) for about in get_args(each.annotation))
        }

    def check(self, request: StrictRequest, value: object, *, is_known: bool) -> dict[str, Any]:
        """The body, and the values of the other parameters; `RequestValidationError` lists all faults.

        The body of a known request is right.
        """
        problems: list[dict[str, Any]] = []
        found: dict[str, Any] = {"body": None}
        for name, (kind, alias, adapter) in self._others.items():
            in_path = kind == "path"
            stated = request.path_params[name] if in_path else access.read_header(request, alias.encode())
            if stated is not None:
                found[name] = _validate(adapter, stated, (kind, alias), problems)
        if is_known or request.whole:
            found["body"] = value if is_known else _validate(self._body, value, ("body",), problems)
        elif not self._is_body_optional:
            problems.append(_MISSING)
        if problems:
            raise RequestValidationError(problems, body=value)
        return found


def _validate(
    adapter: TypeAdapter[Any], value: object, where: tuple[str, ...], problems: list[dict[str, Any]]
) -> Any:
    """The value in the form of its type; what is wrong is added to the problems."""
    try:
        return adapter.validate_python(value, from_attributes=True)
    except ValidationError as error:
        problems += [{**each, "loc": (*where, *each["loc"])} for each in error.errors(include_url=False)]
        return None


class HotRoutes:
    """Answers the requests of these routes."""

    def __init__(self, app: FastAPI, parts: Services) -> None:
        """Requests that are refused belong to `app`."""
        self._app = app
        self._parts = parts
        self._routes = {path: HotRoute(path) for path in _ENDPOINTS}
        self._known_jobs = JobRequestCache()

    def find(self, scope: Scope) -> HotRoute | None:
        """The route of a request, whose parameters are noted in its scope; None: the framework answers it."""
        path = scope["path"]
        if scope["method"] != "POST" or not path.startswith(_PREFIX):
            return None
        if (found := _LEASE.fullmatch(path)) is None:
            scope["path_params"] = {}
            return self._routes.get(path[len(_PREFIX) :])
        scope["path_params"] = {"lease": found[1]}
        return self._routes.get(f"/leases/{{lease}}/{found[2]}")

    async def answer(self, route: HotRoute, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; 503 if the server has waited for requests under way, and ends."""
        begun, parts = time.perf_counter(), self._parts
        try:
            status, content = 200, await self._serve(route, StrictRequest(scope, receive))
            headers = [(b"content-length", b"%d" % len(content)), _JSON, *middleware.headers(scope)]
        except asyncio.CancelledError:
            error = ServiceEnding("the service is being stopped, try again")
            status, headers, content = await self._refuse(scope, error)
        except Exception as error:  # noqa: BLE001  (of any kind: it is the answer)
            status, headers, content = await self._refuse(scope, error)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if len(content) <= bounds.SHORT_ANSWER:
            await send({"type": "http.response.body", "body": content})
        else:
            with parts.answers.keep(*access.find_holder(scope), len(content)):
                await send({"type": "http.response.body", "body": content})
        seconds = time.perf_counter() - begun
        parts.metrics.served(method="POST", route=route.path, status=status, seconds=seconds)

    async def _serve(self, route: HotRoute, request: StrictRequest) -> bytes:
        """The content of the answer."""
        parts = self._parts
        caller = await routing.authorize(request, parts, route.rules)
        routing.check_texts(request)
        content = await request.read(routing.limit_body(parts, route.rules, caller))
        access.require_room(request.scope, parts)
        is_json = routing.is_json(access.read_header(request, b"content-type"))
        known = self._known_jobs.find(content) if route.is_for_jobs and is_json else None
        if known is None:
            await request.parse()
        found = route.check(request, known or request.content, is_known=known is not None)
        if not route.is_for_jobs:
            report: BaseModel = await route.endpoint(parts=parts, caller=caller, **found)
            return report.model_dump_json().encode()
        asked = known or RequestedJobs.from_body(found["body"])
        if known is None:
            self._known_jobs.store(content, asked)
        timeout = found.get("request_timeout")
        return await matcher.match_jobs(parts, caller, find_client(request), asked, timeout)

    async def _refuse(self, scope: Scope, error: Exception) -> tuple[int, _Headers, bytes]:
        """Status, headers and content of the answer to an error."""
        scope["app"] = self._app
        response, is_defect = await error_handlers.answer_to(Request(scope), error)
        if is_defect:
            _log.error("Exception in ASGI application\n", exc_info=error)
        headers = [*response.raw_headers, *middleware.headers(scope)]
        return response.status_code, headers, bytes(response.body)


class JobRequestCache:
    """Bodies of requestJob, checked once for all that differ in their `request_id` and `wall_time` only.

    Equal bytes around the two values make equal JSON around them, as long as each is the whole value of the
    only such name in the body, and no name or text is written with escapes. Of another body all bytes count.
    """

    def __init__(self) -> None:
        self._known: Cache[_Pieces, RequestedJobs] = Cache(_BODIES, measure=_measure, most=MOST_BYTES)

    def find(self, content: bytes) -> RequestedJobs | None:
        """The request in a body that is known."""
        around, request_id, time_left = _cut_out(content)
        known = self._known.find(around)
        return known and replace(known, request_id=request_id, time_left=time_left)

    def store(self, content: bytes, asked: RequestedJobs) -> None:
        """Note a body that was read and checked."""
        around, *values = _cut_out(content)
        is_whole = len(around) == 1
        is_only = b"\\" not in content and all(content.count(name) <= 1 for name in _NAMES)
        is_read_so = values == [asked.request_id, asked.time_left]
        if len(content) <= _LONGEST_KNOWN and is_read_so and (is_only or is_whole):
            self._known.store(around, asked)


def _measure(around: _Pieces, asked: RequestedJobs) -> int:
    return len(asked.stated) + sum(map(len, filter(None, around)))


def _cut_out(content: bytes) -> tuple[_Pieces, str | None, float | None]:
    """What stands around the first values of `_VARYING` in a body, with their names, and these values."""
    parts = _VARYING.split(content, maxsplit=len(_NAMES))
    if len(parts) == 1:
        return (content,), None, None
    request_id, time = next(filter(None, parts[2::5]), None), next(filter(None, parts[4::5]), None)
    around = tuple(part for number, part in enumerate(parts) if number % 5 not in (2, 4))
    return around, request_id and request_id.decode(), time and (float(time) if b"." in time else int(time))
