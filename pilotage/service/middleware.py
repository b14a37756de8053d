"""ASGI middleware around all answers: request metrics, security headers, and the bytes of answers."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pilotage.service.auth import access
from pilotage.service.auth.rate_limits import Limiter
from pilotage.service.metrics import Metrics

_UNKNOWN = "unknown"
_NOT_ALLOWED = 405
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


class MeasuredRequests:
    """Count requests by route, not by path: each id would make its own time series."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer and count."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        begun, ended = time.perf_counter(), 0.0

        async def watch(message: Message) -> None:
            nonlocal status, ended
            if message["type"] == "http.response.start":
                status = message["status"]
                if _EVENTS in message["headers"]:  # lasts as long as the client likes
                    ended = time.perf_counter()
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path", _UNKNOWN)
            # Without a route, or with another method's, it may be any word that the client chose.
            method = _UNKNOWN if route == _UNKNOWN or status == _NOT_ALLOWED else scope["method"]
            seconds = (ended or time.perf_counter()) - begun
            self._metrics.served(method=method, route=route, status=status, seconds=seconds)


#: All content comes from this service, no script or style is inline, and no other page may frame ours.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)

#: Constant, so that adding them costs nothing.
ALWAYS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    # Not `no-referrer`: browsers would then hide the origin of our own forms, which `forgery` checks.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
#: After a request over TLS the browser must not use plain HTTP again.
OVER_TLS = (*ALWAYS, (b"strict-transport-security", b"max-age=31536000"))


def headers(scope: Scope) -> tuple[tuple[bytes, bytes], ...]:
    """The headers of an answer to this request."""
    return OVER_TLS if scope["scheme"] == "https" else ALWAYS


class SecurityHeaders:
    """Add the security headers to all answers of an application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, sending(scope, send))


def sending(scope: Scope, send: Send) -> Send:
    """Wrap `send` so that it adds the security headers."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *headers(scope)]
        await send(message)

    return send_with_headers


class CountedAnswers:
    """Count the bytes of each answer for its caller until the server has sent them."""

    def __init__(self, app: ASGIApp, answers: Limiter) -> None:
        self._app = app
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer and count."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        head: Message | None = None

        async def send_counted(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                head = message  # with what follows, which would not be counted while the head waits
                return
            with self._answers.keep(*access.find_holder(scope), len(message.get("body", b""))):
                if head is not None:
                    begin, head = head, None
                    await send(begin)
                await send(message)

        await self._app(scope, receive, send_counted)
