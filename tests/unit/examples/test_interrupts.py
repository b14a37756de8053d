"""Ctrl-C at a demonstration, while it starts a process."""

import signal

import pytest

from examples.demo.installation import uninterrupted


def test_ctrl_c_waits_until_the_process_is_known() -> None:
    started: list[str] = []

    def start() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            started.append("the process")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        start()
    assert started == ["the process"]
    assert signal.getsignal(signal.SIGINT) is before
