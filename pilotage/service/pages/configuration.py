"""Pages of the configuration: a section with the form of a change, drafts and their preview, versions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import islice, zip_longest
from typing import Annotated, Final, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from cs_config.editing import history, patch, proposals, show
from cs_config.editing.history import Blamed
from cs_config.editing.permissions import Rights
from cs_config.editing.proposals import ConfigDraft, DraftRow
from cs_config.errors import EditConflict, VersionConflict
from cs_config.options import bounds
from cs_config.source import diff, yaml_writer
from cs_config.source.diff import ABSENT, Difference, Entry
from cs_config.source.sections import Tree
from cs_config.tree.address import node_depth
from cs_config.tree.configuration import Configuration
from matcher.preview import outlook
from matcher.preview.impacts import BlamedParameter
from matcher.preview.outlook import Guard, GuardFailed
from pilotage.service import configuring, error_statuses
from pilotage.service.auth import audit, visibility
from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.auth.callers import Role
from pilotage.service.models.config import PreviewAnswer
from pilotage.service.pages.page import PageContext, PageOf, PageRoute, add_to_navigation, shows_filter
from requirements.errors import InvalidRequest, NotAllowed, NotFound, PilotageError, Problem
from requirements.values import fold

router = APIRouter(prefix="/configuration", route_class=PageRoute)

#: Kinds of nodes by the length of their paths.
_NODES: Final = {3: "site", 5: "CE", 7: "queue"}
#: Most values of a new section that are listed singly.
_MOST_SINGLE: Final = 20
#: Ways to edit: single paths, or the text of a section.
VALUES: Final = "values"
TEXT: Final = "text"
REMOVE: Final = "remove"

PathOf = Annotated[str, Query(max_length=2000)]
WayOf = Annotated[Literal["values", "text"], Query(alias="as")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationView:
    """A section of the tree, or a single value."""

    names: tuple[str, ...]  #: of its path
    is_there: bool
    around: tuple[str, ...]  #: path of the section with these entries
    sections: Mapping[str, Mapping[str, Entry]]
    values: Mapping[str, Entry]
    is_editable: bool  #: as a text

    @property
    def path(self) -> str:
        """The names joined by `/`."""
        return "/".join(self.names)

    @property
    def node(self) -> str | None:
        """`site`, `CE` or `queue`; None for other sections."""
        is_node = node_depth(self.names) == len(self.names)
        return _NODES.get(len(self.names)) if is_node and self.is_there else None


def _view(tree: Tree, names: tuple[str, ...], rights: Rights) -> ConfigurationView:
    """Describe the entry at a path of a visible tree."""
    entry = patch.find_entry(tree, names)
    is_value = entry is not ABSENT and not isinstance(entry, Mapping)
    here: Mapping[str, Entry] = (
        entry if isinstance(entry, Mapping) else {names[-1]: entry} if is_value else {}
    )
    return ConfigurationView(
        names=names,
        is_there=entry is not ABSENT,
        around=names[:-1] if is_value else names,
        sections={name: below for name, below in here.items() if isinstance(below, Mapping)},
        values={name: below for name, below in here.items() if not isinstance(below, Mapping)},
        is_editable=not is_value and (rights.may_change(names) if names else rights.everything),
    )


def split_differences(found: Iterable[Difference]) -> list[Difference]:
    """The differences, with small new or removed sections split into their values."""
    return [each for difference in found for each in _split(difference)]


def _split(difference: Difference) -> Iterator[Difference]:
    inside = list(islice(diff.list_leaves(difference), _MOST_SINGLE + 1))
    if len(inside) > _MOST_SINGLE:
        yield difference
        return
    for names in inside:
        below = names[len(difference.names) :]
        before, after = (_entry_at(side, below) for side in (difference.before, difference.after))
        yield Difference(names=names, before=before, after=after)


def _entry_at(entry: Entry, names: tuple[str, ...]) -> Entry:
    return patch.find_entry(entry, names) if isinstance(entry, dict) else ABSENT if names else entry


class Filled(BaseModel):
    """The form of a change, as submitted."""

    version: int = Field(ge=0, le=2**31 - 1, description="That the change starts from.")
    section: str = Field(default="", max_length=2000, description="Path of the section that the page shows.")
    way: Literal["values", "text"] = VALUES
    path: list[str] = Field(default=[], description="Path of each row; browsers send all fields of a row.")
    value: list[str] = []
    action: list[str] = []
    text: Annotated[str, AfterValidator(lambda text: text.replace("\r\n", "\n"))] = ""
    message: str = Field(default="", max_length=2000)
    guard: str = Field(default="", max_length=2000, description="Conditions separated by commas.")
    revert_after: Annotated[
        int | None, BeforeValidator(lambda text: text or None), Field(gt=0, le=bounds.SECONDS)
    ] = None

    @property
    def rows(self) -> list[DraftRow]:
        """The rows with a path."""
        return [
            DraftRow(path=path.strip(), value=value.strip(), is_removed=action == REMOVE)
            for path, value, action in zip(self.path, self.value, self.action, strict=False)
            if path.strip()
        ]

    @property
    def replay(self) -> str | None:
        """The command that replays the last day with it; None: only single values can be replayed."""
        rows = self.rows if self.way == VALUES else []
        if not rows or any(each.is_removed for each in rows):
            return None
        return patch.format_replay(f"{each.path}={each.value}" for each in rows)

    @property
    def written(self) -> tuple[tuple[str, ...], str | None]:
        """The names of the section of the text, and the text; None: single paths are edited."""
        return (names_of(self.section), self.text) if self.way == TEXT else ((), None)

    @property
    def draft(self) -> ConfigDraft:
        """The change; `InvalidRequest` if a row is no valid edit."""
        names, text = self.written
        edits = proposals.read_rows(self.rows) if text is None else ()
        return ConfigDraft(version=self.version, edits=edits, text=text, names=names)


def names_of(path: str) -> tuple[str, ...]:
    """Split a path."""
    return tuple(name for name in path.split("/") if name)


def read_guards(text: str) -> tuple[Guard, ...]:
    """Parse conditions separated by commas."""
    return outlook.read_guards(filter(None, map(str.strip, text.split(","))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOutcome:
    """The result shown below the form."""

    changes: Sequence[Difference] | None = None  #: None: an earlier step failed
    preview: PreviewAnswer | None = None
    failing: Sequence[str] = ()  #: guards that do not hold
    problems: Sequence[Problem] = ()
    conflicts: Sequence[Difference] = ()  #: concurrent changes of the same paths
    current: int | None = None  #: the version in force, if the draft starts from an older one


@router.get("")
@add_to_navigation("Configuration")
@allow(*EVERY_ROLE)
@shows_filter
def show_section(
    page: PageOf,
    path: PathOf = "",
    way: WayOf = VALUES,
    vo: Annotated[str | None, Query(max_length=200)] = None,
    wanted: Annotated[list[str], Query(alias="set")] = [],  # noqa: B006  (the framework copies it)
    value: Annotated[list[str], Query()] = [],  # noqa: B006
    applied: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> HTMLResponse:
    """Show a section of the tree, and the form to change it."""
    config = page.editor.read()
    names = show.split_path(config, path)
    suggested = dict(zip_longest(wanted, value[: len(wanted)], fillvalue=""))
    filled = _begin(page, config, names, way, suggested)
    return render_section(page, filled, vo=vo, applied=applied)


def _begin(
    page: PageContext,
    config: Configuration,
    names: tuple[str, ...],
    way: Literal["values", "text"],
    suggested: Mapping[str, str],
) -> Filled:
    """A new draft: the current text, or the current or suggested values of paths."""
    tree = page.editor.visible_tree(config)
    filled = Filled(section="/".join(names), version=config.version, way=way)
    if way == TEXT and names:
        filled.text = patch.section_text(tree, names)
    elif way == TEXT and page.editor.rights.everything:
        filled.text = config.source
    for path, wanted in suggested.items() if way == VALUES else ():
        entry = patch.find_entry(tree, names_of(path))
        filled.path.append(path)
        filled.value.append(wanted if entry is ABSENT else yaml_writer.write_value(entry))
        filled.action.append("set")
    return filled


def render_section(
    page: PageContext, filled: Filled, *, vo: str | None = None, status: int = 200, **outcome: object
) -> HTMLResponse:
    """Render the whole page: the section, the form and its outcome."""
    config, allowed = page.editor.read(), page.editor.rights
    view = _view(page.editor.visible_tree(config), names_of(filled.section), allowed)
    vos = visibility.site_vos(page.caller, config, view.names[2]) if view.node else _vos(config, allowed)
    selected = fold(vo) if vo and fold(vo) in vos else vos[0] if len(vos) == 1 else None
    return page.render(
        "configuration/section.html",
        status=status,
        version=config.version,
        view=view,
        filled=filled,
        allowed=allowed,
        vos=vos,
        vo=selected,
        effective=_blame(page, view, selected),
        temporary=history.list_reverts(page.editor, view.path) if allowed.edits else [],
        own_path=partial(_own_path, view, selected, allowed),
        **outcome,
    )


def _vos(config: Configuration, rights: Rights) -> list[str]:
    """The VOs whose values the person may see."""
    return sorted(config.vos if rights.everything else rights.sees)


def _blame(page: PageContext, view: ConfigurationView, vo: str | None) -> list[BlamedParameter] | None:
    """The effective parameters with their authors; None: not a node, or no VO selected."""
    if view.node is None or vo is None:
        return None
    config = page.editor.read_newest()
    try:
        return configuring.blame_values(page.parts, page.editor, config, path=view.path, vo=vo)
    except NotFound:  # nothing visible to this person
        return []


def _own_path(view: ConfigurationView, vo: str | None, rights: Rights, blamed: Blamed) -> str | None:
    """Path of the VO's own value of a parameter; None: the person may not write it."""
    names = (*view.names, "VOs", vo or "", *blamed.line.path.split("/"))
    return "/".join(names) if blamed.line.places and rights.may_change(names) else None


@router.get("/paths")
@allow(*EVERY_ROLE)
def list_paths(page: PageOf, path: PathOf = "") -> Response:
    """List possible continuations of a path, for the field in which it is typed."""
    config = page.editor.read()
    vos = _vos(config, page.editor.rights)
    found = show.complete_path(page.editor.visible_tree(config), path, vos)
    return page.render("configuration/paths.html", found=found)


changes_router = APIRouter(prefix="/configuration", route_class=PageRoute)

#: Errors that are shown beside the draft, which is kept.
_REFUSALS: Final = (*proposals.CORRECTABLE, GuardFailed)

_Version = Annotated[int, Query(ge=1, le=2**31 - 1)]


@changes_router.post("/check")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
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


@changes_router.post("/preview")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
def preview(page: PageOf, filled: Annotated[Filled, Form()]) -> Response:
    """Show the effects of the draft on waiting and running jobs; nothing is changed."""
    try:
        conditions = read_guards(filled.guard)
        return _answer(page, filled, _preview(page, filled.draft, conditions))
    except _REFUSALS as error:
        if isinstance(error, NotAllowed):
            _audit_refusal(page, error)
        return _refuse(page, filled, error)


@changes_router.post("/apply")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
def apply(page: PageOf, filled: Annotated[Filled, Form()]) -> Response:
    """Store the draft as the version in force."""
    try:
        editor = page.editor
        check = outlook.make_check(editor, read_guards(filled.guard))
        lasting = filled.revert_after and timedelta(seconds=filled.revert_after)
        changed = editor.store(filled.draft, message=filled.message, check=check, lasting=lasting or None)
    except _REFUSALS as error:
        _audit_refusal(page, error)
        return _refuse(page, filled, error)
    if not changed.is_new:
        return _answer(page, filled, ChangeOutcome(changes=[]))
    query = {"path": filled.section, "as": filled.way, "applied": changed.version}
    return RedirectResponse(f"/configuration?{urlencode(query)}", 303)


@changes_router.post("/rebase")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
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
    return _answer(page, filled, outcome, status=error_statuses.status_of(error))


def _answer(page: PageContext, filled: Filled, outcome: ChangeOutcome, *, status: int = 200) -> HTMLResponse:
    if page.is_fragment:  # scripts insert only answers with status 200
        return page.render("configuration/outcome.html", outcome=outcome, filled=filled)
    return render_section(page, filled, status=status, outcome=outcome)


def _preview(page: PageContext, draft: ConfigDraft, conditions: Sequence[Guard] = ()) -> ChangeOutcome:
    """The changes of a draft and their effects."""
    proposal = page.editor.propose(draft)
    found = outlook.compute_visible_outlook(page.editor, proposal)
    return ChangeOutcome(
        changes=split_differences(proposal.differences),
        preview=configuring.preview(page.editor, proposal, found),
        failing=outlook.list_failing(conditions, found),
    )


def _audit_refusal(page: PageContext, error: PilotageError) -> None:
    """Audit a rejected change whose error is shown on the page instead of being raised."""
    audit.refused(page.caller, method=page.request.method, path=page.request.url.path, reason=str(error))


@changes_router.get("/history")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN)
@shows_filter
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


@changes_router.get("/diff")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
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


@changes_router.get("/rollback")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
def preview_rollback(page: PageOf, version: _Version) -> Response:
    """Preview a rollback; nothing is changed."""
    return _show_rollback(page, version)


@changes_router.post("/rollback")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
def rollback(
    page: PageOf,
    version: Annotated[int, Form(ge=1, le=2**31 - 1)],
    expected: Annotated[int, Form(ge=0, le=2**31 - 1)],
    guard: Annotated[str, Form(max_length=2000)] = "",
) -> Response:
    """Restore a version as far as the person may change it."""
    draft = ConfigDraft(version=expected, restored=version)
    try:
        editor = page.editor
        changed = editor.store(draft, message="", check=outlook.make_check(editor, read_guards(guard)))
    except (VersionConflict, GuardFailed, InvalidRequest) as error:
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
        status=200 if error is None else error_statuses.status_of(error),
        version=version,
        guard=guard,
        outcome=outcome,
    )
