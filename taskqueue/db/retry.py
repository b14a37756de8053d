"""Retry of transactions that PostgreSQL aborted because of a conflict (serialization failure or deadlock).

Locks are taken in the same order everywhere (`jobs.transitions`), so conflicts are rare; but a role or a
database may be set to SERIALIZABLE, and administrators lock rows by hand.
"""

import functools
import logging
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError

log = logging.getLogger(__name__)

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

#: serialization_failure, deadlock_detected: the transaction was rolled back, and the rival continues.
_CONFLICTS: Final = frozenset({"40001", "40P01"})
_MAX_TRIES: Final = 4


def is_conflict(error: BaseException) -> bool:
    """Whether a retry is likely to succeed at once."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _CONFLICTS


def run_with_retry(work: Callable[[], _Result], *, tries: int = _MAX_TRIES) -> _Result:
    """Run idempotent work, at most `tries` times while it fails with a conflict.

    The work begins its own transactions; those committed before the failed one are repeated.
    """
    for left in reversed(range(tries)):
        try:
            return work()
        except DBAPIError as error:
            if not left or not is_conflict(error):
                raise
            log.info("conflict with another transaction, trying again: %s", error.orig)
    raise ValueError(f"tries must be at least 1, not {tries}")


def retry_on_conflict(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorate a function with `run_with_retry`."""

    @functools.wraps(function)
    def wrapper(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        return run_with_retry(lambda: function(*args, **kwargs))

    return wrapper
