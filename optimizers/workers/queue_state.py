"""State of the optimizers behind Redis, for pages, metrics and `doctor`."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerQueueState:
    """What RQ reports; all zero with a `problem`."""

    problem: str | None = None  #: why Redis does not answer
    waiting: int = 0  #: batches of jobs that no worker has begun
    running: int = 0  #: batches
    failed: int = 0  #: batches of the last hour; their jobs were left to the sweep
    workers: int = 0  #: processes that listen
    outcomes: Mapping[tuple[str, str], int] = field(
        default_factory=dict
    )  #: by step and outcome, of all workers

    @property
    def is_heard(self) -> bool:
        """Whether a worker listens."""
        return self.workers > 0
