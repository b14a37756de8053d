"""What every route does before its handler: who asks, may it, is the body JSON that we can use."""

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from cs_config.address import QueueAddress
from pilotage.service import access, strict_json
from pilotage.service.callers import Caller, Role
from pilotage.service.parts import Parts
from pilotage.service.refusals import BodyTooLarge
from pilotage.service.tokens import Token, UnknownKey
from taskqueue import retries

#: Bytes of a body that somebody may send of whom nothing is known.
_STRANGERS_JSON = 4096

#: Bytes of a body that are parsed at once; more would hold up every other request.
_AT_ONCE = 64 << 10
#: Bytes of a body that says little: what a pilot offers, that a job goes on; a pilot's is never larger.
SMALL = 256 << 10
_MOST_BYTES = "most_bytes"

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class StrictRequest(Request):
    """A request whose JSON was read by our own rules."""

    content: object = None

    async def read(self, limit: int) -> None:
        """Read the whole body.

        Raises:
            BodyTooLarge: It has more than `limit` bytes.
        """
        refuse_by_length(self, limit)
        self._body = await self._whole(limit)

    async def load(self, limit: int) -> None:
        """Read the whole body and parse it.

        Raises:
            BodyTooLarge: It has more than `limit` bytes.
            InvalidRequest: It is not JSON that we can use.
        """
        await self.read(limit)
        if len(self._body) > _AT_ONCE:
            self.content = await anyio.to_thread.run_sync(strict_json.parse, self._body)
        elif self._body:
            self.content = strict_json.parse(self._body)

    async def _whole(self, limit: int) -> bytes:
        chunks, size = [], 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit:
                raise BodyTooLarge(limit)
            if not message.get("more_body", False):
                return b"".join(chunks)

    async def json(self) -> Any:
        """What `load` found."""
        return self.content

    @property
    def whole(self) -> bytes:
        """The bytes that `load` read."""
        return self._body


async def admit(
    request: StrictRequest, parts: Parts, endpoint: Callable[..., Any], *, takes_json: bool
) -> Caller:
    """Who asks, if it may; only then its body is read, as far as `endpoint` takes one.

    Raises:
        PilotageError: It may not, or the body is not JSON that we can use.
    """
    token = request.state.token = await _authenticated(request, parts)
    caller = access.require(request, token.caller, access.allowed_roles(endpoint))
    if caller is not token.caller:
        request.state.token = replace(token, caller=caller)
    access.require_capability(request, caller, endpoint)
    check_texts(request)
    if takes_json:
        most = getattr(endpoint, _MOST_BYTES, parts.limits.json_bytes)
        if caller.role is Role.PILOT:
            most = min(most, SMALL)
        await request.load(min(most, parts.limits.json_bytes))
    return caller


async def _authenticated(request: Request, parts: Parts) -> Token:
    """What the token says; only for one that names a key that is new to us somebody is asked."""
    try:
        return access.authenticate(request, parts)
    except UnknownKey:
        await access.learn_key(request, parts)
        return access.authenticate(request, parts)


def takes_at_most(size: int) -> Callable[[_Endpoint], _Endpoint]:
    """State the bytes that a body of this route may have, where that is less than for all."""

    def mark(endpoint: _Endpoint) -> _Endpoint:
        setattr(endpoint, _MOST_BYTES, size)
        return endpoint

    return mark


class RepeatingRoute(APIRoute):
    """A route whose handler is carried out again if another transaction was in its way.

    Handlers with a thread of their own only: those of the event loop read the body themselves, or wait for
    the claimer, which does the same.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **about: Any) -> None:
        again = endpoint if inspect.iscoroutinefunction(endpoint) else retries.repeatable(endpoint)
        super().__init__(path, again, **about)


class ApiRoute(RepeatingRoute):
    """A route of `/api/v1`: authenticates and admits before anything of the body is read."""

    def get_route_handler(self) -> _Handler:
        """The handler behind the door."""
        handle = super().get_route_handler()
        access.allowed_roles(self.endpoint)  # a route that does not say who may use it does not start

        async def guarded(request: Request) -> Response:
            request = StrictRequest(request.scope, request.receive)
            parts: Parts = request.app.state.parts
            await admit(request, parts, self.endpoint, takes_json=self.body_field is not None)
            return await handle(request)

        return guarded


class SecretRoute(RepeatingRoute):
    """A route of `/api/v1` whose caller shows a pilot's secret where others show a token.

    Nothing is known of the caller before the handler has looked at the secret: little is read.
    """

    def get_route_handler(self) -> _Handler:
        """The handler behind the door."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            request = StrictRequest(request.scope, request.receive)
            request.state.secret = access.bearer(request)
            access.admit_stranger(request, request.app.state.parts)
            check_texts(request)
            await request.load(_STRANGERS_JSON)
            return await handle(request)

        return guarded


def refuse_by_length(request: Request, limit: int) -> None:
    """Refuse a body that says itself that it is too large.

    Raises:
        BodyTooLarge: It says so.
    """
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > limit:
        raise BodyTooLarge(limit)


def check_texts(request: Request) -> None:
    """Refuse what no database stores, in the path or in the query.

    Raises:
        InvalidRequest: There is such text.
    """
    for name, value in request.path_params.items():
        strict_json.check_text(name, str(value))
    for name, value in request.query_params.multi_items():
        strict_json.check_text("query", name)
        strict_json.check_text(name, value)


async def _parts(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


async def _token(request: Request) -> Token:
    token: Token = request.state.token
    return token


async def _caller(request: Request) -> Caller:
    return (await _token(request)).caller


async def _secret(request: Request) -> str:
    secret: str = request.state.secret
    return secret


async def _queue(site: str, ce: str, queue: str) -> QueueAddress:
    return QueueAddress.parse(f"{site}/{ce}/{queue}")


#: What handlers ask for; all are there before the handler runs.
PartsOf = Annotated[Parts, Depends(_parts)]
CallerOf = Annotated[Caller, Depends(_caller)]
TokenOf = Annotated[Token, Depends(_token)]
#: Of a `SecretRoute`.
SecretOf = Annotated[str, Depends(_secret)]
#: Of a path with `{site}/{ce}/{queue}`; there need not be such a queue.
QueueOf = Annotated[QueueAddress, Depends(_queue)]
