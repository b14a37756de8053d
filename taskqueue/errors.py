"""Errors of the task queue that callers can handle."""

from collections.abc import Collection

from requirements.errors import NotFound, PilotageError, did_you_mean, format_count
from requirements.states import JobStatus, PilotStatus


class JobNotFound(NotFound):
    """No such job."""

    code = "job_not_found"
    noun = "job"


class PoolNotFound(NotFound):
    """No such SubmitPool."""

    code = "pool_not_found"
    noun = "pool"


class PilotNotFound(NotFound):
    """No pilot with this stamp."""

    code = "pilot_not_found"
    noun = "pilot"


class DowntimeNotFound(NotFound):
    """No downtime with this id."""

    code = "downtime_not_found"
    noun = "downtime"


class NodeNotExcluded(NotFound):
    """No such node is excluded."""

    code = "node_not_excluded"
    noun = "excluded node"

    def __init__(self, name: str, *, site: str, excluded: Collection[str]) -> None:
        super().__init__(f"{name} of {site}", did_you_mean(name, excluded))


class PilotOutputNotFound(NotFound):
    """No output of this pilot was stored."""

    code = "pilot_output_not_found"
    noun = "output of the pilot"


class BlobNotFound(NotFound):
    """No archive with this digest."""

    code = "blob_not_found"
    noun = "archive"


class LeaseNotFound(NotFound):
    """No attempt ever had this lease."""

    code = "lease_not_found"
    noun = "lease"


class IllegalTransition(PilotageError):
    """The current status does not allow this transition."""

    code = "illegal_transition"

    def __init__(self, key: int | str, *, current: JobStatus | PilotStatus, wanted: str) -> None:
        noun = "job" if isinstance(current, JobStatus) else "pilot"
        super().__init__(f"{noun} {key} is {current}; it cannot become {wanted}")
        self.details = {"key": key, "current": str(current), "wanted": str(wanted)}


class StaleLease(PilotageError):
    """The attempt is closed: its report is refused."""

    code = "stale_lease"


class OutputMissing(PilotageError):
    """The reported output is not stored, since commits were lost: it has to be sent again."""

    code = "output_missing"


class RescheduleLimit(PilotageError):
    """The job reached the maximum number of reschedules."""

    code = "reschedule_limit"

    def __init__(self, job_id: int, *, maximum: int) -> None:
        super().__init__(f"job {job_id} was already rescheduled {format_count(maximum, 'time')}, the maximum")


class NotHeld(PilotageError):
    """The job is not held by its user."""

    code = "not_held"

    def __init__(self, job_id: int, *, current: JobStatus) -> None:
        super().__init__(f"job {job_id} is {current}, not held: there is nothing to release")


class JobKept(PilotageError):
    """The job is kept from pilots on purpose: it is not rescheduled."""

    code = "job_kept"

    def __init__(self, job_id: int, *, minor: str, remedy: str) -> None:
        super().__init__(f"job {job_id} is kept from pilots ({minor}): {remedy}")


class SecretUsed(PilotageError):
    """The pilot's secret was already exchanged for a token by another process."""

    code = "secret_used"

    def __init__(self, stamp: str) -> None:
        super().__init__(f"the secret of the pilot {stamp} was already used by another process")


class OtherProcess(PilotageError):
    """A process of the same director or gateway is at work."""

    code = "other_process"

    def __init__(self, what: str, *, holder: str) -> None:
        super().__init__(f"a process of the {what} is at work: {holder}")
        self.details = {"holder": holder}


class IdempotencyConflict(PilotageError):
    """The idempotency key was used for another request."""

    code = "idempotency_conflict"


class QuotaExceeded(PilotageError):
    """A quota of the sender is exceeded; other senders are not affected."""

    code = "quota_exceeded"


class TooLarge(PilotageError):
    """An archive exceeds the size limit."""

    code = "too_large"


class NotConfirmed(PilotageError):
    """A change was not confirmed in time, and may be stored: the request is to be repeated."""

    code = "outcome_unknown"
    retry_after = 5  #: seconds

    def __init__(self, seconds: float) -> None:
        self.fact = f"nothing was confirmed within {seconds:g} s: the outcome is unknown"
        super().__init__(f"{self.fact}, repeat the request with the same Idempotency-Key or request_id")


class StorageAway(PilotageError):
    """The blob store cannot be used now (read-only, broken, its server away); stored archives are safe."""

    code = "storage_away"


class StorageFull(StorageAway):
    """The blob store is full; stored archives are safe."""

    code = "storage_full"
