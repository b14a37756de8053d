"""Numbers of things in templates: `1 job`, `3 jobs`."""

import re
from pathlib import Path

import pytest

from pilotage.service.pages import templating
from requirements.errors import Problem

_ROOT = Path(__file__).parents[5]
_THINGS = "jobs|queues|pools|pilots|sites|sets|kinds"
_FOR_MANY = re.compile(
    rf"(?:\| (?:count|length)|\blength|\bjobs|_queues|excluded) \}}\}} (?:more )?(?:{_THINGS})\b"
)
_BY_HAND = re.compile(r"""(?:["'] ?(?:job|queue|pool|pilot|site|path|set|time)s?["']|["']s["']) if""")


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 jobs"), (1, "1 job"), (1200, "1\N{NARROW NO-BREAK SPACE}200 jobs")]
)
def test_a_number_of_things_is_singular_for_one(value: int, text: str) -> None:
    assert templating.numbered(value, "job") == text


def test_a_verb_agrees_with_its_number() -> None:
    assert templating.numbered(1, "job waits", "jobs wait") == "1 job waits"
    assert templating.numbered(2, "job waits", "jobs wait") == "2 jobs wait"


def test_warnings_that_are_not_shown_are_counted() -> None:
    parts = templating.environment().get_template("configuration/parts.html")
    shown = [Problem(path="a", message="b")]
    assert "and 1200 more" in parts.module.problems(shown, "warn", 1200).replace(
        "\N{NARROW NO-BREAK SPACE}", ""
    )
    assert "more" not in parts.module.problems(shown, "warn", -99)


def test_no_template_has_a_plural_behind_any_number() -> None:
    found = {
        name: [*_FOR_MANY.findall(text), *_BY_HAND.findall(text)]
        for name in templating.environment().list_templates()
        for text, *_ in [templating.environment().loader.get_source(templating.environment(), name)]
    }
    assert {name: words for name, words in found.items() if words} == {}


_PACKAGES = ("agents", "cs_config", "matcher", "optimizers", "pilotage", "requirements", "taskqueue")
#: A count of jobs, queues and the like in a text, with a plural whatever its number.
_ANY_NUMBER = re.compile(
    r"(?:%d|\{len\([^{}]*\)(?::,)?\}) (?:[a-z]+ )?(?:jobs|queues|sites|pilots|hooks)\b"
    r"|\{[^{}]*\} (?:GPUs|queues are)\b"
    r'|"1 (?:job|queue|pilot|site|batch)\b[^"]*" if'
)


def test_no_text_has_a_plural_behind_any_number() -> None:
    """Except where the number is a limit that was exceeded, or of the pilot, which has no such function."""
    found = {
        str(file.relative_to(_ROOT)): words
        for package in _PACKAGES
        for file in (_ROOT / package).rglob("*.py")
        if (words := _ANY_NUMBER.findall(file.read_text()))
    }
    assert found == {}
