"""Versions of the configuration, their differences, and rollback."""

from typing import Annotated

from fastapi import APIRouter, Form, Query
from fastapi.responses import RedirectResponse, Response

from cs_config.errors import VersionConflict
from matcher.preview import guards
from pilotage.service import error_handlers
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.configuring import change, history, in_force, previews
from pilotage.service.pages.configuration import view
from pilotage.service.pages.configuration.view import ChangeOutcome, audit_refusal
from pilotage.service.pages.page import PageContext, PageOf, PageRoute
from requirements.errors import PilotageError, Problem

router = APIRouter(prefix="/configuration", route_class=PageRoute)

_Version = Annotated[int, Query(ge=1, le=2**31 - 1)]


@router.get("/history")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def versions(
    page: PageOf,
    path: Annotated[str, Query(max_length=2000)] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> Response:
    """List the latest versions that changed something visible to the person."""
    entries = history.read(page.parts, page.caller, limit=limit + 1, path=path)
    current = in_force.readable(page.parts).version
    return page.render(
        "configuration/history.html",
        entries=entries[:limit],
        has_more=len(entries) > limit,
        limit=limit,
        path=path,
        version=current,
    )


@router.get("/diff")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def diff(
    page: PageOf,
    before: Annotated[_Version, Query(alias="from")],
    after: Annotated[_Version | None, Query(alias="to")] = None,
) -> Response:
    """Show the differences between two versions."""
    found = history.between(page.parts, page.caller, before=before, after=after)
    return page.render(
        "configuration/diff.html", before=before, after=found.after, changes=view.changes(found.differences)
    )


@router.get("/rollback")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def preview_rollback(page: PageOf, version: _Version) -> Response:
    """Preview a rollback; nothing is changed."""
    return _version_view(page, version, guard="")


@router.post("/rollback")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def rollback(
    page: PageOf,
    version: Annotated[int, Form(ge=1, le=2**31 - 1)],
    expected: Annotated[int, Form(ge=0, le=2**31 - 1)],
    guard: Annotated[str, Form(max_length=2000)] = "",
) -> Response:
    """Restore a version as far as the person may change it."""
    try:
        conditions = guards.read_guards(filter(None, map(str.strip, guard.split(","))))
        number, _ = change.rollback(page.parts, page.caller, version, expected=expected, guards=conditions)
    except (VersionConflict, guards.GuardFailed) as error:
        audit_refusal(page, error)
        return _version_view(page, version, guard=guard, error=error)
    return RedirectResponse(f"/configuration/diff?from={expected}&to={number}", 303)


def _version_view(
    page: PageContext, version: int, *, guard: str, error: PilotageError | None = None
) -> Response:
    proposal = change.back_to(page.parts, page.caller, version, expected=None)
    found = change.outlook_of(page.parts, page.caller, proposal)
    outcome = ChangeOutcome(
        changes=view.changes(proposal.differences),
        preview=previews.answer(proposal, found, page.caller),
        problems=() if error is None else (Problem(path="", message=str(error)),),
    )
    return page.render(
        "configuration/rollback.html",
        status=200 if error is None else error_handlers.status_of(error),
        version=version,
        current=proposal.before.version,
        guard=guard,
        outcome=outcome,
    )
