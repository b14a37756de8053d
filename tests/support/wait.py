"""Waiting for what another process or thread does."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 300) -> None:
    """Wait for another thread to have done something."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.005)
