"""What tests of pilots and of the matching share."""

from collections.abc import Iterator

import pytest

from matcher.limits import compiled_rules
from tests.lease_server import LeaseServer


@pytest.fixture(autouse=True)
def _new_rules_are_counted_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(compiled_rules, "_AT_A_TIME", 600.0)


@pytest.fixture
def server() -> Iterator[LeaseServer]:
    """A service that knows what each pilot said, without a database behind it."""
    with LeaseServer() as made:
        yield made
