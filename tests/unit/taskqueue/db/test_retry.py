"""What is carried out again, and how often."""

from collections.abc import Iterator

import psycopg.errors
import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from taskqueue.db import database


def _error(cause: Exception) -> DBAPIError:
    kind = IntegrityError if isinstance(cause, psycopg.IntegrityError) else OperationalError
    return kind("UPDATE", {}, cause)


IN_THE_WAY = [psycopg.errors.SerializationFailure("could not serialize"), psycopg.errors.DeadlockDetected()]


@pytest.mark.parametrize("cause", IN_THE_WAY)
def test_what_another_transaction_was_in_the_way_of_is_done_again(cause: Exception) -> None:
    outcomes: Iterator[DBAPIError | None] = iter([_error(cause), _error(cause), None])

    def work() -> str:
        if error := next(outcomes):
            raise error
        return "done"

    assert database.run_with_retry(work) == "done"


def test_it_is_given_up_after_some_tries() -> None:
    tried = []

    def work() -> None:
        tried.append(1)
        raise _error(IN_THE_WAY[0])

    with pytest.raises(OperationalError, match="could not serialize"):
        database.run_with_retry(work, tries=3)
    assert len(tried) == 3


@pytest.mark.parametrize(
    "cause", [psycopg.errors.UniqueViolation(), psycopg.errors.LockNotAvailable(), psycopg.OperationalError()]
)
def test_another_error_is_raised_at_once(cause: Exception) -> None:
    tried = []

    @database.retry_on_conflict
    def work() -> None:
        tried.append(1)
        raise _error(cause)

    with pytest.raises(DBAPIError):
        work()
    assert len(tried) == 1
