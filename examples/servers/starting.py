"""Starting servers of one's own: at ports that are free, and until they answer."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from random import SystemRandom
from typing import TypeVar

_Answer = TypeVar("_Answer")
_DRAW = SystemRandom()


def free_port() -> int:
    """A port of this host that nobody listens at now.

    It is none of those that connections going out are given: one of them could have it before its server.
    """
    while True:
        port = _DRAW.randint(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def wait_until(ask: Callable[[], _Answer], seconds: float = 300) -> _Answer:
    """The first answer that is not false or empty; the longer it takes, the longer are pauses between tries.

    Raises:
        TimeoutError: There was none in time.
    """
    began = time.monotonic()
    while not (answer := ask()):
        passed = time.monotonic() - began
        if passed > seconds:
            raise TimeoutError(f"nothing came of it in {seconds:g} s")
        time.sleep(min(max(0.05, passed / 20), 0.25))
    return answer
