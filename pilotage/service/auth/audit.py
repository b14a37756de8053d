"""The audit log: who tried what it may not, and who changed what others live by."""

import json
import logging

from pilotage.service.auth.callers import Caller

#: A logger of its own, so that an installation can keep it apart and longer.
_log = logging.getLogger("pilotage.audit")
#: Whole, however little else is to be said: an installation that says nothing of it writes warnings only.
_log.setLevel(logging.INFO)


def refused(caller: Caller, *, method: str, path: str, reason: str) -> None:
    """A request outside its role."""
    _log.warning(_line("refused", caller, method=method, path=path, reason=reason))


def done(caller: Caller, action: str, **facts: str | int) -> None:
    """A change that concerns more than the caller's own jobs."""
    _log.info(_line(action, caller, **facts))


def unproven(action: str, *, address: str, reason: str, **facts: str | int) -> None:
    """Somebody who is not known tried what needs proof, and had none that is good."""
    _log.warning(json.dumps({"action": action, "address": address, "reason": reason, **facts}))


def _line(action: str, caller: Caller, **facts: str | int) -> str:
    # JSON, so that nothing that a caller chose can begin a line of its own.
    return json.dumps({"action": action, "subject": caller.subject, "role": caller.role.value, **facts})
