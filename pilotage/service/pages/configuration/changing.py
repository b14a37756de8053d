"""Check, preview, apply and rebase a draft."""

from urllib.parse import urlencode

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from cs_config.errors import EditConflict, VersionConflict
from matcher.preview import guards
from matcher.preview.guards import GuardFailed
from pilotage.service import error_handlers
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.configuring import change, drafts, previews
from pilotage.service.pages.configuration import view
from pilotage.service.pages.configuration.view import ChangeOutcome, Filled, FilledOf, audit_refusal
from pilotage.service.pages.page import PageContext, PageOf, PageRoute
from requirements.errors import NotAllowed, PilotageError

router = APIRouter(prefix="/configuration", route_class=PageRoute)

#: Errors that are shown beside the draft, which is kept.
_REFUSALS = (*drafts.MENDABLE, GuardFailed)


@router.post("/check")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def check(page: PageOf, filled: FilledOf) -> Response:
    """Show the problems and changes of the draft."""
    if not _is_begun(filled):
        return page.render("configuration/findings.html", checked=None)
    checked = drafts.check(page.parts, page.caller, filled.draft)
    return page.render("configuration/findings.html", checked=checked, changes=_changes(checked))


def _is_begun(filled: Filled) -> bool:
    return bool(filled.draft.rows) or filled.draft.text is not None


def _changes(checked: drafts.CheckedDraft) -> list[view.ChangedPath]:
    return [] if checked.proposal is None else view.changes(checked.proposal.differences)


@router.post("/preview")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def preview(page: PageOf, filled: FilledOf) -> Response:
    """Show the effects of the draft on waiting and running jobs; nothing is changed."""
    try:
        return _answer(page, filled, preview_draft(page, filled))
    except _REFUSALS as error:
        if isinstance(error, NotAllowed):
            audit_refusal(page, error)
        return _refused(page, filled, error)


def preview_draft(page: PageContext, filled: Filled) -> ChangeOutcome:
    """The changes of the draft and their effects."""
    conditions = guards.read_guards(filled.guards)
    proposal = drafts.build_proposal(page.parts, page.caller, filled.draft)
    found = change.outlook_of(page.parts, page.caller, proposal)
    return ChangeOutcome(
        changes=view.changes(proposal.differences),
        preview=previews.answer(proposal, found, page.caller),
        failing=guards.list_failing(conditions, found),
    )


@router.post("/apply")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def apply(page: PageOf, filled: FilledOf) -> Response:
    """Store the draft as the version in force."""
    try:
        version, proposal = drafts.store(
            page.parts,
            page.caller,
            filled.draft,
            message=filled.message,
            guards=guards.read_guards(filled.guards),
        )
    except _REFUSALS as error:
        audit_refusal(page, error)
        return _refused(page, filled, error)
    if not proposal.differences and version == proposal.before.version:
        return _answer(page, filled, ChangeOutcome(changes=[]))
    query = {"path": filled.section, "as": filled.way, "applied": version}
    return RedirectResponse(f"/configuration?{urlencode(query)}", 303)


@router.post("/rebase")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def rebase(page: PageOf, filled: FilledOf) -> Response:
    """Move the draft onto the version in force."""
    try:
        draft = drafts.rebased(page.parts, page.caller, filled.draft)
        return view.section(page, filled.with_draft(draft), rebased=True)
    except _REFUSALS as error:
        return _refused(page, filled, error)


def _refused(page: PageContext, filled: Filled, error: PilotageError) -> Response:
    conflicts = view.changes(error.conflicts) if isinstance(error, EditConflict) else []
    outcome = ChangeOutcome(
        problems=drafts.format_problems(error, filled.draft),
        conflicts=conflicts,
        current=error.current if isinstance(error, VersionConflict) else None,
    )
    return _answer(page, filled, outcome, status=error_handlers.status_of(error))


def _answer(page: PageContext, filled: Filled, outcome: ChangeOutcome, *, status: int = 200) -> HTMLResponse:
    if page.is_fragment:  # scripts insert only answers with status 200
        return page.render("configuration/outcome.html", outcome=outcome, filled=filled)
    return view.section(page, filled, status=status, outcome=outcome)
