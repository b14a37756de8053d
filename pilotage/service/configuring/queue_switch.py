"""Drain and resume a queue: a drained queue gets no new jobs, running jobs go on to their end."""

from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.versions.diff import ABSENT
from cs_config.versions.patch import Edit
from pilotage.service.auth.callers import Caller
from pilotage.service.configuring import change, in_force
from pilotage.service.services import Services

_ENABLED = "Enabled"


def may_switch(caller: Caller, address: QueueAddress) -> bool:
    """Whether the caller may drain the queue."""
    return in_force.rights_of(caller).may_change(_names(address))


def is_drained(config: Configuration, address: QueueAddress) -> bool:
    """Whether the queue itself is disabled, whatever its site or CE."""
    own = config.levels[address][-1].plain.get(_ENABLED.lower())
    return own is not None and own.value is False


def drain(parts: Services, caller: Caller, address: QueueAddress, *, message: str = "") -> int:
    """Disable a queue for all VOs and return the new version.

    Raises:
        EditNotAllowed, QueueNotFound: It is not the caller's, or does not exist.
    """
    return _set(parts, caller, address, False, message or f"drain {address}")  # noqa: FBT003


def resume(parts: Services, caller: Caller, address: QueueAddress, *, message: str = "") -> int:
    """Undo `drain` and return the new version.

    Raises:
        EditNotAllowed, QueueNotFound: As for `drain`.
        PathNotFound: It is not drained.
    """
    return _set(parts, caller, address, ABSENT, message or f"resume {address}")


def _set(parts: Services, caller: Caller, address: QueueAddress, value: object, message: str) -> int:
    current = in_force.newest(parts)
    edit = Edit(names=_names(current.require(address)), value=value)
    number, _ = change.edit(parts, caller, [edit], message=message, expected=current.version)
    return number


def _names(address: QueueAddress) -> tuple[str, ...]:
    return ("Resources", "Sites", address.site, "CEs", address.ce, "Queues", address.queue, _ENABLED)
