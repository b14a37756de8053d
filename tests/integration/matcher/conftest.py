"""What tests of the matching share."""

import pytest

from matcher.limits import compiled_rules


@pytest.fixture(autouse=True)
def _new_rules_are_counted_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(compiled_rules, "_AT_A_TIME", 600.0)
