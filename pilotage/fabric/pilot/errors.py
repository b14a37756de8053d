"""Troubles of the host that we run on: no job is to blame, and another pilot may do better.

Why a pilot ends, and its exit status.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

_TROUBLES = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
    }
)


class HostTrouble(Exception):
    """This host does not let us run anything."""


def is_to_blame(error: OSError) -> bool:
    """Whether an error comes from the state of the host, not from what was asked of it."""
    return error.errno in _TROUBLES


FINE = 0  #: as it should: enough jobs, no work, slot over, told to
REFUSED = 1  #: by the service: a bad token, an unknown queue
USAGE = 2
AWAY = 3  #: the service did not answer for too long
HOST = 4  #: this host cannot run jobs
TWIN = 5  #: another process has used our secret: it is the pilot, we are nobody


@dataclass(frozen=True)
class Ending:
    """The end of a pilot."""

    exit_status: int
    reason: str
