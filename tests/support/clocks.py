"""A clock for what counts seconds."""

from dataclasses import dataclass


@dataclass
class ManualClock:
    """Time passes when a test says so, in seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
