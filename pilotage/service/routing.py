"""Route classes: strict JSON, authentication and authorization before a handler runs.

JSON is parsed so strictly that every accepted value can be stored and compared by the packages below.
"""

import email.message
import inspect
import json
import math
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Annotated, Any

import anyio.to_thread
from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from cs_config.options import bounds
from cs_config.tree.address import QueueAddress
from pilotage.service.auth import access
from pilotage.service.auth.access import AccessRules
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.auth.tokens import BearerToken, UnknownKey
from pilotage.service.clients import WaitingClient, find_client
from pilotage.service.http_errors import BodyTooLarge, NotAuthenticated
from pilotage.service.services import Services
from requirements import kept
from requirements.errors import MOST_PROBLEMS, InvalidRequest, Problem
from requirements.values import text_fault
from requirements.written_reals import read_real
from taskqueue.db import database

#: Deepest nesting of lists and objects; real requests have a few levels.
_DEEPEST = 64
#: The largest integer of the databases.
_MAX_INTEGER = 2**63 - 1
#: Classes of the bytes of a body: part of a number, exponent sign, before a number, other.
_SHAPES = bytes(
    ord("0" if sign in "0123456789+-." else "e" if sign in "eE" else "," if sign in ":,[ \t\r\n" else "x")
    for sign in map(chr, range(256))
)
#: An exponent; an integer of many digits.
_POWER = re.compile(rb",0+e")
_LONG = b"0" * 19
#: What stands before a long text in JSON, and the text; signs between values.
_LONG_TEXT = re.compile(rb'((?:[^"]++|"(?:[^"\\]|\\.){0,100}+")*+)(?:"(?:[^"\\]++|\\.)*+"|.*+)', re.DOTALL)
_BETWEEN = (b",", b":", b"[", b"{")


def parse(body: bytes, *, keeps_numbers: bool = False) -> object:
    """Parse a body; real numbers as `WrittenReal` if it `keeps_numbers`.

    `InvalidRequest` if it is not JSON in UTF-8, has too many values, a name is repeated in one object, a
    number is not finite or beyond 64 bit, or a text holds NUL or half a surrogate pair.
    """
    check_size(body)
    try:
        value = (_KEEPING_DECODER if keeps_numbers else _DECODER).decode(body.decode())
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


def check_size(body: bytes, *, most: int = bounds.JSON_VALUES) -> None:
    """Raise `InvalidRequest` for JSON with too many values: they take far more memory than their text."""
    if _count_between(body) <= most:
        return
    # Only long texts, such as descriptions, are left out: each costs memory, too.
    if (seen := _count_between(_LONG_TEXT.sub(rb"\1", body))) > most:
        raise _invalid(f"has about {seen:,} names and values, {most:,} are allowed")


def _count_between(body: bytes) -> int:
    return sum(body.count(each) for each in _BETWEEN)


def is_plain(body: bytes) -> bool:
    """Whether a scan of the bytes proves that a body, if it is JSON, has none of the faults of `_problems`.

    Those need an escaped character or a long number: raw NULs are not JSON, and UTF-8 has no half surrogates.
    """
    if body.count(b"[") + body.count(b"{") > _DEEPEST or b"\\u" in body:
        return False
    shape = b"," + body.translate(_SHAPES)
    return _LONG not in shape and _POWER.search(shape) is None


def check_text(path: str, text: str) -> None:
    """Reject text of a path, query or header that holds NUL or half a surrogate pair: it cannot be stored."""
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
        # The path itself may hold the fault: escape it for the message.
        shown = path.encode(errors="backslashreplace").decode().replace("\0", "\\0")
        yield Problem(path=shown or "body", message=fault[:400])


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise _invalid(f"has the name {name!r:.80} twice in one object")
        found[name] = value
    return found


def _no_constant(word: str) -> float:
    raise _invalid(f"holds {word}, which is not JSON")


def _invalid(message: str, **where: int) -> InvalidRequest:
    return InvalidRequest([Problem(path="body", message=message, **where)])  # type: ignore[arg-type]


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
_KEEPING_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=read_real
)

#: Bytes of a body from a caller that is not authenticated.
_STRANGERS_JSON = 4096
#: Characters of a stamp.
_LONGEST_STAMP = 255

#: Bytes of a body parsed in the event loop; larger ones go to a thread, so that they block no request.
AT_ONCE = 16 << 10
#: Bytes of a short body (resource description, heartbeat); no body of a pilot may be larger.
SMALL = 256 << 10

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class StrictRequest(Request):
    """A request whose JSON is parsed by `parse`."""

    content: object = None

    async def read(self, limit: int, count: Callable[[int], None] = lambda _: None) -> bytes:
        """Read the whole body; `BodyTooLarge` above `limit` bytes. `count` gets the bytes of each part."""
        refuse_by_length(self, limit)
        chunks, size, more = [], 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk, more = message.get("body", b""), message.get("more_body", False)
            size += len(chunk)
            if size > limit:
                raise BodyTooLarge(limit)
            count(len(chunk))
            chunks.append(chunk)
        self._body = b"".join(chunks) if len(chunks) > 1 else chunks[0]
        return self._body

    async def parse(self, *, keeps_numbers: bool = False) -> None:
        """Parse the body that was read; `InvalidRequest` also if it is of another type by its header."""
        parse_body = partial(parse, keeps_numbers=keeps_numbers)
        if self._body and not is_json(stated := access.read_header(self, b"content-type")):
            raise _invalid(
                f"is of the type {stated!r:.100}, allowed is JSON: send Content-Type: application/json"
            )
        if len(self._body) > AT_ONCE:
            self.content = await anyio.to_thread.run_sync(parse_body, self._body)
        elif self._body:
            self.content = parse_body(self._body)

    async def json(self) -> Any:
        """The value parsed by `parse`."""
        return self.content

    @property
    def is_read(self) -> bool:
        """Whether the body was read."""
        return hasattr(self, "_body")

    @property
    def whole(self) -> bytes:
        """The bytes read by `read`."""
        return self._body


async def authorize(request: Request, parts: Services, rules: AccessRules) -> Caller:
    """Authenticate, count the request and check the role; the body is not read."""
    text, state = access.bearer(request), request.scope.setdefault("state", {})
    try:
        token = access.verify(text, parts)
    except UnknownKey:  # only then is the issuer contacted
        await access.learn_key(request, parts)
        token = access.verify(text, parts)
    state["token"] = access.admit(token, parts)
    caller = access.require(request.scope, token.caller, rules)
    if caller is not token.caller:
        state["token"] = replace(token, caller=caller)
    return caller


def limit_body(parts: Services, rules: AccessRules, caller: Caller) -> int:
    """The most bytes of a JSON body."""
    most = rules.most_bytes or limit_text(parts, caller)
    if caller.role is Role.PILOT:
        most = min(most, SMALL)
    return min(most, parts.limits.json_bytes)


def limit_text(parts: Services, caller: Caller) -> int:
    """The most bytes of a body that is not an archive; operators send whole configurations."""
    return parts.limits.json_bytes if caller.is_operator else min(bounds.BODY, parts.limits.json_bytes)


class GuardedRoute(APIRoute):
    """A route with checks before its handler, which is repeated after a conflict with another transaction.

    A class of routes states in `admit` who may send requests, and in `read` what is read of their bodies.
    Only handlers that run in a thread are repeated, and need places: those of the event loop read the body
    themselves, or wait for the claimer, which retries by itself.
    """

    is_alone = False  #: whether unread answers of others are no reason to refuse a request
    takes_json = True  #: whether a body is JSON; else it is a form
    keeps_numbers = False  #: whether real numbers in it keep their text

    def __init__(self, path: str, endpoint: Callable[..., Any], **about: Any) -> None:
        again = endpoint if inspect.iscoroutinefunction(endpoint) else database.retry_on_conflict(endpoint)
        super().__init__(path, again, **about)
        self._uses_thread = again is not endpoint

    def get_route_handler(self) -> _Handler:
        """The handler with `guard` around it."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive)
            return await self.guard(strict, request.app.state.parts, handle)

        return guarded

    async def guard(self, request: StrictRequest, parts: Services, handle: _Handler) -> Response:
        """Check a request, read what is allowed of its body, and handle it in the places that it needs."""
        caller = await self.admit(request, parts)
        check_texts(request)
        # Before the body is read: bodies of waiting requests would fill the memory.
        async with self._take_place(parts, request, caller):
            await self.read(request, parts)
            # After that: slow senders must not take the places of others.
            async with self.take_turn(parts, request, caller):
                # With the places that it needs: of those that wait for places all would pass.
                access.require_room(request.scope, parts, is_alone=self.is_alone)
                with kept.count_for(caller.tenant if caller else ""):
                    if self.takes_json and self.body_field is not None:
                        await request.parse(keeps_numbers=self.keeps_numbers)
                    return await handle(request)

    async def admit(self, request: StrictRequest, parts: Services) -> Caller | None:
        """Check and count who sends a request; None: a stranger, who counts by the address."""
        raise NotImplementedError

    async def read(self, request: StrictRequest, parts: Services) -> None:
        """Read what is allowed of the body of an admitted request."""

    def _take_place(
        self, parts: Services, request: Request, caller: Caller | None
    ) -> AbstractAsyncContextManager[None]:
        """Hold one of the caller's places at work while a thread is used."""
        if not self._uses_thread or (caller is not None and caller.is_operator):
            return nullcontext()
        return parts.work.place(*access.find_holder(request.scope))

    def take_turn(
        self,
        parts: Services,  # noqa: ARG002
        request: StrictRequest,  # noqa: ARG002
        caller: Caller | None,  # noqa: ARG002
    ) -> AbstractAsyncContextManager[None]:
        """Hold one of the places of all callers, if the route has such."""
        return nullcontext()


class RoleRoute(GuardedRoute):
    """A route for certain roles; `TypeError` at start if it does not state them."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **about: Any) -> None:
        self.rules = access.rules_of(endpoint)
        self.keeps_numbers = self.rules.keeps_numbers
        super().__init__(path, endpoint, **about)

    def take_turn(
        self, parts: Services, request: StrictRequest, caller: Caller | None
    ) -> AbstractAsyncContextManager[None]:
        """Hold one of the places of all callers while a thread is used."""
        if not self._uses_thread or caller is None or caller.is_operator:
            return nullcontext()
        is_large = request.is_read and len(request.whole) > AT_ONCE
        others = parts.large_turns if is_large else parts.turns
        turns = parts.expensive_turns if self.rules.is_expensive else others
        return turns.place(caller.tenant, caller.subject)


class ApiRoute(RoleRoute):
    """A route of `/api/v1`: authenticates and authorizes before the body is read."""

    async def admit(self, request: StrictRequest, parts: Services) -> Caller:
        """Check token, role and rate."""
        return await authorize(request, parts, self.rules)

    async def read(self, request: StrictRequest, parts: Services) -> None:
        """Read the body, if the handler has one."""
        if self.body_field is not None:
            await request.read(limit_body(parts, self.rules, request.state.token.caller))


class SecretRoute(GuardedRoute):
    """A route of `/api/v1` authenticated by a pilot's secret instead of a token.

    The caller is unknown until the handler has checked the secret, so only a small body is read.
    """

    is_alone = True

    async def guard(self, request: StrictRequest, parts: Services, handle: _Handler) -> Response:
        """Count a wrong secret."""
        try:
            return await super().guard(request, parts, handle)
        except NotAuthenticated:
            if (stamp := getattr(request.state, "stamp", None)) is not None:
                access.count_wrong_secret(request, parts, stamp)
            raise

    async def admit(self, request: StrictRequest, parts: Services) -> None:
        """Check the rate, and read the body."""
        secret = request.state.secret = access.bearer(request)
        # Without a stamp by the secret itself: a wrong one of another command line refuses no others.
        stamp = str(request.path_params.get("stamp") or sha256(secret.encode()).hexdigest())[:_LONGEST_STAMP]
        access.admit_secret(request, parts, stamp)
        request.state.stamp = stamp
        await request.read(_STRANGERS_JSON)


class AnonymousRoute(GuardedRoute):
    """A route of `/api/v1` without any authentication; requests are limited by address."""

    async def admit(self, request: StrictRequest, parts: Services) -> None:
        """Check the rate, and read the body, which is small."""
        access.limit_anonymous(request, parts)
        await request.read(_STRANGERS_JSON)


def refuse_by_length(request: Request, limit: int) -> None:
    """Reject a body whose `Content-Length` exceeds the limit."""
    length = access.read_header(request, b"content-length") or ""
    if length.isascii() and length.isdigit() and int(length[:20]) > limit:
        raise BodyTooLarge(limit)


def is_json(stated: str | None) -> bool:
    """Whether a body with this `Content-Type` is JSON; without one it is."""
    if not stated or stated.startswith("application/json"):
        return True
    message = email.message.Message()
    message["content-type"] = stated
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (
        subtype == "json" or subtype.endswith("+json")
    )


def check_texts(request: Request) -> None:
    """Reject text in the path or the query that cannot be stored (`check_text`)."""
    for name, value in request.scope["path_params"].items():
        check_text(name, str(value))
    if not request.scope["query_string"]:
        return
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


async def _client(request: Request) -> WaitingClient:
    return find_client(request)


async def _queue(site: str, ce: str, queue: str) -> QueueAddress:
    return QueueAddress.parse(f"{site}/{ce}/{queue}")


#: Dependencies of handlers; all are available before the handler runs.
PartsOf = Annotated[Services, Depends(_parts)]
CallerOf = Annotated[Caller, Depends(_caller)]
TokenOf = Annotated[BearerToken, Depends(_token)]
ClientOf = Annotated[WaitingClient, Depends(_client)]
#: In a `SecretRoute`.
SecretOf = Annotated[str, Depends(_secret)]
#: In a path with `{site}/{ce}/{queue}`; the queue need not exist.
QueueOf = Annotated[QueueAddress, Depends(_queue)]
