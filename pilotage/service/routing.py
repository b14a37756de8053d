"""Reading JSON so that nothing comes in that some part below could not store or compare.

What every route does before its handler: who asks, may it, is the body JSON that we can use.
"""

import inspect
import json
import math
import re
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from cs_config.tree.address import QueueAddress
from pilotage.service.auth import access
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.auth.tokens import BearerToken, UnknownKey
from pilotage.service.http_errors import BodyTooLarge
from pilotage.service.services import Services
from requirements.errors import MOST_PROBLEMS, InvalidRequest, Problem
from requirements.values import text_fault
from taskqueue.db import retry

#: Levels of lists and objects in each other; nothing that we read has more than a few.
_DEEPEST = 64
#: The largest integer of the databases.
_MAX_INTEGER = 2**63 - 1
#: The bytes of a body by what they may be part of: numbers, powers of ten, or what stands before a number.
_SHAPES = bytes(
    ord("0" if sign in "0123456789+-." else "e" if sign in "eE" else "," if sign in ":,[ \t\r\n" else "x")
    for sign in map(chr, range(256))
)
#: A power of ten; an integer of many digits.
_POWER = re.compile(rb",0+e")
_LONG = b"0" * 19


def parse(body: bytes) -> object:
    """The value that the body holds.

    Raises:
        InvalidRequest: It is not JSON in UTF-8, a name stands twice in one object, a number is not
            finite or beyond 64 bit, or a text holds NUL or half a surrogate pair.
    """
    try:
        value = _DECODER.decode(body.decode())
    except UnicodeDecodeError as error:
        raise _invalid(f"is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"is not JSON: {error.msg}", line=error.lineno, column=error.colno) from None
    except RecursionError:
        raise _invalid("is nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise _invalid(str(error)) from None
    if is_plain(body):
        return value
    if problems := [
        problem for problem, _ in zip(_problems(value, "", 0), range(MOST_PROBLEMS), strict=False)
    ]:
        raise InvalidRequest(problems)
    return value


def is_plain(body: bytes) -> bool:
    """Whether a look at the bytes shows that nothing in them can be wrong, if they are JSON at all.

    What `_problems` finds is an escaped character or such a number: raw NULs are no JSON, and UTF-8 has no
    halves of pairs.
    """
    if body.count(b"[") + body.count(b"{") > _DEEPEST or b"\\u" in body:
        return False
    shape = b"," + body.translate(_SHAPES)
    return _LONG not in shape and _POWER.search(shape) is None


def check_text(path: str, text: str) -> None:
    """Refuse text of a path, a query or a header that could not be stored.

    Raises:
        InvalidRequest: It holds NUL or half a surrogate pair.
    """
    if fault := text_fault(text):
        raise InvalidRequest([Problem(path=path, message=fault)])


def _problems(value: object, path: str, depth: int) -> Iterator[Problem]:
    if depth > _DEEPEST:
        yield Problem(path=path or "body", message=f"is nested more than {_DEEPEST} levels deep")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _text_problem(name, f"{path}/{name!r:.80}")
            yield from _problems(item, f"{path}/{name}" if path else name, depth + 1)
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _problems(item, f"{path}[{position}]", depth + 1)
    elif isinstance(value, str):
        yield from _text_problem(value, path)
    elif isinstance(value, int) and abs(value) > _MAX_INTEGER:
        yield Problem(path=path or "body", message="is an integer beyond 64 bit")
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(path=path or "body", message="is a number too large for any program")


def _text_problem(text: str, path: str) -> Iterator[Problem]:
    if fault := text_fault(text):
        # The path itself may be what is wrong: it has to be fit for an answer.
        shown = path.encode(errors="backslashreplace").decode().replace("\0", "\\0")
        yield Problem(path=shown or "body", message=fault[:400])


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _invalid(f"has the name {twice!r:.80} twice in one object")
    return found


def _no_constant(word: str) -> float:
    raise _invalid(f"holds {word}, which is not JSON")


def _invalid(message: str, **where: int) -> InvalidRequest:
    return InvalidRequest([Problem(path="body", message=message, **where)])  # type: ignore[arg-type]


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)

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
            self.content = await anyio.to_thread.run_sync(parse, self._body)
        elif self._body:
            self.content = parse(self._body)

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
    request: StrictRequest, parts: Services, endpoint: Callable[..., Any], *, takes_json: bool
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


async def _authenticated(request: Request, parts: Services) -> BearerToken:
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
        again = endpoint if inspect.iscoroutinefunction(endpoint) else retry.retry_on_conflict(endpoint)
        super().__init__(path, again, **about)


class ApiRoute(RepeatingRoute):
    """A route of `/api/v1`: authenticates and admits before anything of the body is read."""

    def get_route_handler(self) -> _Handler:
        """The handler behind the door."""
        handle = super().get_route_handler()
        access.allowed_roles(self.endpoint)  # a route that does not say who may use it does not start

        async def guarded(request: Request) -> Response:
            request = StrictRequest(request.scope, request.receive)
            parts: Services = request.app.state.parts
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
        check_text(name, str(value))
    for name, value in request.query_params.multi_items():
        check_text("query", name)
        check_text(name, value)


async def _parts(request: Request) -> Services:
    parts: Services = request.app.state.parts
    return parts


async def _token(request: Request) -> BearerToken:
    token: BearerToken = request.state.token
    return token


async def _caller(request: Request) -> Caller:
    return (await _token(request)).caller


async def _secret(request: Request) -> str:
    secret: str = request.state.secret
    return secret


async def _queue(site: str, ce: str, queue: str) -> QueueAddress:
    return QueueAddress.parse(f"{site}/{ce}/{queue}")


#: What handlers ask for; all are there before the handler runs.
PartsOf = Annotated[Services, Depends(_parts)]
CallerOf = Annotated[Caller, Depends(_caller)]
TokenOf = Annotated[BearerToken, Depends(_token)]
#: Of a `SecretRoute`.
SecretOf = Annotated[str, Depends(_secret)]
#: Of a path with `{site}/{ce}/{queue}`; there need not be such a queue.
QueueOf = Annotated[QueueAddress, Depends(_queue)]
