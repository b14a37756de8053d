"""CPU time of a job at a queue, by the queue's parameters.

One rule for every reader: the ad of the queue, what pilots there offer, and explanations.
"""

from collections.abc import Mapping
from typing import Final

from cs_config.options import bounds
from requirements.values import Value

#: The speed `SI00` of the processor for which `maxCPUTime` is stated without normalisation. Source: DIRAC.
REFERENCE_SI00: Final = 250
#: Folded parameters of a queue without `CPUTime` from which its CPU time follows.
SOURCES: Final = ("maxcputime", "maxwallclocktime")
#: Seconds that pilots offer where the queue limits neither CPU nor wall time: three days.
DEFAULT: Final = 259_200


def find_offered(known: Mapping[str, Value]) -> int:
    """Normalised CPU seconds that pilots offer at a queue with these folded parameters."""
    return DEFAULT if (time := compute(known)) is None else time


def compute(known: Mapping[str, Value]) -> int | None:
    """Normalised CPU seconds of a job by folded parameters; None: they limit neither CPU nor wall time."""
    limits = (read_limit(known), read_number(known, "maxwallclocktime"))
    shortest = min((limit for limit in limits if limit), default=None)
    return None if shortest is None else int(shortest * read_power(known))


def read_limit(known: Mapping[str, Value]) -> int | None:
    """CPU seconds of a job: `CPUTime`, else the minutes of `maxCPUTime`."""
    minutes = read_number(known, "maxcputime")
    return read_number(known, "cputime") or (60 * minutes if minutes else None)


def read_power(known: Mapping[str, Value]) -> float:
    """Normalised seconds per second of the queue's processors, 1 by default.

    Where the limit is `maxCPUTime`, `SI00` has it as well. Source: DIRAC, CPUNormalization.
    """
    power = read_real(known, "cpunormalizationfactor")
    if power is None and read_number(known, "cputime") is None and read_number(known, "maxcputime"):
        power = read_real(known, "si00", divided_by=REFERENCE_SI00)
    return power if power is not None and 0 < power <= bounds.POWER else 1.0


def read_real(known: Mapping[str, Value], name: str, *, divided_by: int = 1) -> float | None:
    """A number among folded parameters."""
    value = known.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) / divided_by if is_number else None  # type: ignore[arg-type]


def read_number(known: Mapping[str, Value], name: str) -> int | None:
    """A whole number above 0 among folded parameters, also of a text."""
    value = known.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = int(float(value))
    except (ValueError, OverflowError):
        return None
    return number if number > 0 else None
