"""Whether this process is ready to serve, as `/readyz` answers, and what checks look at in it."""

from pilotage.service.auth.callers import Caller
from pilotage.service.problems.finding import CheckScope
from pilotage.service.services import Services
from requirements.errors import PilotageError
from taskqueue.blob_stores.store import BlobStore
from taskqueue.db import database

#: Seconds without a confirmed commit after which a process is not ready: reading goes on while commits hang.
_CONFIRMED_WITHIN = 12.0


def run_checks(parts: Services) -> dict[str, str]:
    """Conditions for this process to be ready, each `ok` or the problem."""
    return {
        "database": _database(parts),
        "history": database.LOST if database.is_lost(parts.engine) else "ok",
        "claimer": "ok" if parts.claimer.alive else "has ended",
        "index": "ok" if parts.matcher.is_loaded else "is being loaded",
        "clock": parts.clock_problem() or "ok",
        # The fault itself is shown to operators only: this route needs no token.
        "configuration": "the newest version cannot be read" if parts.live.problem else "ok",
    }


def _database(parts: Services) -> str:
    if (fault := parts.storage.fault) is not None:
        return f"can store nothing: {fault}"
    if (seconds := parts.commit_age()) > _CONFIRMED_WITHIN:
        return f"has confirmed no commit for {seconds:.0f} s"
    try:
        return "ok" if database.schema_state(parts.engine).current else "has no schema"
    except database.UNAVAILABLE:
        return "does not answer"


def scope_of(parts: Services, caller: Caller) -> CheckScope:
    """What checks look at for a caller of this process; of the process itself for operators only."""
    of_process = caller.is_operator
    return CheckScope(
        caller=caller,
        config=parts.live.current,
        now=parts.clock(),
        configuration_fault=parts.live.problem,
        optimizers=parts.optimizer_queue() if of_process else None,
        readiness=run_checks(parts) if of_process else {},
        certificate=parts.certificate if of_process else None,
        is_replica_used=parts.replica.is_used if of_process and parts.replica.is_configured else None,
        find_storage_fault=lambda: _find_storage_fault(parts.blobs),
    )


def _find_storage_fault(blobs: BlobStore) -> str | None:
    """Why archives cannot be stored."""
    try:
        blobs.check_space()
    except PilotageError as error:
        return str(error)
    return None
