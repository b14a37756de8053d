"""A section of the configuration as a page, with the form of a draft and its outcome."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Form, Query
from fastapi.responses import HTMLResponse, Response

from cs_config.source import yaml_writer
from cs_config.source.sections import Tree
from cs_config.tree.configuration import Configuration
from cs_config.versions import diff, patch, permissions
from cs_config.versions import show as config_show
from cs_config.versions.diff import ABSENT, Difference, Entry
from cs_config.versions.permissions import Rights
from cs_config.versions.store import Version
from matcher.explain.parameter_impact import ParameterImpact
from pilotage.service.auth import audit, visibility
from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.configuring import blames, drafts, in_force
from pilotage.service.configuring.blames import Blamed
from pilotage.service.configuring.drafts import ConfigDraft, DraftRow
from pilotage.service.models.config import PreviewAnswer
from pilotage.service.pages.page import PageContext, PageOf, PageRoute, add_to_navigation
from requirements.errors import NotFound, PilotageError, Problem
from requirements.values import fold

_SITES = ("Resources", "Sites")
#: Path components between the names of a site, a CE and a queue.
_BETWEEN = ("CEs", "Queues")
#: Most values of a new section that are listed singly.
_MOST_SINGLE = 20
#: Path lengths of sites, CEs and queues.
NODES = {3: "site", 5: "CE", 7: "queue"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Below:
    """A section below the shown one."""

    name: str
    path: str
    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of the shown section."""

    name: str
    path: str
    written: str
    is_editable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationView:
    """A section with the person's rights."""

    path: str
    names: tuple[str, ...]
    is_there: bool
    sections: Sequence[Below]
    values: Sequence[Value]
    is_editable: bool  #: as a text

    @property
    def site(self) -> str:
        """The site of a node."""
        return self.names[2]

    @property
    def node(self) -> str | None:
        """`site`, `CE` or `queue`; None for other sections."""
        is_node = self.names[:2] == _SITES and self.names[3::2] == _BETWEEN[: len(self.names[3::2])]
        return NODES.get(len(self.names)) if is_node and self.is_there else None

    @property
    def crumbs(self) -> list[tuple[str, str]]:
        """Name and path of the enclosing sections, from the top."""
        return [(name, "/".join(self.names[: depth + 1])) for depth, name in enumerate(self.names)]


def configuration_view(tree: Tree, names: tuple[str, ...], rights: Rights) -> ConfigurationView:
    """Describe the entry at a path of a visible tree."""
    entry = patch.find_entry(tree, names) if names else tree
    here: Mapping[str, object] = entry if isinstance(entry, Mapping) else {}
    is_value = entry is not ABSENT and not isinstance(entry, Mapping)
    return ConfigurationView(
        path="/".join(names),
        names=names,
        is_there=entry is not ABSENT,
        sections=[
            Below(name=name, path="/".join((*names, name)), entries=len(below))
            for name, below in here.items()
            if isinstance(below, dict)
        ],
        values=[_value(names, entry, rights)]
        if is_value
        else [
            _value((*names, name), each, rights) for name, each in here.items() if not isinstance(each, dict)
        ],
        is_editable=not is_value and (rights.may_change(names) if names else rights.everything),
    )


def _value(names: tuple[str, ...], value: object, rights: Rights) -> Value:
    return Value(
        name=names[-1],
        path="/".join(names),
        written=yaml_writer.write_value(value),
        is_editable=rights.may_change(names),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPath:
    """A difference in printable form."""

    path: str
    kind: str
    before: str | None
    after: str | None


def changes(found: Iterable[Difference]) -> list[ChangedPath]:
    """Format the values of differences as in the file."""
    return [
        ChangedPath(path=path, kind=each.kind.value, before=_written(before), after=_written(after))
        for each in found
        for path, before, after in _sides(each)
    ]


def _sides(difference: Difference) -> Iterator[tuple[str, Entry, Entry]]:
    """Path, before and after; a small new or removed section is split into its values."""
    inside = list(islice(diff.list_leaves(difference), _MOST_SINGLE + 1))
    if len(inside) > _MOST_SINGLE:
        yield difference.path, difference.before, difference.after
        return
    for names in inside:
        below = names[len(difference.names) :]
        yield "/".join(names), _entry_at(difference.before, below), _entry_at(difference.after, below)


def _entry_at(entry: Entry, names: tuple[str, ...]) -> Entry:
    return patch.find_entry(entry, names) if isinstance(entry, dict) else ABSENT if names else entry


def _written(entry: object) -> str | None:
    return None if entry is ABSENT else yaml_writer.write_value(entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """An effective parameter of a site, CE or queue for a VO."""

    name: str
    value: str
    origin: str
    place: str  #: path at which it is written
    since: Version | None  #: None: a default that is not written in the configuration
    kept: ParameterImpact | None  #: waiting jobs that it excludes; None: not a parameter of a queue
    own_path: str | None  #: path of a value of the VO's own; None: the person may not write it


def effective(view: ConfigurationView, found: Iterable[Blamed], vo: str, rights: Rights) -> list[Effective]:
    """The effective parameters of a site, CE or queue for a VO."""
    return [
        Effective(
            name=each.line.path,
            value=config_show.format_value(each.line.value),
            origin=each.line.origin,
            place=each.line.places[0] if each.line.places else view.path,
            since=each.since,
            kept=each.kept,
            own_path=_own_path(view, each, vo, rights),
        )
        for each in found
    ]


def _own_path(view: ConfigurationView, blamed: Blamed, vo: str, rights: Rights) -> str | None:
    names = (*view.names, "VOs", vo, *blamed.line.path.split("/"))
    return "/".join(names) if blamed.line.places and rights.may_change(names) else None


def vos_of(config: Configuration, rights: Rights) -> list[str]:
    """The VOs whose values the person may see."""
    return sorted(config.vos if rights.everything else rights.sees)


#: Ways to edit: single paths, or the text of a section.
VALUES: Final = "values"
TEXT: Final = "text"
REMOVE: Final = "remove"

_Number = Annotated[int, Form(ge=0, le=2**31 - 1)]
_Texts = Annotated[list[str], Form()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The submitted form."""

    section: str  #: path of the section that the page shows
    draft: ConfigDraft
    message: str = ""
    guard: str = ""  #: conditions separated by commas

    @property
    def guards(self) -> list[str]:
        """The conditions."""
        return [each for part in self.guard.split(",") if (each := part.strip())]

    @property
    def way(self) -> str:
        """`values` or `text`."""
        return VALUES if self.draft.text is None else TEXT

    def with_draft(self, draft: ConfigDraft) -> "Filled":
        """The form with another draft."""
        return replace(self, draft=draft)


def names_of(path: str) -> tuple[str, ...]:
    """Split a path."""
    return tuple(name for name in path.split("/") if name)


def _filled(
    version: _Number,
    *,
    section: Annotated[str, Form(max_length=2000)] = "",
    way: Annotated[str, Form(pattern=f"^({VALUES}|{TEXT})$")] = VALUES,
    path: _Texts = [],  # noqa: B006  (the framework copies it)
    value: _Texts = [],  # noqa: B006
    action: _Texts = [],  # noqa: B006
    text: Annotated[str, Form()] = "",
    message: Annotated[str, Form(max_length=2000)] = "",
    guard: Annotated[str, Form(max_length=2000)] = "",
) -> Filled:
    rows = () if way == TEXT else tuple(_rows(path, value, action))
    written = text.replace("\r\n", "\n") if way == TEXT else None
    draft = ConfigDraft(
        version=version, names=names_of(section) if way == TEXT else (), rows=rows, text=written
    )
    return Filled(section=section, draft=draft, message=message, guard=guard)


def _rows(paths: Sequence[str], values: Sequence[str], actions: Sequence[str]) -> list[DraftRow]:
    """The rows with a path; browsers send all fields of each row, in order."""
    return [
        DraftRow(path=path.strip(), value=value.strip(), is_removed=action == REMOVE)
        for path, value, action in zip(paths, values, actions, strict=False)
        if path.strip()
    ]


#: Dependency of the handlers of the form.
FilledOf = Annotated[Filled, Depends(_filled)]

show_router = APIRouter(prefix="/configuration", route_class=PageRoute)

PathOf = Annotated[str, Query(max_length=2000)]
WayOf = Annotated[str, Query(alias="as", pattern=f"^({VALUES}|{TEXT})$")]


@show_router.get("")
@add_to_navigation("Configuration")
@allow(*EVERY_ROLE)
def show(
    page: PageOf,
    path: PathOf = "",
    way: WayOf = VALUES,
    vo: Annotated[str | None, Query(max_length=200)] = None,
    wanted: Annotated[list[str], Query(alias="set")] = [],  # noqa: B006  (the framework copies it)
    value: Annotated[list[str], Query()] = [],  # noqa: B006
    applied: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> HTMLResponse:
    """Show a section of the tree, and the form to change it."""
    names = config_show.split_path(in_force.readable(page.parts), path)
    draft = _begun(page, names, way, dict(zip_longest(wanted, value[: len(wanted)], fillvalue="")))
    return section(page, Filled(section="/".join(names), draft=draft), vo=vo, applied=applied)


@show_router.get("/paths")
@allow(*EVERY_ROLE)
def paths(page: PageOf, path: PathOf = "") -> Response:
    """List possible continuations of a path, for the field in which it is typed."""
    allowed = in_force.rights_of(page.caller)
    config = in_force.readable(page.parts)
    found = config_show.complete_path(
        permissions.visible_tree(config, allowed), path, vos_of(config, allowed)
    )
    return page.render("configuration/paths.html", found=found)


def _begun(page: PageContext, names: tuple[str, ...], way: str, wanted: Mapping[str, str]) -> ConfigDraft:
    """A new draft: the current text, or the current or suggested values of paths."""
    config = in_force.readable(page.parts)
    if way == TEXT:
        text = drafts.text_of(page.parts, page.caller, names)
        return ConfigDraft(version=config.version, names=names, text=text)
    tree = permissions.visible_tree(config, in_force.rights_of(page.caller))
    found = {path: patch.find_entry(tree, names_of(path)) for path in wanted}
    rows = tuple(
        DraftRow(path=path, value=wanted[path] if entry is ABSENT else yaml_writer.write_value(entry))
        for path, entry in found.items()
    )
    return ConfigDraft(version=config.version, rows=rows)


def section(
    page: PageContext, filled: Filled, *, vo: str | None = None, status: int = 200, **outcome: object
) -> HTMLResponse:
    """Render the whole page: the section, the form and its outcome."""
    config = in_force.readable(page.parts)
    allowed = in_force.rights_of(page.caller)
    shown = configuration_view(permissions.visible_tree(config, allowed), names_of(filled.section), allowed)
    at_node = shown.node is not None
    vos = visibility.site_vos(page.caller, config, shown.site) if at_node else vos_of(config, allowed)
    selected = fold(vo) if vo and fold(vo) in vos else vos[0] if len(vos) == 1 else None
    blank: dict[str, object] = {"applied": None, "outcome": None, "checked": None}
    return page.render(
        "configuration/section.html",
        status=status,
        version=config.version,
        view=shown,
        filled=filled,
        allowed=allowed,
        vos=vos,
        vo=selected,
        effective=_effective(page, shown, selected),
        **(blank | outcome),
    )


def _effective(page: PageContext, shown: ConfigurationView, vo: str | None) -> list[Effective] | None:
    """The effective parameters with their authors; None: not a node, or no VO selected."""
    if shown.node is None or vo is None:
        return None
    config = in_force.newest(page.parts)
    try:
        found = blames.blame_values(page.parts, page.caller, config, path=shown.path, vo=vo)
    except NotFound:  # nothing visible to this person
        return []
    return effective(shown, found, vo, in_force.rights_of(page.caller))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOutcome:
    """The result shown below the form."""

    changes: Sequence[ChangedPath] | None = None  #: None: an earlier step failed
    preview: PreviewAnswer | None = None
    failing: Sequence[str] = ()  #: guards that do not hold
    problems: Sequence[Problem] = ()
    conflicts: Sequence[ChangedPath] = ()  #: concurrent changes of the same paths
    current: int | None = None  #: the version in force, if the draft starts from an older one


def audit_refusal(page: PageContext, error: PilotageError) -> None:
    """Audit a rejected change whose error is shown on the page instead of being raised."""
    audit.refused(page.caller, method=page.request.method, path=page.request.url.path, reason=str(error))
