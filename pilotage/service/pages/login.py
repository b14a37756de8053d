"""Signing in and out."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from pilotage.service import audit
from pilotage.service.access import allow
from pilotage.service.callers import Role
from pilotage.service.pages import page_route, sessions, templating
from pilotage.service.pages.page_route import OpenRoute, PageOf, PageRoute, PartsOf
from taskqueue import database, revoked_tokens

router = APIRouter()
_open = APIRouter(route_class=OpenRoute)
_mine = APIRouter(route_class=PageRoute)


@_open.get("/login")
def login(
    request: Request, parts: PartsOf, next_page: Annotated[str, Query(alias="next", max_length=2000)] = "/"
) -> Response:
    """How one may sign in; who is signed in already goes on to the page."""
    if page_route.signed_in(request) is not None:
        return RedirectResponse(sessions.local(next_page), 303)
    text = (
        templating.environment()
        .get_template("login/sign_in.html")
        .render(next_page=sessions.local(next_page), ways=parts.sign_in_ways)
    )
    return HTMLResponse(text, headers={"Cache-Control": "no-store"})


@_mine.post("/logout")
@allow(*Role)
def logout(page: PageOf, parts: PartsOf) -> Response:
    """End the session here and everywhere: a copy of its cookie is worth nothing any more."""
    token, now = page.token, parts.clock()
    with database.writing(parts.engine) as conn:
        revoked_tokens.revoke(conn, token.token_id, expires_at=token.expires_at, now=now)
    parts.revoked.refresh()
    audit.done(page.caller, "logout", token_id=token.token_id)
    answer = RedirectResponse("/login", 303)
    sessions.end(page.request, answer)
    return answer


router.include_router(_open)
router.include_router(_mine)
