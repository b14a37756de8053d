"""When a pilot may run on without answers of the service."""

from collections.abc import Mapping

import pytest

from pilotage.fabric.pilot.service.heartbeat import Heartbeat
from pilotage.fabric.pilot.service.service_client import LeaseAnswer
from pilotage.fabric.pilot.service.transport import Away, Refused
from tests.support.clocks import ManualClock

SIX_HOURS = LeaseAnswer(commands=(), heartbeat_seconds=None, run_on_seconds=21_600)


class SlowService:
    """A service that takes its time, or fails."""

    def __init__(self, clock: ManualClock) -> None:
        self.seconds = 0.0
        self.error: Exception | None = None
        self._clock = clock

    def heartbeat(self, _lease: str, _facts: Mapping[str, object]) -> LeaseAnswer:
        self._clock.now += self.seconds
        if self.error is not None:
            raise self.error
        return SIX_HOURS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def service(clock: ManualClock) -> SlowService:
    return SlowService(clock)


@pytest.fixture
def heartbeat(clock: ManualClock, service: SlowService) -> Heartbeat:
    heartbeat = Heartbeat(service, "lease", every=20.0, news=dict, started=clock.now, clock=clock)
    heartbeat.obey(SIX_HOURS)
    return heartbeat


def test_the_time_counts_from_the_last_report_that_was_answered(
    clock: ManualClock, heartbeat: Heartbeat
) -> None:
    clock.now += 21_599
    assert heartbeat.silence is None
    heartbeat._beat()
    clock.now += 21_599
    assert heartbeat.silence is None
    clock.now += 1
    assert heartbeat.silence == 21_600


def test_an_answer_counts_from_when_it_was_asked_for(
    clock: ManualClock, service: SlowService, heartbeat: Heartbeat
) -> None:
    service.seconds = 10
    heartbeat._beat()
    clock.now += 21_590
    assert heartbeat.silence == 21_600


@pytest.mark.parametrize("error", [Away("away"), Refused(403, "not_allowed", "no"), OSError()])
def test_an_answer_that_stored_nothing_is_none(
    clock: ManualClock, service: SlowService, heartbeat: Heartbeat, error: Exception
) -> None:
    service.error = error
    clock.now += 21_600
    heartbeat._beat()
    assert heartbeat.silence == 21_600


def test_without_a_limit_of_the_service_the_payload_runs_on(clock: ManualClock, heartbeat: Heartbeat) -> None:
    heartbeat.obey(LeaseAnswer(commands=(), heartbeat_seconds=None))
    clock.now += 1e9
    assert heartbeat.silence is None
