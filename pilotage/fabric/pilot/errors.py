"""Trouble with the host (no job is to blame, and another pilot may succeed), and the pilot's exit status."""

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
    """This host cannot run jobs."""


class NotPossibleHere(HostTrouble):
    """This host does not allow what is wanted, and will not tomorrow."""


class NodeExcluded(Exception):
    """The service excludes this host for a while: the pilots before had trouble with it."""


def is_to_blame(error: OSError) -> bool:
    """Whether an error is due to the state of the host, not to the request."""
    return error.errno in _TROUBLES


FINE = 0  #: normal end: enough jobs, no work, end of the slot, stopped
REFUSED = 1  #: by the service: a bad token, an unknown queue
USAGE = 2
AWAY = 3  #: the service did not respond for too long
HOST = 4  #: this host cannot run jobs
SECRET_ALREADY_USED = 5  #: another process has used the secret and is the pilot


@dataclass(frozen=True)
class Ending:
    """The end of a pilot: exit status and reason."""

    exit_status: int
    reason: str
    host_trouble: bool = False  #: counts for the node
