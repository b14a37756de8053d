"""Request rates of callers."""

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass

from pilotage.service.http_errors import TooManyRequests

#: Callers that are counted; one that was evicted starts with a full bucket.
_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRate:
    """Rate of requests of one caller."""

    per_second: float  #: in the long run; more than 0
    burst: int  #: at once, after a pause


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


class RateLimiter:
    """A token bucket for each caller, in the memory of this process."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, subject: str, rate: RequestRate, *, now: float) -> None:
        """Count one request; `now` is monotonic, in seconds. `TooManyRequests` says how long to wait."""
        with self._lock:
            bucket = self._buckets.setdefault(subject, _Bucket(rate.burst, now))
            self._buckets.move_to_end(subject)
            if len(self._buckets) > _REMEMBERED:
                self._buckets.popitem(last=False)
            gained = max(0.0, now - bucket.filled_at) * rate.per_second
            bucket.tokens = min(float(rate.burst), bucket.tokens + gained)
            bucket.filled_at = now
            if bucket.tokens < 1:
                raise TooManyRequests(math.ceil((1 - bucket.tokens) / rate.per_second))
            bucket.tokens -= 1
