"""Clients that take jobs from our matcher in process: one after the other, or many at a time."""

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Engine

from benchmarks import lhcb, population
from benchmarks.clients import Work, repeated
from cs_config import gc_tuning, validate
from matcher.claim import matcher as matching
from matcher.claim.matcher import Matcher
from matcher.claim.worker import ClaimWorker
from matcher.request import match_request
from matcher.request.match_request import MatchCaller, MatchRequest, MatchResult
from requirements.errors import PilotageError
from taskqueue.db import database

_CALLER = MatchCaller(subject="bench", vos=frozenset({lhcb.VO}))
_PATIENCE = 30.0  # seconds


@contextmanager
def singly(
    url: str, offers: Sequence[Mapping[str, object]], number: int, *, limited: int = 0
) -> Iterator[Work]:
    """One client that asks, waits for its answer, and asks again; each claim is a transaction."""
    with _matcher(url, limited) as (_, matcher):
        requests = _requests(offers, number)

        def one() -> int:
            request = next(requests)
            [look] = looks = matcher.serve([request])
            if isinstance(look, PilotageError):
                raise look
            matcher.settle(looks)
            matcher.write_down()
            return len(matching.build_answer(request, look).matches)

        yield repeated(one)


@contextmanager
def together(
    url: str, offers: Sequence[Mapping[str, object]], at_a_time: int, number: int, *, limited: int = 0
) -> Iterator[Work]:
    """One process in which so many requests wait at any time, as in the service."""
    with _matcher(url, limited) as (engine, matcher):
        claimer = ClaimWorker(engine, matcher)
        claimer.start()
        requests = _requests(offers, number)

        def work(seconds: float, most: int) -> list[float]:
            crowd = _Crowd(claimer=claimer, requests=requests, until=time.perf_counter() + seconds, most=most)
            return crowd.served(at_a_time)

        yield work
        claimer.stop()


@dataclass(slots=True, kw_only=True)
class _Crowd:
    """Requests that are under way; each that is answered is followed by another."""

    claimer: ClaimWorker
    requests: Iterator[MatchRequest]
    until: float
    most: int
    flying: int = 0
    latencies: list[float] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def served(self, at_a_time: int) -> list[float]:
        """The seconds that each took."""
        self.flying = at_a_time
        for _ in range(at_a_time):
            self._ask()
        self.over.wait()
        for error in self.errors:
            raise error
        return self.latencies

    def _ask(self) -> None:
        began = time.perf_counter()
        future = self.claimer.submit(next(self.requests)).future
        future.add_done_callback(lambda done: self._answered(done, began))

    def _answered(self, done: "Future[MatchResult]", began: float) -> None:
        """In the claimer's thread."""
        now = time.perf_counter()
        if (error := done.exception()) is not None:
            self.errors.append(error)
        elif done.result().matches:
            self.latencies.append(now - began)
        if now < self.until and len(self.latencies) < self.most and not self.errors:
            self._ask()
        else:
            self.flying -= 1
            if not self.flying:
                self.over.set()


@contextmanager
def _matcher(url: str, limited: int) -> Iterator[tuple[Engine, Matcher]]:
    gc_tuning.collect_seldom()  # as each process of the service
    config = validate.parse(lhcb.tree(limited=limited))
    engine = database.connect(url)
    try:
        yield engine, Matcher(engine, lambda: config, lambda: population.NOW)
    finally:
        engine.dispose()


def _requests(offers: Sequence[Mapping[str, object]], number: int) -> Iterator[MatchRequest]:
    """Pilots of all queues, in any order."""
    draw = random.Random(number)
    read = [(number, match_request.read_resource(offer)) for number, offer in enumerate(offers)]
    while True:
        cache_key, said = draw.choice(read)
        yield MatchRequest(
            presented=said, caller=_CALLER, deadline=time.monotonic() + _PATIENCE, cache_key=cache_key
        )
