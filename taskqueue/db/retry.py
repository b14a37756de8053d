"""Retry of transactions that PostgreSQL aborted because of a conflict (serialization failure or deadlock).

Locks are taken in one order everywhere (`transitions`), so conflicts are rare; but a role or a database may
be set to SERIALIZABLE, and people lock rows by hand.
"""

import functools
import logging
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError

log = logging.getLogger(__name__)

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

#: serialization_failure, deadlock_detected: the whole transaction was undone, and the rival goes on.
_CONFLICTS: Final = frozenset({"40001", "40P01"})
_MAX_TRIES: Final = 4


def is_conflict(error: BaseException) -> bool:
    """Whether the same again is likely to succeed at once."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _CONFLICTS


def run_with_retry(work: Callable[[], _Result], *, tries: int = _MAX_TRIES) -> _Result:
    """Do work that may be done again, and do it again if another transaction was in its way.

    Args:
        work: Begins its own transactions; one that it committed before the last does no harm twice, as with a
            client that asks again.
        tries: At most so often; the last error is raised.
    """
    for left in reversed(range(tries)):
        try:
            return work()
        except DBAPIError as error:
            if not left or not is_conflict(error):
                raise
            log.info("another transaction was in the way, once more: %s", error.orig)
    raise ValueError(f"{tries} tries are none")


def retry_on_conflict(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The function, carried out again where it has to be."""

    @functools.wraps(function)
    def carried_out(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        return run_with_retry(lambda: function(*args, **kwargs))

    return carried_out
