"""How processes that go on for ever are told to end."""

import signal
import threading


def on_signals() -> threading.Event:
    """An event that Ctrl-C or SIGTERM sets: what is begun comes to its end first."""
    stop = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: stop.set())
    return stop
