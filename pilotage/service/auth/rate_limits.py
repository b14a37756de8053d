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
from typing import Final

from cs_config.options import bounds
from pilotage.service.http_errors import TooManyRequests
from taskqueue.db import redis_servers

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How many requests, or bytes, one process has under way at most: of all, of a VO, and of a subject."""

    what: str = "requests"  #: in refusals
    of_all: float = math.inf
    of_vo: float = math.inf
    of_one: float = math.inf
    #: Whether a VO has no more than it leaves free: half of what others have left. Clients decide how long
    #: such things last, so a few VOs together would have all of fixed shares.
    is_halved: bool = False
    waiting: int = 1_000  #: requests of a subject that wait for places, beyond which they are refused


#: Requests in threads of each caller; strangers count by their address.
AT_WORK: Final = Bounds(of_one=8, waiting=100)
#: The same of all callers but operators: fewer than the connections to the database, and few for the one
#: interpreter that they share.
TURNS: Final = Bounds(of_all=8, of_vo=5)
#: Those that may take up to a second of processor time, such as explanations and previews.
EXPENSIVE_TURNS: Final = Bounds(of_all=3, of_vo=2)
#: Those with large bodies, such as submissions of a thousand jobs: a second one beside it would not be
#: answered sooner, and would take the interpreter from everybody else.
LARGE_TURNS: Final = Bounds(of_all=3, of_vo=1)
#: Requests that wait for an issuer, which is their subject.
SIGN_INS: Final = Bounds(of_one=4, waiting=100)
#: Answers until they are sent.
ANSWERS: Final = Bounds(what="unread answers", of_all=256 << 20, of_one=32 << 20, is_halved=True)
#: Uploads of one kind, sandboxes or outputs, of each caller; and of all, where the subject of an output is
#: its site.
UPLOADS_OF_CALLER: Final = Bounds(of_one=4, waiting=100)
UPLOADS: Final = Bounds(of_all=64, of_one=16, is_halved=True)

#: What counts together: a subject, whatever its VO; a VO; or all.
_Holder = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FullHolder:
    """What has as much under way as it may."""

    kind: str  #: subject, VO or all
    most: float


class Limiter:
    """What is under way, within bounds; of one event loop.

    Requests wait for a place: VOs, and the callers of each, get places in turn. Bytes are refused instead: a
    request that waited for room would hold its own.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.under_way: Counter[_Holder] = Counter()
        #: Requests that wait, of a VO and subject.
        self._turns: dict[tuple[str, str], deque[asyncio.Future[None]]] = {}
        #: Of these, by VO, the subjects that may have more; those first whose turn comes next.
        self._ready: _Index = {}
        #: The VOs of each of the other subjects, which are looked at again when one of its requests ends.
        self._held_back: _Index = {}

    @asynccontextmanager
    async def place(self, vo: str, subject: str) -> AsyncIterator[None]:
        """Hold a place, for which the request may have to wait; `TooManyRequests` if too many wait."""
        turn = self._queue(vo, subject)
        self._admit()
        try:
            await turn
            yield
        finally:
            if turn.cancelled():
                self._withdraw(vo, subject, turn)
            else:
                self._add(vo, subject, -1)
                for waiting_vo in self._held_back.pop(subject, ()):
                    _add_name(self._ready, waiting_vo, subject)
                self._admit()

    def _queue(self, vo: str, subject: str) -> asyncio.Future[None]:
        """Let a request wait; its future is done when it has a place."""
        turns = self._turns.get((vo, subject))
        if turns is None:
            turns = self._turns[vo, subject] = deque()
            _add_name(self._ready, vo, subject)
        if len(turns) >= self._bounds.waiting:
            raise TooManyRequests(1, self._bounds.what)
        turn = asyncio.get_running_loop().create_future()
        turns.append(turn)
        return turn

    def _admit(self) -> None:
        """Give free places to the next requests."""
        while (following := self._find_next()) is not None:
            vo, subject = following
            turn = self._take_turn(vo, subject)
            if not turn.done():  # its request was not given up
                self._add(vo, subject, 1)
                turn.set_result(None)

    def _take_turn(self, vo: str, subject: str) -> asyncio.Future[None]:
        """The first request of a subject, whose next one comes after those of others of its VO."""
        turns = self._turns[vo, subject]
        turn = turns.popleft()
        _discard_name(self._ready, vo, subject)
        if turns:
            _add_name(self._ready, vo, subject)
        else:
            del self._turns[vo, subject]
        return turn

    def _find_next(self) -> tuple[str, str] | None:
        """The VO that has the fewest places, and its next subject; None: none waits that may have more."""
        if self.under_way[_ALL] >= self._bounds.of_all:
            return None
        for vo in sorted(self._ready, key=lambda vo: self.under_way["VO", vo]):
            if self.under_way["VO", vo] >= self._find_most(("VO", vo)):
                return None
            while (subject := next(iter(self._ready.get(vo, ())), None)) is not None:
                if self.under_way["subject", subject] < self._bounds.of_one:
                    return vo, subject
                _discard_name(self._ready, vo, subject)
                _add_name(self._held_back, subject, vo)
        return None

    def _find_most(self, holder: _Holder) -> float:
        """How much may be under way of a subject, a VO, or all."""
        kind, _ = holder
        if kind == "VO":
            free = self._bounds.of_all - self.under_way[_ALL]
            return min(self._bounds.of_vo, free if self._bounds.is_halved else math.inf)
        return self._bounds.of_one if kind == "subject" else self._bounds.of_all

    def _withdraw(self, vo: str, subject: str, turn: asyncio.Future[None]) -> None:
        """Forget a request that was given up while it waited."""
        turns = self._turns.get((vo, subject), deque())
        if turn in turns:
            turns.remove(turn)
            if not turns:
                del self._turns[vo, subject]
                _discard_name(self._ready, vo, subject)
                _discard_name(self._held_back, subject, vo)

    def require_room(self, vo: str, subject: str, *, size: int = 1, is_alone: bool = False) -> None:
        """Raise `TooManyRequests` unless so much more of the subject, its VO, and all may be under way.

        `is_alone`: whatever others hold is no reason.
        """
        full = self.find_full(vo, subject, size)
        if full is not None and (full.kind == "subject" or not is_alone):
            raise TooManyRequests(1, self._bounds.what)

    def find_full(self, vo: str, subject: str, size: int = 1) -> "FullHolder | None":
        """What has no room for so much more: the subject, its VO, or all."""
        for who in _list_holders(vo, subject):
            if self.under_way[who] + size > (most := self._find_most(who)):
                return FullHolder(kind=who[0], most=most)
        return None

    @contextmanager
    def keep(self, vo: str, subject: str, size: int) -> Iterator[None]:
        """Count so many bytes until the end of the block, whatever is held: they are in memory already."""
        self._add(vo, subject, size)
        try:
            yield
        finally:
            self._add(vo, subject, -size)

    @contextmanager
    def hold(self, vo: str, subject: str) -> Iterator[Callable[[int], None]]:
        """Hold a body until the end of the block: the function counts its bytes as they come.

        `TooManyRequests` where they are too many.
        """
        held = 0

        def count(size: int) -> None:
            nonlocal held
            self.require_room(vo, subject, size=size)
            held += size
            self._add(vo, subject, size)

        try:
            yield count
        finally:
            self._add(vo, subject, -held)

    def _add(self, vo: str, subject: str, size: int) -> None:
        for who in _list_holders(vo, subject):
            self.under_way[who] += size
            if not self.under_way[who]:
                del self.under_way[who]


_ALL: Final = ("all", "")


def _list_holders(vo: str, subject: str) -> Sequence[_Holder]:
    return ("subject", subject), ("VO", vo), _ALL


#: Names by name, in the order in which they were added.
_Index = dict[str, dict[str, None]]


def _add_name(index: _Index, outer: str, inner: str) -> None:
    index.setdefault(outer, {})[inner] = None


def _discard_name(index: _Index, outer: str, inner: str) -> None:
    names = index.get(outer, {})
    names.pop(inner, None)
    if not names:
        index.pop(outer, None)


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
        from redis.exceptions import RedisError  # optional package

        self._rates, self._away = rates, RedisError
        self._redis = redis_servers.connect(redis_url, timeout=_TIMEOUT)
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
