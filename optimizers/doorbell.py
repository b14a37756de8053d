"""Telling the workers that there are new jobs: an RQ job for each batch, rung after the commit.

Redis holds nothing but this: a bell that nobody hears costs a few seconds, until the sweep looks.
"""

import logging
import time
from collections.abc import Sequence
from typing import Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from rq import Queue
from rq import Retry as RunAgain
from rq.serializers import JSONSerializer

from optimizers import rq_tasks
from optimizers.batch import MOST_AT_ONCE

log = logging.getLogger(__name__)

#: RQ's queue; its Redis keys are `rq:queue:pilotage-optimizers` and `rq:job:<id>`, one for each batch of
#: job ids that nobody has taken yet.
QUEUE: Final = "pilotage-optimizers"
#: Seconds that a submission may lose because Redis does not answer.
_PATIENCE: Final = 1.0
#: Seconds without a try after that.
_PAUSE: Final = 5.0
#: Seconds after which a batch is ended: a step hangs.
_LONGEST: Final = 300


class RedisDoorbell:
    """Rings through Redis; safe in several threads."""

    def __init__(self, redis_url: str) -> None:
        redis = Redis.from_url(
            redis_url,
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
            retry=Retry(NoBackoff(), 0),
        )
        self._queue = Queue(QUEUE, connection=redis, serializer=JSONSerializer)
        self._away_until = 0.0

    def ring(self, job_ids: Sequence[int]) -> None:
        """Ask for these jobs to be looked at. Redis away is no error: the sweep finds them."""
        if not job_ids or time.monotonic() < self._away_until:
            return
        try:
            for start in range(0, len(job_ids), MOST_AT_ONCE):
                self._enqueue(list(job_ids[start : start + MOST_AT_ONCE]))
        except RedisError as error:
            self._away_until = time.monotonic() + _PAUSE
            log.warning("Redis is away, %d jobs wait for the sweep: %s", len(job_ids), error)

    def _enqueue(self, job_ids: list[int]) -> None:
        self._queue.enqueue(
            rq_tasks.optimize_jobs,
            job_ids,
            description=f"{len(job_ids)} jobs from {job_ids[0]}",
            job_timeout=_LONGEST,
            result_ttl=0,
            failure_ttl=3600,
            retry=RunAgain(max=2),
        )
