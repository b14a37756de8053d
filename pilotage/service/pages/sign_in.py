"""Sign in by one-time link or by another issuer, choose a role, sign out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from pilotage.service.auth import access, audit, login_links, tokens
from pilotage.service.auth import callers as auth_callers
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Capability, Role
from pilotage.service.auth.oidc import code_flow, issuer
from pilotage.service.auth.oidc.code_flow import Answer, LoginAttempt
from pilotage.service.auth.oidc.issuers import TrustedIssuer
from pilotage.service.http_errors import NotAuthenticated, NotHere
from pilotage.service.pages import page as pages_page
from pilotage.service.pages import sessions, templating
from pilotage.service.pages.page import OpenRoute, PageOf, PageRoute
from pilotage.service.routing import PartsOf
from pilotage.service.services import Services
from requirements.errors import PilotageError
from taskqueue import login_tokens
from taskqueue.db import database

router = APIRouter()
_open = APIRouter(route_class=OpenRoute)
_mine = APIRouter(route_class=PageRoute)

_USED = "This link is not valid: each works once, for five minutes. Create another one."


@_open.get("/login")
def login(
    request: Request,
    parts: PartsOf,
    next_page: Annotated[str, Query(alias="next", max_length=sessions.LONGEST_ADDRESS)] = "/",
) -> Response:
    """Show the ways to sign in."""
    return _sign_in(request, parts, next_page)


@_open.post("/login")
def follow(
    request: Request,
    parts: PartsOf,
    link: Annotated[str, Form(max_length=sessions.LONGEST_ADDRESS)],
    next_page: Annotated[str, Form(alias="next", max_length=sessions.LONGEST_ADDRESS)] = "/",
) -> Response:
    """Sign in by a one-time link, or by its part after the #."""
    found = login_links.follow(parts, link.strip().rpartition("#")[2])
    if found is None:
        audit.unproven("login", address=access.address(request), reason="no link that is good")
        return _sign_in(request, parts, next_page, problem=_USED)
    return sessions.begin(
        request, parts, found.caller, until=found.until, token_id=found.token_id, next_page=next_page
    )


@_mine.post("/logout")
@allow(*Role, needs=Capability.READ)
def logout(page: PageOf, parts: PartsOf) -> Response:
    """End the session; copies of its cookie become invalid."""
    token, now = page.token, parts.clock()
    with database.writing(parts.engine) as conn:
        login_tokens.revoke_token(conn, token.token_id, expires_at=token.expires_at, now=now)
    parts.revoked.refresh()
    audit.done(page.caller, "logout", token_id=token.token_id)
    answer = RedirectResponse("/login", 303)
    sessions.end(page.request, answer)
    return answer


def _sign_in(request: Request, parts: Services, next_page: str, problem: str = "") -> Response:
    page = pages_page.signed_in(request)
    text = (
        templating.environment()
        .get_template("login/sign_in.html")
        .render(
            caller=page.caller if page else None,
            next_page=sessions.local(next_page),
            problem=problem,
            ways=parts.issuers.sign_in_ways,
        )
    )
    return HTMLResponse(text, 401 if problem else 200, headers={"Cache-Control": "no-store"})


router.include_router(_open)
router.include_router(_mine)

issuer_router = APIRouter(prefix="/login", route_class=OpenRoute)

_CALLBACK = "/login/callback"
_ACTION = "login"
#: Time limit for the issuer's login and the choice of a role.
_LIFE = timedelta(minutes=15)
#: Roles offered; they must fit into a cookie together with the address to return to.
_MOST = 12
_LONGEST_NEXT = 1000

NextPage = Annotated[str, Query(alias="next", max_length=sessions.LONGEST_ADDRESS)]
Code = Annotated[str | None, Query(max_length=4096)]
Word = Annotated[str | None, Query(max_length=1024)]


@issuer_router.get("/issuers/{name}")
def begin_issuer_login(
    request: Request, parts: PartsOf, name: Annotated[str, Path(max_length=255)], next_page: NextPage = "/"
) -> Response:
    """Redirect to the issuer, with a cookie that binds the attempt to this browser."""
    attempt, address = code_flow.begin(_issuer(parts, name), _redirect_uri(request))
    answer = RedirectResponse(address, 303, headers={"Cache-Control": "no-store"})
    wanted = sessions.local(next_page) if len(next_page) <= _LONGEST_NEXT else "/"
    _keep(request, parts, answer, "attempt", {**asdict(attempt), "next": wanted})
    return answer


@issuer_router.get("/callback")
def handle_callback(
    request: Request,
    parts: PartsOf,
    *,
    state: Word = None,
    code: Code = None,
    iss: Word = None,
    error: Word = None,
) -> Response:
    """Handle the issuer's redirect: sign in, or offer a choice of several roles."""
    try:
        trusted, kept, claims = _claims(request, parts, state=state, code=code, iss=iss, error=error)
        callers = _callers(trusted, claims)
    except PilotageError as refused:
        audit.unproven(_ACTION, address=access.address(request), reason=str(refused))
        raise
    if len(callers) == 1:
        return _signed_in(request, parts, callers[0], next_page=str(kept["next"]))
    answer = _choice(callers)
    content = {"callers": [auth_callers.claims_of(caller) for caller in callers], "next": kept["next"]}
    _keep(request, parts, answer, "choice", content)
    return answer


@issuer_router.post("/role")
def choose(request: Request, parts: PartsOf, choice: Annotated[int, Form(ge=0, lt=_MOST)]) -> Response:
    """Sign in with one of the offered roles."""
    kept = _read_attempt(request, parts, "choice")
    callers = kept["callers"]
    if not isinstance(callers, list) or choice >= len(callers):
        raise NotAuthenticated("this is none of the roles that were offered: begin again")
    return _signed_in(request, parts, auth_callers.read(callers[choice]), next_page=str(kept["next"]))


def _claims(
    request: Request,
    parts: Services,
    *,
    state: str | None,
    code: str | None,
    iss: str | None,
    error: str | None,
) -> tuple[TrustedIssuer, Mapping[str, object], dict[str, object]]:
    kept = _read_attempt(request, parts, "attempt")
    attempt = LoginAttempt(**{name: str(value) for name, value in kept.items() if name != "next"})
    trusted = _issuer(parts, attempt.issuer)
    if error is not None or code is None or state is None:
        raise NotAuthenticated(
            f"{trusted.issuer.name} did not sign you in: {error or 'no code came back'!r:.100}"
        )
    answer = Answer(state=state, code=code, issuer=iss)
    return trusted, kept, code_flow.finish(trusted, attempt, answer, now=parts.clock())


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


def _choice(callers: Sequence[Caller]) -> HTMLResponse:
    text = templating.environment().get_template("login/role.html").render(callers=callers)
    return HTMLResponse(text, headers={"Cache-Control": "no-store"})


def _signed_in(request: Request, parts: Services, caller: Caller, *, next_page: str) -> Response:
    answer = sessions.begin(request, parts, caller, next_page=next_page)
    _forget(request, answer)
    return answer


def _issuer(parts: Services, name: str) -> TrustedIssuer:
    for trusted in parts.issuers:
        if trusted.issuer.name == name and trusted.issuer.sign_in is not None:
            return trusted
    raise NotHere("there is no sign-in with such an issuer here")


def _redirect_uri(request: Request) -> str:
    return str(request.url.replace(path=_CALLBACK, query="", fragment=""))


def _cookie(request: Request) -> str:
    return f"{sessions.cookie_name(request)}-sign-in"


def _keep(
    request: Request, parts: Services, answer: Response, purpose: str, content: Mapping[str, object]
) -> None:
    text = tokens.seal(parts.tokens.keys, purpose, content, life=_LIFE, now=parts.clock())
    answer.set_cookie(
        _cookie(request),
        text,
        max_age=int(_LIFE.total_seconds()),
        secure=sessions.is_secure(request),
        httponly=True,
        samesite="lax",
    )


def _read_attempt(request: Request, parts: Services, purpose: str) -> Mapping[str, object]:
    text = request.cookies.get(_cookie(request))
    if not text:
        raise NotAuthenticated("no sign-in was begun in this browser: begin again")
    return tokens.unseal(parts.tokens.keys, purpose, text, now=parts.clock())


def _forget(request: Request, answer: Response) -> None:
    answer.delete_cookie(_cookie(request), secure=sessions.is_secure(request), httponly=True, samesite="lax")
