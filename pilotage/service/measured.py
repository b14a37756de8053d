"""Measures every request, whoever answers it."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pilotage.service.metrics import Metrics

_UNKNOWN = "unknown"


class Measured:
    """Counts requests by route, not by path: ids would make a time series each."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and count."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        begun = time.perf_counter()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path", _UNKNOWN)
            # A method that no route has may be any word of the client's.
            method = _UNKNOWN if route == _UNKNOWN else scope["method"]
            seconds = time.perf_counter() - begun
            self._metrics.served(method=method, route=route, status=status, seconds=seconds)
