"""The form of commit messages, as the hook of `.pre-commit-config.yaml` checks it."""

import re
from pathlib import Path

import pytest
import yaml

_CONFIG = Path(__file__).parents[2] / ".pre-commit-config.yaml"


def has_form(message: str) -> bool:
    hooks = yaml.safe_load(_CONFIG.read_text())["repos"][0]["hooks"]
    (hook,) = (each for each in hooks if each["id"] == "message")
    assert hook["args"] == ["--multiline", "--negate"]
    return re.search(hook["entry"], message, re.MULTILINE) is not None


def test_a_subject_and_a_reason_will_do() -> None:
    assert has_form("Claims read limits in the statement\n\nA digest could be old.\n")
    assert has_form("x" * 72 + "\n\nWhy.\n")


@pytest.mark.parametrize(
    "message",
    [
        "Claims read limits in the statement\n",
        "Claims read limits in the statement\n\n# Please enter the message\n",
        "Claims read limits\nin the statement\n\nWhy.\n",
        "x" * 73 + "\n\nWhy.\n",
    ],
)
def test_others_will_not(message: str) -> None:
    assert not has_form(message)
