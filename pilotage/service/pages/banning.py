"""Banning a site, and allowing it again."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Form
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field

from pilotage.service import site_bans
from pilotage.service.access import allow
from pilotage.service.callers import Role
from pilotage.service.pages.page_route import PageOf, PageRoute
from requirements.errors import InvalidRequest
from requirements.problem import Problem

router = APIRouter(route_class=PageRoute)


class Ban(BaseModel):
    """The form by which a site is banned."""

    reason: str = Field(min_length=1, max_length=1000)
    until: str = Field(default="", max_length=30, description="UTC, as browsers write it; empty: no end.")


@router.post("/sites/{site}/ban")
@allow(Role.SITE_ADMIN)
def ban(page: PageOf, site: str, form: Annotated[Ban, Form()]) -> Response:
    """Give the site no jobs but tests."""
    site_bans.ban(page.parts, page.caller, site, reason=form.reason, until=_time(form.until))
    return RedirectResponse(f"/sites/{site}", 303)


@router.post("/sites/{site}/allow")
@allow(Role.SITE_ADMIN)
def allow_again(page: PageOf, site: str) -> Response:
    """Give the site jobs again."""
    site_bans.allow(page.parts, page.caller, site)
    return RedirectResponse(f"/sites/{site}", 303)


def _time(text: str) -> datetime | None:
    """What a browser writes into a field of date and time, in UTC."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise InvalidRequest([Problem(path="until", message=f"{text!r} is no time")]) from None
