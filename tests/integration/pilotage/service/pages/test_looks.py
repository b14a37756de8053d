"""How each page looks: contrast, words, edges, names, axes; at any width, light and dark."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page

from tests.support.page_walk import ROLES, Walk
from tests.support.servers.chromium import SignedIn
from tests.support.service import Service

pytestmark = pytest.mark.debian("chromium")

#: Pages to which no link of the walk leads, since they change something; and the list without a filter.
_MORE = (
    "/jobs",
    "/jobs/new",
    "/jobs/change?do=kill&job_group=scan",
    "/jobs/resubmit?job_group=scan",
    "/nowhere",
    "/docs",
)
#: Of pages that are alike one is looked at.
_ONE = re.compile(r"(/pilots/|/pools/).*")
#: Width.
_PHONE = 360
#: Gives each time its longest text: how long ago things are depends on how long the test takes.
_LENGTHEN = """() => document.querySelectorAll("time").forEach(
    (each) => { if (!each.textContent.startsWith("in ")) each.textContent = "1\\u00a0min 59\\u00a0s ago"; }
)"""
_FUNCTIONS = Path(__file__).with_name("looks.js").read_text()


def _find(page: Page, *functions: str) -> list[str]:
    calls = ", ".join(f"...{each}()" for each in functions)
    found: list[str] = page.evaluate(f"() => {{ {_FUNCTIONS}\nreturn [{calls}]; }}")
    return found


def _look(page: Page, address: str) -> dict[str, None]:
    """What is wrong with a page, at any width, light or dark."""
    page.set_viewport_size({"width": _PHONE, "height": 900})
    page.goto(address)
    page.evaluate(_LENGTHEN)
    wrong = []
    for width, more in ((_PHONE, ["findBeyond"]), (768, ["findSideways"]), (1280, []), (1920, [])):
        page.set_viewport_size({"width": width, "height": 900})
        wrong += [f"{width}: {each}" for each in _find(page, "findBroken", "findBadAxes", *more)]
    wrong += _find(page, "findUnnamed", "findRunTogether")
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        wrong += [f"{scheme}: {each}" for each in _find(page, "findPale")]
    return {f"{address}: {each}": None for each in wrong}


@pytest.mark.parametrize("who", ["operator", "user"])
def test_each_page_can_be_read_at_any_width_light_and_dark(
    who: str, world: Service, signed_in: SignedIn
) -> None:
    page = signed_in(world, **ROLES[who])
    walked = {_ONE.sub(r"\1", urlsplit(at).path): at for at, _ in Walk(world, ROLES[who]).iterate()}
    wrong: dict[str, None] = {}
    for address in (*walked.values(), *_MORE):
        wrong |= _look(page, address)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("who", ["vo_admin", "site_admin"])
def test_no_page_is_wider_than_a_phone(who: str, world: Service, signed_in: SignedIn) -> None:
    page = signed_in(world, **ROLES[who], how={"viewport": {"width": _PHONE, "height": 800}})
    wrong: list[str] = []
    for address, _ in Walk(world, ROLES[who]).iterate():
        page.goto(address)
        wrong += [f"{address}: {each}" for each in _find(page, "findBeyond")]
    assert not wrong, "\n".join(wrong)
