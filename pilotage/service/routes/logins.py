"""Links that sign a browser in."""

from fastapi import APIRouter

from pilotage.service import grants, logins
from pilotage.service.access import allow
from pilotage.service.api_route import SMALL, ApiRoute, PartsOf, TokenOf, takes_at_most
from pilotage.service.callers import Caller, Role
from pilotage.service.models.logins import LoginLink, LoginWish

router = APIRouter(prefix="/login-links", tags=["tokens"], route_class=ApiRoute)


@router.post("", status_code=201)
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN)
@takes_at_most(SMALL)
def issue(parts: PartsOf, token: TokenOf, body: LoginWish | None = None) -> LoginLink:
    """A link that signs one browser in within five minutes, with the rights of the token that asks.

    Operators may name somebody else. The session ends after twelve hours, with the token, or when that is
    revoked.
    """
    wanted = token.caller if body is None or body.role is None else _named(body.role, body)
    secret, expires_at = logins.issue(parts, token, wanted)
    return LoginLink(path=f"/login#{secret}", expires_at=expires_at)


def _named(role: str, wish: LoginWish) -> Caller:
    return grants.grant(role=role, vo=wish.vo, user=wish.user, group=wish.group, site=wish.site).caller
