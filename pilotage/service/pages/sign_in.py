"""Sign in by one-time link or by another issuer, choose a role, sign out."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from secrets import token_hex
from typing import Annotated
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field

from pilotage.service.auth import access, audit, login_links, login_tokens, tokens
from pilotage.service.auth import callers as auth_callers
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Capability, Role
from pilotage.service.auth.oidc import code_flow, issuer
from pilotage.service.auth.oidc.code_flow import LoginAttempt
from pilotage.service.auth.oidc.issuers import TrustedIssuer
from pilotage.service.http_errors import NotAuthenticated, NotHere
from pilotage.service.pages import page as pages_page
from pilotage.service.pages import sessions, templating
from pilotage.service.pages.page import OpenRoute, PageOf, PageRoute
from pilotage.service.routing import PartsOf
from pilotage.service.services import Services
from requirements.errors import PilotageError
from taskqueue.db import database

router = APIRouter(route_class=OpenRoute)
logout_router = APIRouter(route_class=PageRoute)

_CALLBACK = "/login/callback/{name}"
_ACTION = "login"
#: Time limit for the issuer's login and the choice of a role.
_LIFE = timedelta(minutes=15)
#: Roles offered; they must fit into a cookie together with the address to return to.
_MOST = 12
_LONGEST_NEXT = 1000

NextPage = Annotated[str, Query(alias="next", max_length=sessions.LONGEST_ADDRESS)]
_USED = "This link is not valid: each works once, for five minutes. Create another one."


@router.get("/login")
def login(request: Request, parts: PartsOf, next_page: NextPage = "/") -> Response:
    """Show the ways to sign in."""
    return _sign_in(request, parts, next_page)


@router.post("/login")
def follow(
    request: Request,
    parts: PartsOf,
    link: Annotated[str, Form(max_length=sessions.LONGEST_ADDRESS)],
    next_page: Annotated[str, Form(alias="next", max_length=sessions.LONGEST_ADDRESS)] = "/",
    *,
    look: Annotated[bool, Form()] = False,
) -> Response:
    """Sign in by a one-time link, or by its part after the #; with `look`, only show as whom."""
    secret = link.strip().rpartition("#")[2]
    found = login_links.look(parts, secret) if look else login_links.follow(parts, secret)
    if found is None:
        audit.unproven("login", address=access.address(request), reason="no link that is good")
        return _sign_in(request, parts, next_page, problem=_USED)
    if look:
        page = pages_page.signed_in(request)
        return templating.respond(
            "login/confirm.html",
            200,
            caller=page.caller if page else None,
            becomes=found.caller,
            link=secret,
            next_page=sessions.local(next_page),
        )
    return sessions.begin(
        request, parts, found.caller, until=found.until, token_id=found.token_id, next_page=next_page
    )


_CODE = Annotated[str, Query(max_length=20)]


@logout_router.get("/login/device")
@allow(*login_links.PEOPLE)
def show_device(page: PageOf, code: _CODE = "") -> Response:
    """Ask whether a command line with this code may act as the person."""
    with database.reading(page.parts.engine) as conn:
        waiting = login_tokens.find_device(conn, code, now=page.parts.clock())
    return page.render("login/device.html", code=code, result="", waiting=waiting)


@logout_router.post("/login/device")
@allow(*login_links.PEOPLE)
def confirm_device(page: PageOf, code: Annotated[str, Form(max_length=20)]) -> Response:
    """Let the command line with this code act as the person."""
    is_confirmed = login_links.confirm_device(page.parts, page.token, code)
    answer = page.render(
        "login/device.html", code=code, result="good" if is_confirmed else "bad", waiting=None
    )
    answer.status_code = 200 if is_confirmed else 400
    return answer


@logout_router.post("/logout")
@allow(*Role, needs=Capability.READ)
def logout(page: PageOf, parts: PartsOf) -> Response:
    """End the session; copies of its cookie become invalid."""
    token = page.token
    with database.writing(parts.engine) as conn:
        login_tokens.revoke_token(conn, token.token_id, expires_at=token.expires_at, now=parts.clock())
    parts.revoked.refresh()
    audit.done(page.caller, "logout", token_id=token.token_id)
    answer = RedirectResponse("/login", 303)
    sessions.set_cookie(page.request, answer, sessions.cookie_name(page.request), "", timedelta())
    return answer


def _sign_in(request: Request, parts: Services, next_page: str, problem: str = "") -> Response:
    page = pages_page.signed_in(request)
    return templating.respond(
        "login/sign_in.html",
        401 if problem else 200,
        caller=page.caller if page else None,
        next_page=sessions.local(next_page),
        problem=problem,
        issuers=[each.issuer.name for each in parts.issuers if each.issuer.sign_in is not None],
    )


IssuerName = Annotated[str, Path(max_length=255)]


async def _wait_for_issuer(parts: Services, name: str, work: Callable[[], Response]) -> Response:
    """Run what waits for an issuer: strangers, and an issuer that hangs, take few of the shared threads."""
    async with parts.sign_ins.place("", name):
        return await anyio.to_thread.run_sync(work)


@router.get("/login/issuers/{name}")
async def begin_issuer_login(
    request: Request, parts: PartsOf, name: IssuerName, next_page: NextPage = "/"
) -> Response:
    """Redirect to the issuer, with a cookie that binds the attempt to this browser."""
    return await _wait_for_issuer(parts, name, partial(_begin, request, parts, name, next_page))


def _begin(request: Request, parts: Services, name: str, next_page: str) -> Response:
    # One for each issuer: the answer of one cannot be taken for that of another (RFC 9700 §4.4).
    callback = request.url.replace(path=_CALLBACK.format(name=quote(name, safe="")), query="", fragment="")
    attempt, address = code_flow.begin(_issuer(parts, name), str(callback))
    answer = RedirectResponse(address, 303, headers={"Cache-Control": "no-store"})
    wanted = sessions.local(next_page) if len(next_page) <= _LONGEST_NEXT else "/"
    _keep(request, parts, answer, "attempt", {**asdict(attempt), "next": wanted})
    return answer


class CallbackQuery(BaseModel):
    """Parameters that an issuer adds to the address of its redirect."""

    state: str | None = Field(default=None, max_length=1024)
    code: str | None = Field(default=None, max_length=4096)
    iss: str | None = Field(default=None, max_length=1024)
    error: str | None = Field(default=None, max_length=1024)


@router.get(_CALLBACK)
async def handle_callback(
    request: Request, parts: PartsOf, name: IssuerName, query: Annotated[CallbackQuery, Query()]
) -> Response:
    """Handle the issuer's redirect: sign in, or offer a choice of several roles."""
    return await _wait_for_issuer(parts, name, partial(_finish, request, parts, name, query))


def _finish(request: Request, parts: Services, name: str, query: CallbackQuery) -> Response:
    try:
        trusted, kept, claims = _claims(request, parts, name, query)
        callers = _callers(trusted, claims)
    except PilotageError as refused:
        audit.unproven(_ACTION, address=access.address(request), reason=str(refused))
        raise
    if len(callers) == 1:
        return _signed_in(request, parts, callers[0], next_page=str(kept["next"]))
    answer = templating.respond("login/role.html", callers=callers)
    content = {
        "callers": [auth_callers.claims_of(caller) for caller in callers],
        "next": kept["next"],
        "id": token_hex(16),
    }
    _keep(request, parts, answer, "choice", content)
    return answer


@router.post("/login/role")
def choose(request: Request, parts: PartsOf, choice: Annotated[int, Form(ge=0, lt=_MOST)]) -> Response:
    """Sign in with one of the offered roles, once."""
    kept = _read_attempt(request, parts, "choice")
    callers, choice_id = kept["callers"], str(kept["id"])
    if not isinstance(callers, list) or choice >= len(callers) or choice_id in parts.revoked:
        raise NotAuthenticated("this is none of the roles that were offered: begin again")
    now = parts.clock()
    with database.writing(parts.engine) as conn:
        login_tokens.revoke_token(conn, choice_id, expires_at=now + _LIFE, now=now)
    parts.revoked.refresh()
    return _signed_in(request, parts, auth_callers.read(callers[choice]), next_page=str(kept["next"]))


def _claims(
    request: Request, parts: Services, name: str, query: CallbackQuery
) -> tuple[TrustedIssuer, Mapping[str, object], dict[str, object]]:
    kept = _read_attempt(request, parts, "attempt")
    attempt = LoginAttempt(**{name: str(value) for name, value in kept.items() if name != "next"})
    trusted = _issuer(parts, attempt.issuer)
    if name != attempt.issuer:
        raise NotAuthenticated("the answer comes from another issuer")
    if query.error is not None or query.code is None or query.state is None:
        why = query.error or "no code came back"
        raise NotAuthenticated(f"{trusted.issuer.name} did not sign you in: {why!r:.100}")
    claims = code_flow.finish(
        trusted, attempt, state=query.state, code=query.code, issuer=query.iss, now=parts.clock()
    )
    return trusted, kept, claims


def _callers(trusted: TrustedIssuer, claims: dict[str, object]) -> tuple[Caller, ...]:
    """The person's roles; scopes are ignored, since they describe the rights of a program."""
    claims.pop("scope", None)
    callers = issuer.callers(trusted.issuer, claims)
    if not callers:
        groups = ", ".join(sorted(trusted.issuer.groups(claims))[:20]) or "none"
        raise NotAuthenticated(
            f"none of your groups at {trusted.issuer.name} has a role here ({groups:.500})"
        )
    return callers[:_MOST]


def _signed_in(request: Request, parts: Services, caller: Caller, *, next_page: str) -> Response:
    """Begin the session; the cookie of the attempt is not needed any more."""
    access.count_sign_in(parts, caller)
    answer = sessions.begin(request, parts, caller, next_page=next_page)
    sessions.set_cookie(request, answer, _cookie(request), "", timedelta())
    return answer


def _issuer(parts: Services, name: str) -> TrustedIssuer:
    for trusted in parts.issuers:
        if trusted.issuer.name == name and trusted.issuer.sign_in is not None:
            return trusted
    raise NotHere("there is no sign-in with such an issuer here")


def _cookie(request: Request) -> str:
    return f"{sessions.cookie_name(request)}-sign-in"


def _keep(
    request: Request, parts: Services, answer: Response, purpose: str, content: Mapping[str, object]
) -> None:
    text = tokens.seal(parts.tokens.keys, purpose, content, life=_LIFE, now=parts.clock())
    sessions.set_cookie(request, answer, _cookie(request), text, _LIFE)


def _read_attempt(request: Request, parts: Services, purpose: str) -> Mapping[str, object]:
    text = request.cookies.get(_cookie(request))
    if not text:
        raise NotAuthenticated("no sign-in was begun in this browser: begin again")
    return tokens.unseal(parts.tokens.keys, purpose, text, now=parts.clock())
