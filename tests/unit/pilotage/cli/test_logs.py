"""Logs of processes."""

import logging

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from pilotage.cli import process_setup


@pytest.mark.parametrize("as_json", [False, True])
def test_errors_of_statements_are_logged_in_one_line_without_statement_and_values(
    *, as_json: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        process_setup.configure_logs("info", as_json=as_json)
        with create_engine("sqlite://").connect() as conn, pytest.raises(OperationalError) as failed:
            conn.execute(text("SELECT 1 FROM leases\nWHERE token = :token"), {"token": "secret"})
        logging.getLogger("service").warning("the database is unavailable: %s", failed.value)
        logging.getLogger("service").warning("%d jobs: %s", 2, ValueError("plain"))
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    first, second = capfd.readouterr().err.splitlines()
    assert "no such table: leases" in first
    assert "secret" not in first
    assert "SELECT" not in first
    assert "2 jobs: plain" in second
