"""The HTTP service as one application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from fastapi import APIRouter, FastAPI, Security
from fastapi.security import HTTPBearer

from pilotage.service import archives, errors
from pilotage.service.api_route import ApiRoute
from pilotage.service.measured import Measured
from pilotage.service.models.errors import ErrorAnswer
from pilotage.service.pages import ROUTERS as PAGES
from pilotage.service.pages import assets, navigation
from pilotage.service.parts import Parts
from pilotage.service.routes import ROUTERS, health, metrics, published_keys
from pilotage.service.security_headers import SecurityHeaders
from pilotage.service.shortcuts import Shortcuts

#: Seconds until what another process says of tokens holds here: one that it revoked, a key that it changed.
_TOLD_WITHIN = 2.0
#: Seconds until a key that an issuer withdrew is not believed any more.
_ASKED_AGAIN_AFTER = 600.0

#: Only for the description: `access` reads the token itself.
_BEARER = HTTPBearer(
    auto_error=False,
    description="A token of this installation (`pilotage token`), or of an issuer that it trusts.",
)
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "The request was refused."},
    "5XX": {"model": ErrorAnswer, "description": "Try again later, or it is our fault."},
}


def create_app(parts: Parts) -> FastAPI:
    """The application, ready to be served; it starts and stops none of its parts."""
    app = FastAPI(
        title="Pilotage",
        summary="Task queue and pilot matcher.",
        version="1",
        lifespan=_lifespan,
        strict_content_type=False,
        redirect_slashes=False,
        docs_url=None,  # it would have browsers load from elsewhere; `pages.interface` describes the same
        redoc_url=None,
    )
    app.state.parts = parts
    app.state.uploads = anyio.CapacityLimiter(archives.MOST_UPLOADS)
    api = APIRouter(
        prefix="/api/v1", route_class=ApiRoute, dependencies=[Security(_BEARER)], responses=_ERRORS
    )
    for router in ROUTERS:
        api.include_router(router)
    app.include_router(health.router)  # first: the framework tries all in turn, and this shall cost little
    app.include_router(metrics.router, responses=_ERRORS)
    app.include_router(published_keys.router)
    app.include_router(api)
    app.include_router(assets.router)
    for router in PAGES:
        app.include_router(router, include_in_schema=False)
    app.state.navigation = navigation.entries(PAGES)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(Shortcuts, parts=parts)
    app.add_middleware(Measured, metrics=parts.metrics)
    errors.install(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    parts: Parts = app.state.parts
    watching = [asyncio.create_task(watch(parts)) for watch in (_watch_tokens, _watch_issuers)]
    try:
        yield
    finally:
        for each in watching:
            each.cancel()
            with suppress(asyncio.CancelledError):
                await each


async def _watch_issuers(parts: Parts) -> None:
    while parts.issuers:
        await asyncio.gather(*(issuer.learn() for issuer in parts.issuers))
        await asyncio.sleep(_ASKED_AGAIN_AFTER)


async def _watch_tokens(parts: Parts) -> None:
    while True:
        await asyncio.to_thread(parts.revoked.refresh)
        await asyncio.to_thread(parts.tokens.refresh)
        await asyncio.sleep(_TOLD_WITHIN)
