"""How often running jobs send heartbeats, and how soon their pilots learn of a kill."""

from collections.abc import Mapping

import pytest

from cs_config import validate
from cs_config.tree.configuration import Configuration
from pilotage.fabric.pilot.service.heartbeat import KILL, Heartbeat
from pilotage.fabric.pilot.service.service_client import LeaseAnswer
from pilotage.service import lease_reports

MILLION = 1_000_000


def configure(**leases: float) -> Configuration:
    return validate.parse(f"Operations: {{Defaults: {{Leases: {leases}}}}}".replace("'", ""), "test.yaml")


@pytest.mark.parametrize(
    ("running", "seconds"), [(0, 20), (20_000, 20), (100_000, 100), (300_000, 300), (15 * MILLION, 300)]
)
def test_heartbeats_become_rarer_with_the_number_of_running_jobs(running: int, seconds: float) -> None:
    assert lease_reports.heartbeat_every(configure(), "cms", running) == seconds


@pytest.mark.parametrize(
    ("leases", "seconds"),
    [
        ({"StalledTime": 60, "StalledGrace": 60}, 15),
        ({"HeartbeatTime": 1000}, 450),
        ({"HeartbeatTime": 400, "LongestHeartbeatTime": 100}, 400),
        ({"StalledTime": 7200, "LongestHeartbeatTime": 1800}, 1500),
    ],
)
def test_the_interval_stays_within_what_is_configured(leases: Mapping[str, float], seconds: float) -> None:
    assert lease_reports.heartbeat_every(configure(**leases), "cms", 3 * MILLION // 2) == seconds


class KillingService:
    """A service with many running jobs that kills one at a time by a clock set by hand."""

    def __init__(self, *, kill_at: float) -> None:
        self.now = 0.0
        self.beats = 0
        self._kill_at = kill_at

    def heartbeat(self, _lease: str, _facts: Mapping[str, object]) -> LeaseAnswer:
        self.beats += 1
        every = lease_reports.heartbeat_every(configure(), "cms", 3 * MILLION // 2)
        commands = (KILL,) if self.now >= self._kill_at else ()
        return LeaseAnswer(commands=commands, heartbeat_seconds=every)


@pytest.mark.parametrize("kill_at", [0.0, 21.0, 1234.0, 3599.0])
def test_a_kill_reaches_the_pilot_within_the_longest_interval(kill_at: float) -> None:
    service = KillingService(kill_at=kill_at)
    heartbeat = Heartbeat(service, "lease", every=20.0, news=dict, clock=lambda: service.now)
    pause: float | None = 20.0
    while not heartbeat.killed.is_set():
        assert pause is not None
        service.now += pause
        pause = heartbeat._beat()
    assert service.now - kill_at <= 300
    assert service.beats <= 2 + kill_at / 300
