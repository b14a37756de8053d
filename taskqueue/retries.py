"""Carrying out again what PostgreSQL gave up since two transactions were in each other's way.

Locks are taken in one order everywhere (`transitions`), so that this hardly ever happens; but a role or a
database may be set to SERIALIZABLE, and people lock rows by hand.
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
_IN_THE_WAY: Final = frozenset({"40001", "40P01"})
_TRIES: Final = 4


def was_in_the_way(error: BaseException) -> bool:
    """Whether the same again is likely to succeed at once."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in _IN_THE_WAY


def carry_out(work: Callable[[], _Result], *, tries: int = _TRIES) -> _Result:
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
            if not left or not was_in_the_way(error):
                raise
            log.info("another transaction was in the way, once more: %s", error.orig)
    raise ValueError(f"{tries} tries are none")


def repeatable(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The function, carried out again where it has to be."""

    @functools.wraps(function)
    def carried_out(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        return carry_out(lambda: function(*args, **kwargs))

    return carried_out
