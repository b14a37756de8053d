"""The packages that a release pins, against the advisories that we keep."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

DEPLOY = Path(__file__).parents[3] / "deploy"
ADVISORIES: dict[str, dict[str, str]] = tomllib.loads((DEPLOY / "advisories.toml").read_text())


def read_pins(text: str) -> dict[str, Version]:
    """The versions of a file of requirements by package."""
    return {
        name: Version(pinned) for name, pinned in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)
    }


def list_affected(pins: dict[str, Version]) -> list[str]:
    """The advisories about these versions."""
    return [
        f"{advisory}: {name} {pins[name]}, mended in {mended}"
        for name, mended_in in ADVISORIES.items()
        for advisory, mended in mended_in.items()
        if name in pins and pins[name] < Version(mended)
    ]


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-client.txt"])
def test_no_advisory_that_we_keep_is_about_a_version_that_we_pin(file: str) -> None:
    pins = read_pins((DEPLOY / file).read_text())
    assert pins
    assert list_affected(pins) == []


def test_an_old_version_is_named_with_its_advisory() -> None:
    assert list_affected(read_pins("h11==0.14.0 \\\n    --hash=sha256:00\njinja2==3.1.6\n")) == [
        "CVE-2025-43859: h11 0.14.0, mended in 0.16.0"
    ]


def test_advisories_are_about_packages_that_we_pin() -> None:
    assert ADVISORIES.keys() - read_pins((DEPLOY / "requirements.txt").read_text()).keys() == set()
