"""Rates of callers over several processes, which share a real Redis."""

import pytest

from examples.servers.redis_server import RedisServer
from pilotage.service.auth import rate_limits
from pilotage.service.auth.rate_limits import RateLimiter, RequestRate, SharedRates
from pilotage.service.http_errors import TooManyRequests

RATE = RequestRate(per_second=20, burst=200)


@pytest.fixture(autouse=True)
def _redis_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(rate_limits, "_TIMEOUT", 300.0)


class Process:
    """The counting of one process of the service."""

    def __init__(self, redis_url: str) -> None:
        self.rates = RateLimiter()
        self.shared = SharedRates(self.rates, redis_url)

    def send(self, requests: int, *, now: float, subject: str = "ada") -> int:
        """Send requests; the number that is answered."""
        answered = 0
        for _ in range(requests):
            try:
                self.rates.take(subject, RATE, now=now)
            except TooManyRequests:
                continue
            answered += 1
        return answered


def test_a_caller_has_its_rate_once_however_many_processes_answer(redis_server: RedisServer) -> None:
    processes = [Process(redis_server.url) for _ in range(4)]
    answered = 0
    seconds = 60
    for now in range(seconds):
        for process in processes:
            answered += process.send(20, now=float(now))
        for process in processes:
            process.shared.exchange()
    # The rate and the bursts; without the exchange each process would answer 20 a second.
    assert answered <= RATE.per_second * seconds + len(processes) * RATE.burst + 4 * 20
    assert answered < 0.5 * len(processes) * 20 * seconds
    assert answered >= RATE.per_second * seconds * 0.8
    assert processes[0].send(1, now=60.0, subject="bob") == 1


def test_without_redis_each_process_counts_for_itself(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = Process(redis_server.url), Process(redis_server.url)
    for process in (one, other):
        process.send(50, now=0.0)
        process.shared.exchange()
    redis_server.kill()
    for now in (1.0, 2.0, 3.0):
        assert one.send(20, now=now) == 20
        one.shared.exchange()
    assert caplog.text.count("Redis is unavailable") == 1
    redis_server.start()
    one.send(20, now=4.0)
    one.shared.exchange()
    assert one.send(20, now=5.0) == 20
