"""Long work beside requests takes a tenth of a core, and does not keep a process from its end."""

import threading
import time

import pytest

from matcher import pauses
from matcher.pauses import Pauses


class Ending(threading.Event):
    """Says how long it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(round(timeout or 0, 6))
        return False


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of processor time of the thread: the last of these."""
    seconds = [7.0]
    monkeypatch.setattr(time, "thread_time", lambda: seconds[-1])
    return seconds


def test_nine_times_as_long_as_it_worked_it_waits(used: list[float]) -> None:
    ending = Ending()
    pause = Pauses(ending)
    for now in (7.001, 7.004, 7.02, 7.021, 7.121):
        used.append(now)
        pause()
    assert ending.waits == [0.18, 0.909]


def test_after_twenty_seconds_there_are_no_more_pauses(
    used: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[-1])
    ending = Ending()
    pause = Pauses(ending)
    for at in (119.0, 121.0):
        now.append(at)
        used.append(used[-1] + 1)
        pause()
    assert ending.waits == [1.0, 0.0]


def test_a_pause_ends_with_the_process(used: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "_LONGEST", 1e6)
    ending = threading.Event()
    pause = Pauses(ending)
    used.append(1000.0)
    thread = threading.Thread(target=pause, daemon=True)
    thread.start()
    ending.set()
    thread.join(300)
    assert not thread.is_alive()
