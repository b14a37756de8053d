"""Looking at the configuration, and beginning to change it."""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from cs_config import completions, edits, inline_values, visible
from cs_config import show as config_show
from cs_config.differences import ABSENT
from pilotage.service import site_scope
from pilotage.service.access import EVERY_ROLE, allow
from pilotage.service.configuring import blames, drafts, in_force, rights
from pilotage.service.configuring.drafts import Draft, Row
from pilotage.service.pages.configuration import view
from pilotage.service.pages.configuration.form import TEXT, VALUES, Filled, names_of
from pilotage.service.pages.navigation import in_navigation
from pilotage.service.pages.page import Page
from pilotage.service.pages.page_route import PageOf, PageRoute
from requirements.errors import NotFound
from requirements.values import fold

router = APIRouter(prefix="/configuration", route_class=PageRoute)

PathOf = Annotated[str, Query(max_length=2000)]
WayOf = Annotated[str, Query(alias="as", pattern=f"^({VALUES}|{TEXT})$")]


@router.get("")
@in_navigation("Configuration")
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
    """A section of the tree, and the form of a change in it."""
    names = config_show.names_of(in_force.readable(page.parts), path)
    draft = _begun(page, names, way, dict(zip_longest(wanted, value[: len(wanted)], fillvalue="")))
    return section(page, Filled(section="/".join(names), draft=draft), vo=vo, applied=applied)


@router.get("/paths")
@allow(*EVERY_ROLE)
def paths(page: PageOf, path: PathOf = "") -> Response:
    """How a path may go on, for the field in which it is written."""
    allowed = rights.of(page.caller)
    config = in_force.readable(page.parts)
    found = completions.of(visible.tree(config, allowed), path, view.vos_of(config, allowed))
    return page.render("configuration/paths.html", found=found)


def _begun(page: Page, names: tuple[str, ...], way: str, wanted: Mapping[str, str]) -> Draft:
    """A draft that changes nothing yet: what is there, or the value that is suggested for a path."""
    config = in_force.readable(page.parts)
    if way == TEXT:
        text = drafts.text_of(page.parts, page.caller, names)
        return Draft(version=config.version, names=names, text=text)
    tree = visible.tree(config, rights.of(page.caller))
    found = {path: edits.at(tree, names_of(path)) for path in wanted}
    rows = tuple(
        Row(path=path, value=wanted[path] if entry is ABSENT else inline_values.write(entry))
        for path, entry in found.items()
    )
    return Draft(version=config.version, rows=rows)


def section(
    page: Page, filled: Filled, *, vo: str | None = None, status: int = 200, **outcome: object
) -> HTMLResponse:
    """The whole page: the section, the form as it is filled in, and what came of it."""
    config = in_force.readable(page.parts)
    allowed = rights.of(page.caller)
    shown = view.of(visible.tree(config, allowed), names_of(filled.section), allowed)
    at_node = shown.node is not None
    vos = site_scope.vos(page.caller, config, shown.site) if at_node else view.vos_of(config, allowed)
    asked = fold(vo) if vo and fold(vo) in vos else vos[0] if len(vos) == 1 else None
    blank: dict[str, object] = {"applied": None, "outcome": None, "checked": None}
    return page.render(
        "configuration/section.html",
        status=status,
        version=config.version,
        view=shown,
        filled=filled,
        allowed=allowed,
        vos=vos,
        vo=asked,
        effective=_effective(page, shown, asked),
        **(blank | outcome),
    )


def _effective(page: Page, shown: view.View, vo: str | None) -> list[view.Effective] | None:
    """What holds at a site, CE or queue for a VO, with its story; None: nobody asks that."""
    if shown.node is None or vo is None:
        return None
    config = in_force.newest(page.parts)
    try:
        found = blames.read(page.parts, page.caller, config, path=shown.path, vo=vo)
    except NotFound:  # nothing that this person may see
        return []
    return view.effective(shown, found, vo, rights.of(page.caller))
