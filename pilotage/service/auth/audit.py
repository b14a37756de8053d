"""The audit log: rejected requests, and changes that affect others."""

import json
import logging

from pilotage.service.auth.callers import Caller

#: A separate logger, so that an installation can store it apart and longer.
_log = logging.getLogger("pilotage.audit")
#: Always complete, independent of the root logger's level.
_log.setLevel(logging.INFO)


def refused(caller: Caller, *, method: str, path: str, reason: str) -> None:
    """Log a request outside the caller's role."""
    _log.warning(_line("refused", caller, method=method, path=path, reason=reason))


def done(caller: Caller, action: str, **facts: str | int) -> None:
    """Log a change that affects more than the caller's own jobs."""
    _log.info(_line(action, caller, **facts))


def unproven(action: str, *, address: str, reason: str, **facts: str | int) -> None:
    """Log an unauthenticated attempt that needed a valid token or secret."""
    _log.warning(json.dumps({"action": action, "address": address, "reason": reason, **facts}))


def _line(action: str, caller: Caller, **facts: str | int) -> str:
    # JSON, so that text chosen by a caller cannot start a new line.
    return json.dumps({"action": action, "subject": caller.subject, "role": caller.role.value, **facts})
