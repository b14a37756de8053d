"""Troubles of the host that we run on: no job is to blame, and another pilot may do better."""

from __future__ import annotations

import errno

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
