import pytest

from pilotage.service.auth.rate_limits import RateLimiter, RequestRate
from pilotage.service.http_errors import TooManyRequests

RATE = RequestRate(per_second=2, burst=4)


def test_a_burst_passes_and_the_next_request_waits():
    limiter = RateLimiter()
    for _ in range(4):
        limiter.take("ada", RATE, now=100.0)
    with pytest.raises(TooManyRequests) as refused:
        limiter.take("ada", RATE, now=100.0)
    assert refused.value.retry_after == 1


def test_callers_do_not_share_a_bucket():
    limiter = RateLimiter()
    for _ in range(4):
        limiter.take("ada", RATE, now=100.0)
    limiter.take("bob", RATE, now=100.0)


def test_tokens_come_back_with_time_but_never_more_than_a_burst():
    limiter = RateLimiter()
    for _ in range(4):
        limiter.take("ada", RATE, now=100.0)
    limiter.take("ada", RATE, now=100.5)
    for _ in range(4):
        limiter.take("ada", RATE, now=10_000.0)
    with pytest.raises(TooManyRequests):
        limiter.take("ada", RATE, now=10_000.0)


def test_a_clock_that_goes_back_gives_nothing_away():
    limiter = RateLimiter()
    for _ in range(4):
        limiter.take("ada", RATE, now=100.0)
    with pytest.raises(TooManyRequests):
        limiter.take("ada", RATE, now=50.0)
