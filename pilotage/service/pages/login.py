"""Signing in and out."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from pilotage.service import access, audit, logins
from pilotage.service.access import allow
from pilotage.service.callers import Capability, Role
from pilotage.service.pages import page_route, sessions, templating
from pilotage.service.pages.page_route import OpenRoute, PageOf, PageRoute, PartsOf
from pilotage.service.parts import Parts
from taskqueue import database, revoked_tokens

router = APIRouter()
_open = APIRouter(route_class=OpenRoute)
_mine = APIRouter(route_class=PageRoute)

_USED = "This link is not good: each works once, for five minutes. Ask for another one."


@_open.get("/login")
def login(
    request: Request,
    parts: PartsOf,
    next_page: Annotated[str, Query(alias="next", max_length=sessions.LONGEST_ADDRESS)] = "/",
) -> Response:
    """How one may sign in."""
    return _sign_in(request, parts, next_page)


@_open.post("/login")
def follow(
    request: Request,
    parts: PartsOf,
    link: Annotated[str, Form(max_length=sessions.LONGEST_ADDRESS)],
    next_page: Annotated[str, Form(alias="next", max_length=sessions.LONGEST_ADDRESS)] = "/",
) -> Response:
    """Sign in by a one-time link, or by what stands behind its #."""
    found = logins.follow(parts, link.strip().rpartition("#")[2])
    if found is None:
        audit.unproven("login", address=access.address(request), reason="no link that is good")
        return _sign_in(request, parts, next_page, problem=_USED)
    return sessions.begin(
        request, parts, found.caller, until=found.until, token_id=found.token_id, next_page=next_page
    )


@_mine.post("/logout")
@allow(*Role, needs=Capability.READ)
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


def _sign_in(request: Request, parts: Parts, next_page: str, problem: str = "") -> Response:
    page = page_route.signed_in(request)
    text = (
        templating.environment()
        .get_template("login/sign_in.html")
        .render(
            caller=page.caller if page else None,
            next_page=sessions.local(next_page),
            problem=problem,
            ways=parts.sign_in_ways,
        )
    )
    return HTMLResponse(text, 401 if problem else 200, headers={"Cache-Control": "no-store"})


router.include_router(_open)
router.include_router(_mine)
