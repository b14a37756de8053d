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


@pytest.mark.parametrize(
    ("seconds", "parts", "text"),
    [
        (0, 1, "0 s"),
        (1, 1, "1 s"),
        (59.96, 1, "1 min"),
        (119, 1, "1 min 59 s"),
        (120, 1, "2 min"),
        (3_600, 1, "1 h"),
        (7_140, 1, "1 h 59 min"),
        (7_199, 1, "2 h"),
        (9_001, 1, "3 h"),
        (86_400 + 23 * 3_600, 1, "1 d 23 h"),
        (2.6 * 86_400, 1, "3 d"),
        (-7_140, 1, "−1 h 59 min"),
        (0.25, 2, "0.2 s"),
        (61, 2, "1 min 1 s"),
        (3_600 + 29 * 60 + 40, 2, "1 h 30 min"),
        (86_399, 2, "1 d"),
        (3 * 86_400 + 5_400, 2, "3 d 2 h"),
    ],
)
def test_a_duration_is_rounded_to_its_last_unit(seconds: float, parts: int, text: str) -> None:
    assert templating.duration(seconds, parts).replace("\N{NO-BREAK SPACE}", " ") == text


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
