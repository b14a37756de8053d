"""The errors of the task queue that its callers can do something about."""

from collections.abc import Mapping

from requirements.errors import NotFound, PilotageError
from taskqueue.states import JobStatus, PilotStatus


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


class PilotOutputNotFound(NotFound):
    """Nothing that this pilot wrote was stored."""

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
    """What it is now does not allow this step."""

    code = "illegal_transition"

    def __init__(self, key: int | str, *, current: JobStatus | PilotStatus, wanted: str) -> None:
        noun = "job" if isinstance(current, JobStatus) else "pilot"
        super().__init__(f"{noun} {key} is {current}; it cannot become {wanted}")
        self.key = key
        self.current = current
        self.wanted = wanted

    @property
    def details(self) -> Mapping[str, object]:
        """What it is and what it should have become."""
        return {"key": self.key, "current": str(self.current), "wanted": str(self.wanted)}


class StaleLease(PilotageError):
    """The attempt is closed: its job is in other hands, or in nobody's."""

    code = "stale_lease"


class RescheduleLimit(PilotageError):
    """The job was rescheduled as often as it may be."""

    code = "reschedule_limit"

    def __init__(self, job_id: int, *, maximum: int) -> None:
        super().__init__(f"job {job_id} was rescheduled {maximum} times already, which is the maximum")
        self.job_id = job_id


class SecretUsed(PilotageError):
    """The pilot's secret was exchanged for a token by another process already."""

    code = "secret_used"

    def __init__(self, stamp: str) -> None:
        super().__init__(f"the secret of the pilot {stamp} was used: a process with this stamp has its token")
        self.stamp = stamp


class IdempotencyConflict(PilotageError):
    """The idempotency key stands for another request."""

    code = "idempotency_conflict"


class QuotaExceeded(PilotageError):
    """One's own limit is reached; others are not concerned."""

    code = "quota_exceeded"


class TooLarge(PilotageError):
    """An archive is larger than is allowed."""

    code = "too_large"


class StorageFull(PilotageError):
    """The blob store has no room left; what it holds is safe."""

    code = "storage_full"
