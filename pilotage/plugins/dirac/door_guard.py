"""The guard of the door: how much clients of DIRAC, and their VOs, may have under way."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from pilotage.service.auth import access
from pilotage.service.auth.rate_limits import Bounds, Limiter
from pilotage.service.routing import StrictRequest
from pilotage.service.services import Services
from requirements import kept

#: Forms in memory, of a DN: more than the sandboxes.
FORMS: Final = Bounds(what="large requests", of_all=256 << 20, of_one=80 << 20, is_halved=True)
#: Requests with a sandbox in their form, which take several times its size in memory from its end on.
SANDBOXES: Final = Bounds(of_all=8, of_vo=6, of_one=4)
#: Calls in threads, of four times as many: one DN at many addresses, or many DNs, must not take them all.
CALLS: Final = Bounds(of_vo=10)


class DoorGuard:
    """Admits the requests of clients of DIRAC; of one event loop."""

    def __init__(self, parts: Services) -> None:
        self._parts = parts
        self._forms, self._sandboxes, self._calls = Limiter(FORMS), Limiter(SANDBOXES), Limiter(CALLS)

    @asynccontextmanager
    async def admit(
        self, request: StrictRequest, vo: str, name: str, *, most: int, has_sandbox: bool = False
    ) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Count a request of a DN, or user, and read its form, of `most` bytes, in the places that it needs.

        The function gives these back before the end of the block: calls that wait for others need none.
        """
        parts, subject = self._parts, f"{name}@{access.address(request)}"
        access.count(parts, f"dirac:{subject}")
        access.note_peer(request, vo, name)
        with self._forms.hold(vo, name) as count:
            async with AsyncExitStack() as places:
                # Before the body is read: bodies of waiting requests would fill the memory.
                await places.enter_async_context(parts.work.place(vo, subject))
                await request.read(most, count)
                # After that: slow senders must not take the places of others.
                if has_sandbox:
                    await places.enter_async_context(self._sandboxes.place(vo, name))
                await places.enter_async_context(self._calls.place(vo, name))
                access.require_room(request.scope, parts)
                with kept.count_for(vo):
                    yield places.aclose
