"""When a process that died is started again."""

import multiprocessing

import pytest

from pilotage.cli import process_setup
from pilotage.cli.errors import REFUSED, CommandRefused
from pilotage.cli.process_setup import ProcessSlot


class Child:
    def __init__(self) -> None:
        self.exitcode: int | None = None

    def terminate(self) -> None:
        """It goes on."""

    def join(self) -> None:
        """It goes on."""


class Nursery:
    """Starts children, and knows when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.started: list[float] = []
        self.place = ProcessSlot(self._start, now=0.0)

    def _start(self) -> Child:
        self.started.append(self.now)
        self.child = Child()
        return self.child

    def look(self, *, after: float) -> None:
        self.now += after
        self.place.look(now=self.now)

    def ends(self, status: int, *, after: float) -> None:
        self.now += after
        self.child.exitcode = status
        self.look(after=0)


def test_what_lives_is_left_alone():
    nursery = Nursery()
    nursery.look(after=1000)
    assert nursery.started == [0]


@pytest.mark.parametrize("status", [0, 1])
def test_a_first_process_that_ends_by_itself_however_slowly_it_came_up_ends_the_command(status: int):
    with pytest.raises(CommandRefused, match=rf"ended 20 s after its start, with status {status}"):
        Nursery().ends(status, after=20)


def test_one_that_had_proven_itself_or_was_killed_is_replaced_at_once(caplog: pytest.LogCaptureFixture):
    nursery = Nursery()
    nursery.ends(-9, after=1)
    nursery.ends(1, after=30)
    assert nursery.started == [0, 1, 31]
    assert "ended 30 s after its start, with status 1" in caplog.text


def test_one_that_always_breaks_rests_longer_each_time_and_not_for_ever(caplog: pytest.LogCaptureFixture):
    nursery = Nursery()
    nursery.ends(-9, after=0)
    for _ in range(9):
        nursery.ends(1, after=5)
        while nursery.place.child.exitcode is not None:
            nursery.look(after=0.5)
    pairs = zip(nursery.started[1:], nursery.started[2:], strict=False)
    assert [later - earlier - 5 for earlier, later in pairs] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert "restart in 60 s" in caplog.text
    nursery.ends(1, after=31)
    assert nursery.started[-1] == nursery.now, "it had lived well"


def _refuse() -> None:
    raise CommandRefused("the database cannot be used: connection failed")


def test_a_process_that_is_refused_while_it_starts_ends_with_one_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    child = multiprocessing.get_context("spawn").Process(target=process_setup._run, args=(_refuse,))
    child.start()
    child.join()
    assert child.exitcode == REFUSED
    assert capfd.readouterr().err == "pilotage: the database cannot be used: connection failed\n"
