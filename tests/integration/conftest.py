"""What tests of pilots share."""

from collections.abc import Iterator

import pytest

from tests.lease_server import LeaseServer


@pytest.fixture
def server() -> Iterator[LeaseServer]:
    """A service that knows what each pilot said, without a database behind it."""
    with LeaseServer() as made:
        yield made
