import itertools
import threading
from collections.abc import Callable

import pytest

from pilotage.fabric.pilot.service import service_client
from pilotage.fabric.pilot.service.transport import Away, Refused


class FakeStop(threading.Event):
    """Lets the time pass that somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        self.now += timeout or 0.0
        return self.is_set()


def failing(times: int, error: Exception) -> Callable[[], str]:
    left = iter(range(times))

    def request() -> str:
        if next(left, None) is None:
            return "answer"
        raise error

    return request


def test_delays_double_up_to_half_a_minute() -> None:
    found = list(itertools.islice(service_client.retry_delays(lambda: 0.5), 9))

    assert found == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_delays_are_scattered_by_half_to_either_side() -> None:
    assert next(service_client.retry_delays(lambda: 0.0)) == 0.25
    assert next(service_client.retry_delays(lambda: 1.0)) == 0.75


def retry(request: Callable[[], str], stop: FakeStop) -> str:
    return service_client.retry_while_away(request, patience=60, stop=stop, clock=lambda: stop.now)


def test_a_request_is_repeated_until_it_is_answered() -> None:
    stop = FakeStop()
    assert retry(failing(3, Away("gone")), stop) == "answer"
    assert len(stop.waits) == 3


def test_the_last_failure_is_raised_when_patience_is_over() -> None:
    stop = FakeStop()
    with pytest.raises(Away, match="gone"):
        retry(failing(1000, Away("gone")), stop)
    assert stop.now <= 60


@pytest.mark.parametrize(("stated", "waited"), [(7, 7), (1e6, 30)])
def test_the_service_says_when_to_come_back_but_cannot_stop_us_for_long(stated: float, waited: float) -> None:
    stop = FakeStop()
    retry(failing(1, Away("busy", retry_after=stated)), stop)
    assert stop.waits == [waited]


def test_a_refusal_is_an_answer() -> None:
    with pytest.raises(Refused):
        retry(failing(9, Refused(403, "not_allowed", "no")), FakeStop())


def test_a_pilot_that_has_to_end_tries_once_only() -> None:
    stop = FakeStop()
    stop.set()
    with pytest.raises(Away):
        retry(failing(1, Away("gone")), stop)
    assert stop.waits == []
