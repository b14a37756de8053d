"""What every page does before its handler: who is signed in, may it, did our own page ask for a change."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse, Response

from pilotage.service import access, api_route, strict_json
from pilotage.service.api_route import PartsOf, StrictRequest
from pilotage.service.pages import forgery, sessions
from pilotage.service.pages.page import Page, here
from pilotage.service.parts import Parts
from pilotage.service.refusals import ClockBehind, NotAuthenticated
from requirements.errors import InvalidRequest
from requirements.problem import Problem

__all__ = ["OpenRoute", "PageOf", "PageRoute", "PartsOf"]

#: Bytes of a form of somebody of whom nothing is known.
_STRANGERS_FORM = 16 << 10
_READING = frozenset({"GET", "HEAD"})

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PageRoute(api_route.RepeatingRoute):
    """A page for who is signed in; others are sent to sign in first."""

    def get_route_handler(self) -> _Handler:
        """The handler behind the door."""
        handle = super().get_route_handler()
        roles = access.allowed_roles(self.endpoint)  # a page that does not say who may use it does not start

        async def guarded(request: Request) -> Response:
            request = StrictRequest(request.scope, request.receive)
            parts: Parts = request.app.state.parts
            try:
                page = request.state.page = _signed_in(request, parts)
            except NotAuthenticated:
                return _to_login(request)
            access.require(request, page.caller, roles)
            access.require_capability(request, page.caller, self.endpoint)
            api_route.check_texts(request)
            if request.method not in _READING:
                forgery.require_own_page(request)
                await _read_form(request, parts.limits.json_bytes)
                await forgery.require_token(request, page.csrf)
            return await handle(request)

        return guarded


class OpenRoute(api_route.RepeatingRoute):
    """A page for everybody, which asks who they are: signing in. Strangers' requests are limited."""

    def get_route_handler(self) -> _Handler:
        """The handler behind the door."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            request = StrictRequest(request.scope, request.receive)
            access.admit_stranger(request, request.app.state.parts)
            api_route.check_texts(request)
            if request.method not in _READING:
                forgery.require_own_page(request)
                await _read_form(request, _STRANGERS_FORM)
            return await handle(request)

        return guarded


def signed_in(request: Request) -> Page | None:
    """The page for who is signed in; None: nobody is."""
    try:
        return _signed_in(request, request.app.state.parts)
    except NotAuthenticated:
        return None


def _signed_in(request: Request, parts: Parts) -> Page:
    text = sessions.token_of(request)
    if text is None:
        raise NotAuthenticated("nobody is signed in")
    try:
        token = request.state.token = access.admit_token(text, parts)
    except ClockBehind as error:  # a session of another host; one that begins here is good
        raise NotAuthenticated(str(error)) from None
    return Page(request=request, parts=parts, token=token, csrf=sessions.csrf_of(text))


def _to_login(request: Request) -> Response:
    """Sign in, then come back; to where a part of a page was asked for, the whole page goes."""
    wanted = str(here(request)) if request.method in _READING else "/"
    wanted = wanted if len(wanted) <= sessions.LONGEST_ADDRESS else "/"
    if request.headers.get("hx-request") == "true":
        return Response(status_code=401, headers={"HX-Refresh": "true"})
    query = f"?{urlencode({'next': wanted})}" if wanted != "/" else ""
    return RedirectResponse(f"/login{query}", 303, headers={"Cache-Control": "no-store"})


async def _read_form(request: StrictRequest, limit: int) -> None:
    """Read the whole body, whose fields the framework would cut at its own size.

    Raises:
        InvalidRequest: It comes in parts, each in letters of the sender's choice, which no page of ours
            sends; or it holds text that could not be stored.
    """
    await request.read(limit)
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        message = "comes in parts, allowed is application/x-www-form-urlencoded"
        raise InvalidRequest([Problem(path="body", message=message)])
    for name, value in (await request.form(max_part_size=limit)).multi_items():
        strict_json.check_text("form", name)
        strict_json.check_text(name, str(value))


async def _page(request: Request) -> Page:
    page: Page = request.state.page
    return page


#: What the handler of a `PageRoute` asks for.
PageOf = Annotated[Page, Depends(_page)]
