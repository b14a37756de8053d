"""What a job asked for and what each of its attempts used: memory, scratch space, CPU time."""

from dataclasses import asdict, dataclass
from typing import Self

from cs_config.options.options import VoOptions
from optimizers.description import description
from pilotage.service.models.jobs import AttemptAnswer
from requirements.errors import InvalidInput
from taskqueue.jobs.descriptions import Description
from taskqueue.leases.attempts import Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAmounts:
    """JobAmounts of resources; None: not stated, or not reported."""

    memory_mb: int | None = None
    scratch_mb: int | None = None
    cpu_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptUse:
    """An attempt beside the amounts of its job."""

    attempt: Attempt
    asked: JobAmounts

    @property
    def used(self) -> JobAmounts:
        """The largest amounts that its pilot reported."""
        return JobAmounts(
            memory_mb=self.attempt.peak_ram_mb,
            scratch_mb=self.attempt.peak_scratch_mb,
            cpu_seconds=self.attempt.cpu_seconds,
        )

    def to_answer(self) -> AttemptAnswer:
        """The attempt as the interface shows it."""
        return AttemptAnswer.model_validate({**asdict(self.attempt), "asked": self.asked, "used": self.used})

    @classmethod
    def from_attempt(cls, attempt: Attempt, stated: JobAmounts) -> Self:
        """Create it; the memory is what the match reserved for the cores of the attempt."""
        own = JobAmounts(
            memory_mb=attempt.ram_mb, scratch_mb=stated.scratch_mb, cpu_seconds=stated.cpu_seconds
        )
        return cls(attempt=attempt, asked=own)


def read_stated(stored: Description, operations: VoOptions) -> JobAmounts:
    """The scratch space and the CPU time, or work, of a stored description; none if it is unreadable."""
    try:
        job = description.parse_description(stored.body, operations, is_accepted=True)
    except InvalidInput:
        return JobAmounts()
    cpu_time = job.cpu_time if job.states("cpu_time") else None  # else it is a default
    return JobAmounts(scratch_mb=job.scratch_mb or None, cpu_seconds=job.cpu_work_db12 or cpu_time or None)
