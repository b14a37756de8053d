"""Request rates of callers, and what their requests may hold at a time: places, memory, and our patience."""

import asyncio
import logging
import math
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from cs_config.options import bounds
from pilotage.service.http_errors import TooManyRequests

log = logging.getLogger(__name__)

#: Seconds between two exchanges of `SharedRates`.
EVERY = 1.0
#: Seconds that a counter lives after the last exchange about it.
_LIFE = 120
#: Timeout of Redis in seconds.
_TIMEOUT = 1.0
#: Each key is this and the digest of a subject; its value the number of requests.
_PREFIX = "pilotage:rate:"

#: Requests after which a caller counts as busy: pilots, which are many, send a few a minute.
_BUSY = 10
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
    burst: int
    taken: int = 0  # since the last `collect` that had it


class RateLimiter:
    """A token bucket for each caller, in the memory of this process."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    def take(
        self, subject: str, rate: RequestRate, *, now: float, cost: int = 1, what: str = "requests"
    ) -> None:
        """Count one request; `now` is monotonic, in seconds. `TooManyRequests` says how long to wait.

        A `cost` of 0 only checks that there is room for one.
        """
        with self._lock:
            bucket = self._buckets.setdefault(subject, _Bucket(rate.burst, now, rate.burst))
            self._buckets.move_to_end(subject)
            if len(self._buckets) > _REMEMBERED:
                evicted, _ = self._buckets.popitem(last=False)
                self._busy.discard(evicted)  # which only `collect` empties: it runs with Redis alone
            gained = max(0.0, now - bucket.filled_at) * rate.per_second
            bucket.tokens = min(float(rate.burst), bucket.tokens + gained)
            bucket.filled_at = now
            if bucket.tokens < 1:
                self._busy.add(subject)
                raise TooManyRequests(math.ceil((1 - bucket.tokens) / rate.per_second), what)
            bucket.tokens -= cost
            bucket.taken += cost
            if bucket.taken >= _BUSY:
                self._busy.add(subject)

    def add(self, subject: str, cost: int) -> None:
        """Count what an admitted request cost, which was known only at its end; at most a burst is owed.

        Nothing is counted of a subject without a bucket.
        """
        with self._lock:
            if (bucket := self._buckets.get(subject)) is not None:
                bucket.tokens = max(-float(bucket.burst), bucket.tokens - cost)
                bucket.taken += cost
                if bucket.taken >= _BUSY:
                    self._busy.add(subject)

    def collect(self) -> dict[str, int]:
        """The requests of each busy caller since it was collected last."""
        with self._lock:
            found: dict[str, int] = {}
            for subject in self._busy:
                if (bucket := self._buckets.get(subject)) is not None:
                    found[subject], bucket.taken = bucket.taken, 0
            self._busy.clear()
            return found

    def charge(self, requests: Mapping[str, int]) -> None:
        """Take requests that other processes have answered; at most a burst is owed."""
        with self._lock:
            for subject, number in requests.items():
                if (bucket := self._buckets.get(subject)) is not None:
                    bucket.tokens = max(-float(bucket.burst), bucket.tokens - number)


@dataclass(slots=True)
class _Places:
    free: asyncio.Semaphore
    requests: int = 0  # at work and waiting


class WorkLimiter:
    """Places for requests that work in threads, which all callers share; of one event loop.

    Each subject has a few. Its further requests wait, up to a number, so that none can take all threads.
    """

    def __init__(self, *, at_work: int, waiting: int) -> None:
        self._at_work = at_work
        self._most = at_work + waiting
        self._subjects: dict[str, _Places] = {}

    @asynccontextmanager
    async def place(self, subject: str) -> AsyncIterator[None]:
        """Hold a place, for which the request may have to wait; `TooManyRequests` if too many wait."""
        places = self._subjects.setdefault(subject, _Places(asyncio.Semaphore(self._at_work)))
        if places.requests >= self._most:
            raise TooManyRequests(1)
        places.requests += 1
        try:
            async with places.free:
                yield
        finally:
            places.requests -= 1
            if not places.requests:
                del self._subjects[subject]


class ByteLimiter:
    """Bytes of requests or answers in memory: of all, of a VO and of a subject; of one event loop."""

    def __init__(self, what: str, *, of_all: int, of_vo: int, of_one: int) -> None:
        """`what` names them in refusals, such as `large requests`."""
        self._what = what
        self._most = (of_all, of_vo, of_one)
        self._held: Counter[tuple[str, ...]] = Counter()

    def require_room(self, vo: str, subject: str, *, is_alone: bool = False) -> None:
        """Raise `TooManyRequests` if the subject, its VO, or all hold as much as they may.

        `is_alone`: whatever others hold is no reason.
        """
        holders = _list_holders(vo, subject)
        if is_alone:
            if self._held[holders[-1]] >= self._most[-1]:
                raise TooManyRequests(1, self._what)
        else:
            self._require(holders, 1)

    @contextmanager
    def keep(self, vo: str, subject: str, size: int) -> Iterator[None]:
        """Count so many bytes until the end of the block, whatever is held: they are in memory already."""
        holders = _list_holders(vo, subject)
        self._held.update(dict.fromkeys(holders, size))
        try:
            yield
        finally:
            self._release(holders, size)

    @contextmanager
    def hold(self, vo: str, subject: str) -> Iterator[Callable[[int], None]]:
        """Hold a body until the end of the block: the function counts its bytes as they come.

        `TooManyRequests` if others hold too many: a request that waited for them would hold its own.
        """
        holders, held = _list_holders(vo, subject), 0

        def count(size: int) -> None:
            nonlocal held
            self._require(holders, size)
            held += size
            self._held.update(dict.fromkeys(holders, size))

        try:
            yield count
        finally:
            self._release(holders, held)

    def _require(self, holders: Sequence[tuple[str, ...]], size: int) -> None:
        if any(self._held[who] + size > most for who, most in zip(holders, self._most, strict=True)):
            raise TooManyRequests(1, self._what)

    def _release(self, holders: Sequence[tuple[str, ...]], size: int) -> None:
        for who in holders:
            self._held[who] -= size
            if not self._held[who]:
                del self._held[who]


def _list_holders(vo: str, subject: str) -> Sequence[tuple[str, ...]]:
    """The keys of what all, a VO and a subject hold."""
    return (), (vo,), (vo, subject)


class SharedPlaces:
    """Places for requests at work, which VOs, and the callers of one VO, get in turn; of one event loop.

    A VO has only some of them, and so may a subject, for all VOs together: a caller, or its site. How many
    requests wait is bounded by those that each caller may have.
    """

    def __init__(self, *, at_work: int, of_vo: int, of_subject: int | None = None) -> None:
        self._free = at_work
        self._of_vo = of_vo
        self._of_subject = at_work if of_subject is None else of_subject
        self._at_work: Counter[str] = Counter()  # by VO
        self._of_subjects: Counter[str] = Counter()  # at work, by subject
        #: By VO and subject; those first whose turn comes next.
        self._waiting: dict[str, dict[str, deque[asyncio.Future[None]]]] = {}

    @asynccontextmanager
    async def place(self, vo: str, subject: str) -> AsyncIterator[None]:
        """Hold a place, for which the request may have to wait."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(vo, {}).setdefault(subject, deque()).append(turn)
        self._admit()
        try:
            await turn
            yield
        finally:
            if not turn.cancelled():
                self._free += 1
                self._at_work -= Counter((vo,))  # which drops those at zero
                self._of_subjects -= Counter((subject,))
                self._admit()

    def _admit(self) -> None:
        """Give free places to the next requests."""
        while self._free and (following := self._find_next()) is not None:
            vo, subject = following
            subjects = self._waiting.pop(vo)
            turns = subjects.pop(subject)
            turn = turns.popleft()
            if turns:
                subjects[subject] = turns
            if subjects:
                self._waiting[vo] = subjects
            if not turn.done():  # its request was not given up
                self._free -= 1
                self._at_work[vo] += 1
                self._of_subjects[subject] += 1
                turn.set_result(None)

    def _find_next(self) -> tuple[str, str] | None:
        """The VO that has the fewest places, and its next subject; None: none waits that may have more."""
        for vo in sorted(self._waiting, key=self._at_work.__getitem__):
            if self._at_work[vo] >= self._of_vo:
                return None
            for subject in self._waiting[vo]:
                if self._of_subjects[subject] < self._of_subject:
                    return vo, subject
        return None


class Patience:
    """The seconds that a client may still let us wait: each byte that it sends or reads adds to them."""

    def __init__(self, most: float, left: float | None = None) -> None:
        """At most so many seconds, now `left` (None: all of them)."""
        self._most = most
        self.seconds = most if left is None else min(most, left)

    def note(self, *, size: int, waited: float) -> None:
        """Note that `size` bytes passed after waiting so many seconds for them."""
        self.seconds = min(self._most, self.seconds - waited + size / bounds.SLOWEST)


class SharedRates:
    """Rates of callers over all processes of the service, by counters in Redis.

    Once a second each process adds the requests of its busy callers, and takes what others added meanwhile
    from its own buckets. So a request waits for nothing, and a caller may exceed its rate for a second.
    Without Redis each process counts for itself.
    """

    def __init__(self, rates: RateLimiter, redis_url: str) -> None:
        from redis import Redis  # optional package
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError
        from redis.retry import Retry

        self._rates, self._away = rates, RedisError
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
        except self._away as error:
            if not self._is_away:
                log.warning("Redis is unavailable, each process counts requests for itself: %s", error)
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
