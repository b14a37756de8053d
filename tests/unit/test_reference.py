"""The pages of `docs/reference`: they are what the program says today."""

import pytest

from docs.reference import generate
from tests.support.left_out import needs_every_plugin


@needs_every_plugin
@pytest.mark.parametrize("page", generate.WRITERS)
def test_the_page_is_written_from_the_program(page: str) -> None:
    written = (generate.PAGES / f"{page}.md").read_text(encoding="utf-8")
    assert written == generate.write_page(page), "./dev docs"


def test_every_alert_has_a_cause_and_a_cure() -> None:
    page = (generate.PROJECT / "docs" / "operator" / "when-it-breaks.md").read_text(encoding="utf-8")
    for name in generate.list_alerts():
        section = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        assert "|" in section or "](#" in section, name
