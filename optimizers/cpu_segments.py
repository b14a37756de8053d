"""CPU time in segments, so that jobs of nearly the same length share a task queue.

Source: DIRAC TaskQueueDB.
"""

from bisect import bisect_left
from collections.abc import Sequence


def segment(cpu_time: int, segments: Sequence[int]) -> int:
    """The smallest segment that holds `cpu_time`, in seconds; the last one for anything above it.

    Args:
        cpu_time: Seconds.
        segments: Strictly increasing.
    """
    return segments[min(bisect_left(segments, cpu_time), len(segments) - 1)]
