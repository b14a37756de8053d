"""The pages of the documentation: nothing leads nowhere, and every page is reached."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
FRONT = PROJECT / "README.md"
PAGES = sorted((PROJECT / "docs").rglob("*.md"))
OTHERS = [FRONT, *sorted((PROJECT / "deploy").rglob("*.md")), *sorted((PROJECT / "examples").rglob("*.md"))]
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Where a page leads within the project: a path, and the heading there (empty: none)."""
    for target in _LINK.findall(page.read_text()):
        if "://" not in target:
            path, _, heading = target.partition("#")
            yield (page.parent / path).resolve() if path else page, heading


def headings(page: Path) -> set[str]:
    """The headings of a page as links write them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in found}


@pytest.mark.parametrize("page", [*OTHERS, *PAGES], ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    lost = [
        f"{target}#{heading}"
        for target, heading in links(page)
        if not target.exists() or (heading and heading not in headings(target))
    ]
    assert lost == []


def test_no_page_holds_both_sides_of_a_merge() -> None:
    marks = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    pages = [*OTHERS, *PAGES, PROJECT / "CHANGELOG.md"]
    assert [str(page.relative_to(PROJECT)) for page in pages if marks.search(page.read_text())] == []


def test_every_page_is_reached_from_the_front_page() -> None:
    reached, new = set[Path](), [FRONT]
    while new:
        page = new.pop()
        if page.is_dir():
            new += sorted(page.glob("*.md"))  # as the forge lists it
        elif page.suffix == ".md" and page not in reached:
            reached.add(page)
            new += [target for target, _ in links(page) if target.exists()]
    assert [str(page.relative_to(PROJECT)) for page in PAGES if page not in reached] == []


def test_every_decision_is_listed_under_its_number_and_title() -> None:
    decisions = sorted((PROJECT / "docs" / "adr").glob("[0-9]*.md"))
    titles = [page.read_text().partition("\n")[0].removeprefix("# ").partition(". ") for page in decisions]
    listed = (PROJECT / "docs" / "adr" / "README.md").read_text()
    assert [int(number) for number, _, _ in titles] == list(range(1, len(decisions) + 1))
    assert [
        page.name
        for page, (number, _, title) in zip(decisions, titles, strict=True)
        if f"{number}. [{title}]({page.name})" not in listed or page.name[:4] != number.zfill(4)
    ] == []
