"""Pages of changes of the configuration: check, preview, apply and rebase a draft; versions and rollback."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from cs_config.errors import EditConflict, VersionConflict
from cs_config.versions import proposals
from cs_config.versions.diff import Difference
from cs_config.versions.proposals import ConfigDraft
from matcher.preview import history, outlook
from matcher.preview.outlook import Guard, GuardFailed
from pilotage.service import configuring, error_handlers
from pilotage.service.auth import audit
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.pages.configuration import (
    TEXT,
    ChangeOutcome,
    Filled,
    read_guards,
    render_section,
    split_differences,
)
from pilotage.service.pages.page import PageContext, PageOf, PageRoute
from requirements.errors import NotAllowed, PilotageError, Problem

router = APIRouter(prefix="/configuration", route_class=PageRoute)

#: Errors that are shown beside the draft, which is kept.
_REFUSALS: Final = (*proposals.CORRECTABLE, GuardFailed)

_Version = Annotated[int, Query(ge=1, le=2**31 - 1)]


@router.post("/check")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def check(page: PageOf, filled: Annotated[Filled, Form()]) -> Response:
    """Show the problems and changes of the draft."""
    is_begun = bool(filled.rows) or filled.way == TEXT
    errors: Sequence[Problem] = ()
    warnings: Sequence[Problem] = ()
    changes: Sequence[Difference] = ()
    try:
        if is_begun:
            proposal = page.editor.propose(filled.draft)
            visible = page.editor.visible_problems(proposal.warnings, proposal.after)
            warnings = proposals.add_lines(visible, *filled.written)
            changes = split_differences(proposal.differences)
    except proposals.CORRECTABLE as error:
        errors = proposals.list_problems(error, *filled.written)
    return page.render(
        "configuration/findings.html", is_begun=is_begun, errors=errors, warnings=warnings, changes=changes
    )


@router.post("/preview")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def preview(page: PageOf, filled: Annotated[Filled, Form()]) -> Response:
    """Show the effects of the draft on waiting and running jobs; nothing is changed."""
    try:
        conditions = read_guards(filled.guard)
        return _answer(page, filled, _preview(page, filled.draft, conditions))
    except _REFUSALS as error:
        if isinstance(error, NotAllowed):
            _audit_refusal(page, error)
        return _refuse(page, filled, error)


@router.post("/apply")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def apply(page: PageOf, filled: Annotated[Filled, Form()]) -> Response:
    """Store the draft as the version in force."""
    try:
        conditions = read_guards(filled.guard)
        lasting = filled.revert_after and timedelta(seconds=filled.revert_after)
        changed = page.editor.store(
            filled.draft, message=filled.message, guards=conditions, lasting=lasting or None
        )
    except _REFUSALS as error:
        _audit_refusal(page, error)
        return _refuse(page, filled, error)
    if not changed.is_new:
        return _answer(page, filled, ChangeOutcome(changes=[]))
    query = {"path": filled.section, "as": filled.way, "applied": changed.version}
    return RedirectResponse(f"/configuration?{urlencode(query)}", 303)


@router.post("/rebase")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def rebase(page: PageOf, filled: Annotated[Filled, Form()]) -> Response:
    """Move the draft onto the version in force."""
    try:
        version, text = page.editor.rebase(filled.version, *filled.written)
        moved = filled.model_copy(update={"version": version, "text": text or ""})
        return render_section(page, moved, rebased=True)
    except _REFUSALS as error:
        return _refuse(page, filled, error)


def _refuse(page: PageContext, filled: Filled, error: PilotageError) -> Response:
    outcome = ChangeOutcome(
        problems=proposals.list_problems(error, *filled.written),
        conflicts=split_differences(error.conflicts) if isinstance(error, EditConflict) else (),
        current=error.current if isinstance(error, VersionConflict) else None,
    )
    return _answer(page, filled, outcome, status=error_handlers.status_of(error))


def _answer(page: PageContext, filled: Filled, outcome: ChangeOutcome, *, status: int = 200) -> HTMLResponse:
    if page.is_fragment:  # scripts insert only answers with status 200
        return page.render("configuration/outcome.html", outcome=outcome, filled=filled)
    return render_section(page, filled, status=status, outcome=outcome)


def _preview(page: PageContext, draft: ConfigDraft, conditions: Sequence[Guard] = ()) -> ChangeOutcome:
    """The changes of a draft and their effects."""
    proposal = page.editor.propose(draft)
    found = page.editor.compute_outlook(proposal)
    return ChangeOutcome(
        changes=split_differences(proposal.differences),
        preview=configuring.preview(page.editor, proposal, found),
        failing=outlook.list_failing(conditions, found),
    )


def _audit_refusal(page: PageContext, error: PilotageError) -> None:
    """Audit a rejected change whose error is shown on the page instead of being raised."""
    audit.refused(page.caller, method=page.request.method, path=page.request.url.path, reason=str(error))


@router.get("/history")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def list_versions(
    page: PageOf,
    path: Annotated[str, Query(max_length=2000)] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> Response:
    """List the latest versions that changed something visible to the person."""
    entries = history.list_versions(page.editor, limit=limit + 1, path=path)
    return page.render(
        "configuration/history.html",
        entries=entries[:limit],
        has_more=len(entries) > limit,
        limit=limit,
        path=path,
        version=page.editor.read().version,
    )


@router.get("/diff")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def show_differences(
    page: PageOf,
    before: Annotated[_Version, Query(alias="from")],
    after: Annotated[_Version | None, Query(alias="to")] = None,
) -> Response:
    """Show the differences between two versions."""
    later, found = history.compare(page.editor, before, after)
    return page.render(
        "configuration/diff.html", before=before, after=later, changes=split_differences(found)
    )


@router.get("/rollback")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def preview_rollback(page: PageOf, version: _Version) -> Response:
    """Preview a rollback; nothing is changed."""
    return _show_rollback(page, version)


@router.post("/rollback")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def rollback(
    page: PageOf,
    version: Annotated[int, Form(ge=1, le=2**31 - 1)],
    expected: Annotated[int, Form(ge=0, le=2**31 - 1)],
    guard: Annotated[str, Form(max_length=2000)] = "",
) -> Response:
    """Restore a version as far as the person may change it."""
    draft = ConfigDraft(version=expected, restored=version)
    try:
        changed = page.editor.store(draft, message="", guards=read_guards(guard))
    except (VersionConflict, GuardFailed) as error:
        _audit_refusal(page, error)
        return _show_rollback(page, version, guard=guard, error=error)
    return RedirectResponse(f"/configuration/diff?from={expected}&to={changed.version}", 303)


def _show_rollback(
    page: PageContext, version: int, *, guard: str = "", error: PilotageError | None = None
) -> Response:
    outcome = _preview(page, ConfigDraft(restored=version))
    if error is not None:
        outcome = replace(outcome, problems=(Problem(path="", message=str(error)),))
    return page.render(
        "configuration/rollback.html",
        status=200 if error is None else error_handlers.status_of(error),
        version=version,
        guard=guard,
        outcome=outcome,
    )
