"""A service for the agents, which read how long it was up."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine

from tests.support.factories import stored_rows


@pytest.fixture
def service_is_up(engine: Engine, now: datetime) -> None:
    """The service was up all the time, from yesterday on."""
    stored_rows.service_up(engine, now - timedelta(days=1), now + timedelta(days=100))


@pytest.fixture
def agents_are_up(engine: Engine, now: datetime, service_is_up: None) -> None:
    """So were the agents, which looked at the task queues."""
    stored_rows.watched(engine, now - timedelta(days=1), now + timedelta(days=100))
