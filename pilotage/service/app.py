"""The HTTP service as one application."""

import asyncio
import logging
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.security import HTTPBearer
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from matcher import wait_cause_recorder
from matcher.pauses import Pauses
from pilotage import extensions
from pilotage.service import deadline, error_handlers, middleware, openapi
from pilotage.service.error_handlers import ErrorAnswer
from pilotage.service.hot_routes import HotRoutes
from pilotage.service.http_errors import ServiceEnding
from pilotage.service.middleware import CountedAnswers, MeasuredRequests, SecurityHeaders
from pilotage.service.pages import page, templating
from pilotage.service.pages.navigation import list_pages
from pilotage.service.queries.archives import Uploads
from pilotage.service.routes import health
from pilotage.service.routes.api import ROUTERS
from pilotage.service.routing import ApiRoute
from pilotage.service.services import Services
from requirements.errors import PilotageError
from taskqueue import blobs
from taskqueue.db import database
from taskqueue.errors import NotConfirmed
from taskqueue.leases import uptime

_log = logging.getLogger(__name__)

#: Seconds until a token revoked or a key changed by another process takes effect here.
_TOKEN_REFRESH = 2.0
#: Seconds until a key that an issuer withdrew is no longer trusted.
_ISSUER_REFRESH = 600.0
#: Seconds between two writes of the contacts of pilots.
_CONTACTS = 1.0
#: Seconds after the last request in which causes of waiting are still stored.
_LAST_CAUSES = 5.0

#: For the OpenAPI description only: `access` reads the token itself.
_BEARER = HTTPBearer(
    auto_error=False,
    description="A token of this installation (`pilotage token`), or of an issuer that it trusts.",
)
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "The request was refused."},
    "5XX": {"model": ErrorAnswer, "description": "Unavailable, try again later; 500 is a defect."},
}


_DESCRIBING: Final = threading.Lock()


class ServiceApplication(FastAPI):
    """The application, with the most frequent requests answered in front of the framework."""

    hot_routes: HotRoutes

    def openapi(self) -> dict[str, Any]:
        """Describe the interface; made once, by one thread: the framework fails in two."""
        with _DESCRIBING:
            if self.openapi_schema is None:
                self.openapi_schema = openapi.complete(super().openapi())
            return self.openapi_schema

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a hot route in front of the framework, all others by it; 503 if the service ends before."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        if (route := self.hot_routes.find(scope)) is not None:
            await self.hot_routes.answer(route, scope, receive, send)
            return
        try:
            await deadline.answer_in_time(super().__call__, scope, receive, send)
        except asyncio.CancelledError:  # the server has waited for requests under way, and ends
            error = ServiceEnding("the service is being stopped, try again")
            await _ask_to_repeat(error, scope, receive, send)
        except NotConfirmed as unknown:
            await _ask_to_repeat(unknown, scope, receive, send)


async def _ask_to_repeat(error: PilotageError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer that the request has to be repeated; it may have taken effect."""
    response, _ = await error_handlers.answer_to(Request(scope, receive), error)
    response.raw_headers.extend(middleware.headers(scope))  # this is outside of the middleware that adds them
    with suppress(RuntimeError):  # an answer has begun
        await response(scope, receive, send)


def create_app(parts: Services) -> FastAPI:
    """Build the application, ready to be served; it starts and stops none of `parts`."""
    app = ServiceApplication(
        title="Pilotage",
        summary="Task queue and pilot matcher.",
        version="1",
        routes=list_routes(),
        lifespan=_lifespan,
        redirect_slashes=False,
        openapi_url=None,  # `pages.interface` has these: FastAPI's page loads scripts from other hosts
        docs_url=None,
        redoc_url=None,
    )
    app.state.parts = parts
    app.state.documents = {}
    app.state.readiness = health.Readiness(parts)
    app.hot_routes = HotRoutes(app, parts)
    # Apart: outputs wait for no sandbox of a user.
    app.state.sandbox_uploads = Uploads(parts.blobs)
    app.state.output_uploads = Uploads(parts.blobs, leave=blobs.OUTPUTS_LEAVE)
    app.state.navigation = page.entries(list_pages())
    app.add_middleware(CountedAnswers, answers=parts.answers)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(MeasuredRequests, metrics=parts.metrics)
    error_handlers.install(app)
    return app


@cache
def list_routes() -> list[BaseRoute]:
    """All routes. They hold nothing of one application, and making them takes most of its start."""
    everything = APIRouter(strict_content_type=False, generate_unique_id_function=openapi.name_operation)
    api = APIRouter(
        prefix="/api/v1", route_class=ApiRoute, dependencies=[Security(_BEARER)], responses=_ERRORS
    )
    for router in (*ROUTERS, *extensions.list_routers()):
        api.include_router(router)
    # First: routes are tried in order, and health checks are frequent.
    everything.include_router(health.router)
    everything.include_router(health.metrics_router, responses=_ERRORS)
    everything.include_router(api)
    everything.include_router(templating.router)
    for router in list_pages():
        everything.include_router(router, include_in_schema=False)
    return everything.routes


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with keep_running(app.state.parts):
        yield


@asynccontextmanager
async def keep_running(parts: Services) -> AsyncIterator[None]:
    """Run the periodic actions of a process that answers pilots, and write what is left at the end."""
    process = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    storing, ending = threading.Lock(), threading.Event()

    async def refresh_tokens() -> None:
        await asyncio.to_thread(parts.revoked.refresh)
        await asyncio.to_thread(parts.tokens.refresh)

    async def refresh_issuers() -> None:
        await asyncio.gather(*(issuer.learn() for issuer in parts.issuers))

    async def record_uptime() -> None:
        await asyncio.to_thread(_record_uptime, parts, process)

    async def store_contacts() -> None:
        try:
            await parts.places.store_contacts()
        except database.CommitsLost:
            pass  # as `_record_uptime`
        except database.UNAVAILABLE as error:
            _log.warning("the database is unavailable; contacts of pilots are stored later: %s", error)

    async def store_wait_causes() -> None:
        await asyncio.to_thread(store_minute)

    def store_minute() -> None:
        with storing:  # one that was cancelled at the end may still be under way
            _store_wait_causes(parts, Pauses(ending))

    # In the event loop that answers requests: while it hangs, no heartbeat is received.
    actions = {
        refresh_tokens: _TOKEN_REFRESH,
        refresh_issuers: _ISSUER_REFRESH,
        record_uptime: uptime.EVERY,
        store_contacts: _CONTACTS,
        store_wait_causes: wait_cause_recorder.EVERY,
    }
    watching = [asyncio.create_task(repeatedly(action, every=every)) for action, every in actions.items()]
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store_wait_causes)  # the last of all: no job waits for it
        stack.push_async_callback(parts.claims.close)  # whatever happens before
        stack.push_async_callback(store_contacts)
        try:
            yield
        finally:
            ending.set()
            parts.wait_causes.end(within=_LAST_CAUSES)
            for each in watching:
                each.cancel()
                with suppress(asyncio.CancelledError):
                    await each


async def repeatedly(action: Callable[[], Awaitable[object]], *, every: float) -> None:
    """Await `action` every `every` seconds. Exceptions are logged and do not stop the loop."""
    while True:
        try:
            await action()
        except Exception:  # noqa: BLE001  (logged; the next run may succeed)
            _log.exception("a periodic action failed, the next run is in %g s", every)
        await asyncio.sleep(every)


def _record_uptime(parts: Services, process: str) -> None:
    try:
        with database.writing(parts.engine) as conn:
            uptime.record(conn, process, now=parts.clock())
    except database.CommitsLost:
        return  # reports are refused: missing heartbeats do not count
    except database.UNAVAILABLE as error:
        parts.storage.note_failure(error)
        _log.warning("the database is unavailable; missing heartbeats do not count meanwhile: %s", error)


def _store_wait_causes(parts: Services, pause: Callable[[], None]) -> None:
    try:
        parts.hardware.store(pause)  # first: both are stored with the time at which they are
        parts.answers_given.store(pause)
        parts.wait_causes.store(pause)
    except database.CommitsLost:
        return  # as `_record_uptime`
    except database.UNAVAILABLE as error:
        _log.warning("the database is unavailable; causes of waiting are stored later: %s", error)
