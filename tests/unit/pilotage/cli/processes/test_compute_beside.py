"""Work in a child process beside that of this one."""

import os
import signal
import threading
from pathlib import Path

import pytest

from examples.servers.starting import wait_until
from pilotage.cli import process_setup
from pilotage.cli.errors import CommandRefused


def test_the_result_of_another_process_is_waited_for() -> None:
    numbers = [1, 2]
    with process_setup.compute_beside(lambda: (os.getpid(), sum(numbers))) as wait:
        child, found = wait()
    assert child != os.getpid()
    assert found == 3


def _fail() -> None:
    raise CommandRefused("it is full")


def test_an_error_is_that_of_the_work() -> None:
    with process_setup.compute_beside(_fail) as wait, pytest.raises(CommandRefused, match=r"^it is full$"):
        wait()


def test_a_process_that_was_killed_is_told() -> None:
    killed = process_setup.compute_beside(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with killed as wait, pytest.raises(CommandRefused, match="ended with status -9"):
        wait()


def test_work_that_is_not_waited_for_is_interrupted_and_removes_what_it_has_made(tmp_path: Path) -> None:
    made = tmp_path / "made"

    def work() -> None:
        try:
            made.touch()  # within: the interruption comes as soon as it is there
            threading.Event().wait()
        finally:
            made.unlink()

    with process_setup.compute_beside(work):
        wait_until(made.exists)
    assert not made.exists()
