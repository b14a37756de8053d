"""Numbers of things in templates: `1 job`, `3 jobs`."""

import re

import pytest

from pilotage.service.pages import templating

_FOR_MANY = re.compile(r"\| count \}\} (?:jobs|queues|pools|pilots|sites)\b")


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 jobs"), (1, "1 job"), (1200, "1\N{NARROW NO-BREAK SPACE}200 jobs")]
)
def test_a_number_of_things_is_singular_for_one(value: int, text: str) -> None:
    assert templating.numbered(value, "job") == text


def test_no_template_has_a_plural_behind_any_number() -> None:
    found = {
        name: _FOR_MANY.findall((templating._TEMPLATES / name).read_text())
        for name in templating.environment().list_templates()
    }
    assert {name: words for name, words in found.items() if words} == {}
