"""Pages on a phone, tables on a tablet: nothing is beyond the edge, on no page that a role reaches."""

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page

from tests.support.page_walk import ROLES, Walk
from tests.support.servers.chromium import SignedIn
from tests.support.service import Service

pytestmark = pytest.mark.debian("chromium")

WIDTH = 360
#: What is wider than its place: the page, a table in its frame, and a cell, by its text.
BEYOND = f"""() => {{
  const wrong = [];
  const wide = document.documentElement.scrollWidth;
  if (wide > {WIDTH}) wrong.push(`the page is ${{wide}} wide`);
  for (const details of document.querySelectorAll("details")) details.open = true;
  for (const frame of document.querySelectorAll(".table")) {{
    const name = frame.innerText.slice(0, 60).replaceAll("\\n", " ");
    if (frame.scrollWidth > frame.clientWidth) wrong.push(`table ${{name}}: ${{frame.scrollWidth}} wide`);
    for (const cell of frame.querySelectorAll("tbody :is(th, td):not(.wide-only)")) {{
      const box = cell.getBoundingClientRect();
      const text = cell.textContent.trim();
      if ((text && !box.width) || box.right > {WIDTH}) wrong.push(`table ${{name}}: hidden ${{text}}`);
      if (cell.scrollWidth > cell.clientWidth + 1) wrong.push(`table ${{name}}: cut ${{text}}`);
    }}
  }}
  return wrong;
}}"""
#: Tables that scroll sideways.
WIDE = """() => [...document.querySelectorAll(".table")]
  .filter(frame => frame.scrollWidth > frame.clientWidth)
  .map(frame => `${frame.innerText.slice(0, 60)}: ${frame.scrollWidth} of ${frame.clientWidth}`)"""


def _find_beyond(page: Page, address: str) -> list[str]:
    page.goto(address)
    return [f"{address}: {each}" for each in page.evaluate(BEYOND)]


@pytest.mark.parametrize("who", [each for each in ROLES if each != "director"])
def test_no_page_is_wider_than_a_phone(who: str, world: Service, signed_in: SignedIn) -> None:
    page = signed_in(world, **ROLES[who], how={"viewport": {"width": WIDTH, "height": 800}})
    wrong = [each for address, _ in Walk(world, ROLES[who]).iterate() for each in _find_beyond(page, address)]
    assert not wrong, "\n".join(wrong)


def test_no_table_is_wider_than_a_tablet(world: Service, signed_in: SignedIn) -> None:
    page = signed_in(world, **ROLES["operator"], how={"viewport": {"width": 768, "height": 1000}})
    addresses = {urlsplit(address).path: address for address, _ in Walk(world, ROLES["operator"]).iterate()}
    wrong = []
    for address in (*addresses.values(), "/jobs"):
        page.goto(address)
        wrong += [f"{address}: {each}" for each in page.evaluate(WIDE)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "address",
    [
        "/docs",
        "/jobs/new",
        "/jobs/change?do=kill&job_group=scan",
        "/jobs/resubmit?job_group=scan",
        "/nowhere",
    ],
)
def test_what_the_walk_leaves_out_is_no_wider(address: str, world: Service, signed_in: SignedIn) -> None:
    page = signed_in(world, **ROLES["user"], how={"viewport": {"width": WIDTH, "height": 800}})
    assert not _find_beyond(page, address)
