"""Request rates of callers counted over all processes of the service, through Redis.

Once a second each process adds the requests of its busy callers to counters in Redis, and takes what others
added meanwhile from its own buckets. So a request waits for nothing, and a caller may exceed its rate
for a second. Without Redis each process counts for itself.
"""

import logging
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from pilotage.service.auth.rate_limits import RateLimiter

_log = logging.getLogger(__name__)

#: Seconds between two exchanges.
EVERY = 1.0
#: Seconds that a counter lives after the last exchange about it.
_LIFE = 120
#: Timeout of Redis in seconds.
_TIMEOUT = 1.0
#: Each key is this and the digest of a subject; its value the number of requests.
_PREFIX = "pilotage:rate:"


class SharedRates:
    """The exchange of one process."""

    def __init__(self, rates: RateLimiter, redis_url: str) -> None:
        self._rates = rates
        self._redis = Redis.from_url(
            redis_url, socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT, retry=Retry(NoBackoff(), 0)
        )
        self._totals: dict[str, int] = {}  # of each subject, at the last exchange about it
        self._is_away = False

    def exchange(self, _now: datetime | None = None) -> None:
        """Publish what was taken here, and take what was taken elsewhere; no error if Redis is away."""
        taken = self._rates.collect()
        try:
            totals = self._add(taken)
        except RedisError as error:
            if not self._is_away:
                _log.warning("Redis is unavailable, each process counts requests for itself: %s", error)
            self._is_away = True
            self._totals = {}
            return
        self._is_away = False
        elsewhere = {
            subject: total - self._totals[subject] - taken[subject]
            for subject, total in totals.items()
            if subject in self._totals
        }
        self._rates.charge({subject: number for subject, number in elsewhere.items() if number > 0})
        self._totals = totals  # a caller that pauses here begins anew

    def _add(self, taken: Mapping[str, int]) -> dict[str, int]:
        """Add to the counters of these subjects; their new values."""
        subjects = sorted(taken)
        with self._redis.pipeline(transaction=False) as pipeline:
            for subject in subjects:
                key = _PREFIX + sha256(subject.encode()).hexdigest()
                pipeline.incrby(key, taken[subject])
                pipeline.expire(key, _LIFE)
            answers = pipeline.execute()
        return dict(zip(subjects, map(int, answers[::2]), strict=True))
