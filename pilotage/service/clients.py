"""Senders of requests, who may go before they are answered."""

from typing import Final, Protocol

from fastapi import Request

#: Name of the connection in the state of a request, where the server has put it.
STATE: Final = "connection"


class WaitingClient(Protocol):
    """The sender of a request."""

    def is_gone(self) -> bool:
        """Whether it has closed the connection."""

    async def wait_until_gone(self) -> None:
        """Return when it has closed the connection."""


class _Disconnects:
    """The sender of a request without a connection of ours, whose body was read."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def is_gone(self) -> bool:
        """Unknown until something waits for it."""
        return False

    async def wait_until_gone(self) -> None:
        """Return when it has closed the connection."""
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


def find_client(request: Request) -> WaitingClient:
    """The sender of a request whose body was read."""
    connection: WaitingClient | None = request.scope.get("state", {}).get(STATE)
    return _Disconnects(request) if connection is None else connection
