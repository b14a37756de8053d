"""How fast a processor of this node is: normalised seconds of CPU time in one second.

Source: DIRAC's CPUNormalizationFactor and its benchmark DB12: power is 250 over the CPU seconds that one
processor takes for 12.5 million normally distributed random numbers and their sums; about 10 to 25 on
machines of the grid, near to HEP-SPEC06 per core. It depends on the Python that measures: newer ones are
faster.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Callable

_REFERENCE = 250.0
_NUMBERS = 12_500_000
#: Numbers of one round, and rounds: about a second in all.
_ROUND, _ROUNDS = 150_000, 3


def measured(clock: Callable[[], float] = time.process_time) -> float:
    """The power of one processor, from a short benchmark; two digits after the point.

    Args:
        clock: CPU seconds of this process.
    """
    powers = [_REFERENCE / (_seconds(clock) * _NUMBERS / _ROUND) for _ in range(_ROUNDS)]
    return round(statistics.median(powers), 2)


def _seconds(clock: Callable[[], float]) -> float:
    """CPU seconds of one round; what it computes is the benchmark's, nobody wants it."""
    draw = random.Random(1).normalvariate
    total = squares = 0.0
    began = clock()
    for _ in range(_ROUND):
        number = draw(10, 1)
        total += number
        squares += number * number
    return max(clock() - began, 1e-6)
