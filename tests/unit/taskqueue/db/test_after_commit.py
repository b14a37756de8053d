"""What is logged of an error after a commit."""

import logging

import psycopg.errors
import pytest
from sqlalchemy.exc import OperationalError

from taskqueue.db import database

AWAY = [
    OperationalError("SELECT 1", {}, psycopg.errors.AdminShutdown("unexpected postmaster exit")),
    OperationalError(
        "SELECT 1", {}, psycopg.OperationalError("server closed it"), connection_invalidated=True
    ),
    OperationalError(None, None, psycopg.OperationalError("connection failed")),
]


@pytest.mark.parametrize("error", [*AWAY, ValueError("a fault of ours")])
def test_the_answer_is_given_and_only_a_fault_of_ours_has_a_traceback(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with database.after_commit("tell others"):
        raise error

    [logged] = caplog.records
    is_ours = isinstance(error, ValueError)
    assert (logged.levelno, logged.exc_info is not None) == (
        (logging.ERROR, True) if is_ours else (logging.WARNING, False)
    )
    assert "the change is stored" in logged.getMessage()
    assert "tell others" in logged.getMessage()
