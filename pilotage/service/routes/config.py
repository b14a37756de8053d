"""The configuration: read, change, preview, versions."""

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from cs_config.editing import history, patch
from cs_config.editing.editor import StoredChange
from cs_config.editing.proposals import ConfigDraft
from cs_config.source import yaml_writer
from matcher.preview import outlook
from pilotage.service import configuring
from pilotage.service.auth import access
from pilotage.service.auth.callers import Role
from pilotage.service.http_errors import PreconditionRequired
from pilotage.service.models.config import (
    BlameAnswer,
    BlamedValue,
    ChangedConfig,
    ConfigAnswer,
    DifferencesAnswer,
    Edits,
    NewConfig,
    NewVersion,
    PreviewAnswer,
    Proposed,
    Rollback,
    TemporaryValues,
    ValuesAnswer,
    Versions,
)
from pilotage.service.routing import ApiRoute, CallerOf, PartsOf
from requirements.errors import InvalidRequest, Problem
from taskqueue.db import database

router = APIRouter(prefix="/config", tags=["configuration"], route_class=ApiRoute)

IfMatch = Annotated[str | None, Header(description="The version that the change starts from.")]
VersionNumber = Annotated[int, Query(ge=1, le=2**31 - 1)]


@router.get("")
@access.allow(*access.EVERY_ROLE)
def show(parts: PartsOf, caller: CallerOf, response: Response) -> ConfigAnswer:
    """Show the configuration in force, without other VOs' sections."""
    editor = configuring.editor_of(parts, caller)
    config = editor.read()
    response.headers["ETag"] = f'"{config.version}"'
    if caller.is_operator:
        return ConfigAnswer(
            version=config.version, config=dict(config.tree), text=config.source, source=config.file
        )
    return ConfigAnswer(version=config.version, config=dict(editor.visible_tree(config)))


@router.put("")
@access.allow()
def replace(parts: PartsOf, caller: CallerOf, body: NewConfig, if_match: IfMatch = None) -> NewVersion:
    """Replace the whole configuration; an invalid one changes nothing."""
    draft = ConfigDraft(version=_required(if_match), text=text_of(body), file=body.source)
    editor = configuring.editor_of(parts, caller)
    check = outlook.make_check(editor, outlook.read_guards(body.guard))
    changed = editor.store(draft, message=body.message, check=check)
    return NewVersion(version=changed.version, **_warnings(changed))


@router.patch("", response_model_exclude_unset=True)
@access.allow(Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
def edit(parts: PartsOf, caller: CallerOf, body: Edits, if_match: IfMatch = None) -> ChangedConfig:
    """Change single paths.

    Changes of other paths since the version in `If-Match` are kept; if the same path was changed, the answer
    is 409 with the difference, and nothing is changed. With `revert_after` an agent restores the values.
    """
    draft = ConfigDraft(version=_required(if_match), edits=patch.read_edits(body.set, body.remove))
    editor = configuring.editor_of(parts, caller)
    check = outlook.make_check(editor, outlook.read_guards(body.guard))
    lasting = None if body.revert_after is None else timedelta(seconds=body.revert_after)
    return _changed(editor.store(draft, message=body.message, check=check, lasting=lasting))


@router.get("/versions")
@access.allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def list_versions(
    parts: PartsOf,
    caller: CallerOf,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    path: Annotated[str, Query(max_length=2000, description="Only versions that changed it.")] = "",
) -> Versions:
    """List the latest versions that changed something visible to the caller, newest first."""
    found = history.list_versions(configuring.editor_of(parts, caller), limit=limit, path=path)
    return Versions(versions=found)


@router.get("/temporary", response_model_exclude_unset=True)
@access.allow(Role.VO_ADMIN, Role.SITE_ADMIN)
def list_temporary(
    parts: PartsOf,
    caller: CallerOf,
    path: Annotated[str, Query(max_length=2000, description="Only values at, above or below it.")] = "",
) -> TemporaryValues:
    """List the visible values that an agent will revert, the next first."""
    found = history.list_reverts(configuring.editor_of(parts, caller), path)
    return TemporaryValues(values=[configuring.temporary(each) for each in found])


@router.get("/diff", response_model_exclude_unset=True)
@access.allow(Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
def diff(
    parts: PartsOf,
    caller: CallerOf,
    before: Annotated[VersionNumber, Query(alias="from")],
    after: Annotated[VersionNumber | None, Query(alias="to", description="Default: the newest.")] = None,
) -> DifferencesAnswer:
    """Show the differences between two versions that the caller may see."""
    later, found = history.compare(configuring.editor_of(parts, caller), before, after)
    return DifferencesAnswer(
        from_version=before, to_version=later, changes=[configuring.difference(each) for each in found]
    )


@router.get("/values", response_model=ValuesAnswer)
@access.allow(*access.EVERY_ROLE, is_expensive=True)
def list_values(
    parts: PartsOf,
    caller: CallerOf,
    path: Annotated[str, Query(max_length=2000, description="As in `blame`.")] = "",
    vo: Annotated[str | None, Query(description="Show the values that hold for this VO.")] = None,
    *,
    inherited: Annotated[bool, Query(description="Show what a queue inherits also without a VO.")] = False,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="`next` of the page before.")] = 0,
) -> Response:
    """Show the values at and below a path, with where they are written, 2,000 in one answer."""
    editor = configuring.editor_of(parts, caller)
    config = editor.read()
    found, following = history.list_values(editor, config, path=path, vo=vo, inherited=inherited, after=after)
    values = [each.as_json() for each in found]
    answer = ValuesAnswer.model_validate(
        {"config_version": config.version, "values": values, "next": following}
    )
    # Written here, in a thread: the framework would do it in the event loop.
    return Response(answer.model_dump_json(), media_type="application/json")


@router.get("/blame")
@access.allow(*access.EVERY_ROLE, is_expensive=True)
def blame(
    parts: PartsOf,
    caller: CallerOf,
    path: Annotated[str, Query(max_length=2000, description="Full path, or `Site/CE/Queue`.")],
    vo: Annotated[str | None, Query(description="Show the values that hold for this VO.")] = None,
) -> BlameAnswer:
    """Show where the values at a path are written, their authors, and how many jobs they exclude."""
    editor = configuring.editor_of(parts, caller)
    config = editor.read_newest()
    found = configuring.blame_values(parts, editor, config, path=path, vo=vo)
    return BlameAnswer(
        config_version=config.version, values=[BlamedValue.model_validate(each) for each in found]
    )


@router.post("/preview", response_model_exclude_unset=True)
@access.allow(Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
def preview(parts: PartsOf, caller: CallerOf, body: Proposed, if_match: IfMatch = None) -> PreviewAnswer:
    """Show the effects that a change would have on waiting and running jobs now; nothing is changed.

    Takes the same body as `PATCH` or, for operators, `PUT`.
    """
    expected = None if if_match is None else _expected(if_match)
    has_no_text = body.config is None and body.text is None
    if body.set or body.remove:
        draft = ConfigDraft(version=expected, edits=patch.read_edits(body.set, body.remove))
    elif has_no_text and body.model_fields_set & {"set", "remove"}:
        draft = ConfigDraft(version=expected)  # no edits: the preview has the same shape
    else:
        draft = ConfigDraft(text=text_of(body), file=body.source)
    editor = configuring.editor_of(parts, caller)
    proposal = editor.propose(draft)
    return configuring.preview(editor, proposal, outlook.compute_visible_outlook(editor, proposal))


@router.post("/rollback", response_model_exclude_unset=True)
@access.allow(Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
def rollback(parts: PartsOf, caller: CallerOf, body: Rollback, if_match: IfMatch = None) -> ChangedConfig:
    """Restore an older version, as far as the caller may change it; for an operator, its whole text."""
    expected = None if if_match is None else _expected(if_match)
    draft = ConfigDraft(version=expected, restored=body.version)
    return _changed(configuring.editor_of(parts, caller).store(draft, message=body.message))


def _changed(change: StoredChange) -> ChangedConfig:
    changes = [configuring.difference(each) for each in change.differences]
    others = _warnings(change)
    if change.reverts_at is not None:
        others["reverts_at"] = change.reverts_at
    return ChangedConfig(version=change.version, changes=changes, **others)


def _warnings(change: StoredChange) -> dict[str, Any]:
    """The warnings of a stored change; none if they cannot be shown."""
    with database.after_commit("show the warnings"):
        return configuring.convert_warnings(change.warnings)
    return {}


def text_of(body: NewConfig | Proposed) -> str:
    """The text of a whole configuration; `InvalidRequest` unless exactly one field is set."""
    if (body.config is None) == (body.text is None):
        raise InvalidRequest([Problem(path="body", message="needs exactly one of config and text")])
    return body.text if body.text is not None else yaml_writer.to_yaml(body.config or {})


def _required(if_match: str | None) -> int:
    if if_match is None:
        raise PreconditionRequired("this needs the header If-Match with the version that it starts from")
    return _expected(if_match)


def _expected(if_match: str) -> int:
    """Parse the version in `If-Match: 7` or `"7"`."""
    number = if_match.strip().strip('"')
    if not (number.isascii() and number.isdigit() and len(number) <= 9):
        message = f"{if_match!r:.80} is not a version, which is a number such as 7"
        raise InvalidRequest([Problem(path="If-Match", message=message)])
    return int(number)
