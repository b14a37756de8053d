"""Starting servers of one's own: at ports that are free, and until they answer."""

import os
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import SystemRandom
from typing import TypeVar

_Answer = TypeVar("_Answer")
_DRAW = SystemRandom()

#: The open file of each reservation: of what this process was given last.
_RESERVATIONS: deque[int] = deque()


def free_port() -> int:
    """A port of this host for a server of one's own: nobody has it, and nobody else is given it.

    It is none of those that connections going out are given: one of them could have it before its server.
    A connection that a server has just closed keeps its port as well, and not every server takes such a port.
    """
    while True:
        port = _DRAW.randint(10_000, 32_000)
        with suppress(OSError), socket.socket() as anywhere:
            anywhere.bind(("", port))
            reserve(f"port-{port}")
            return port


def reserve(name: str) -> None:
    """Keep all others on this host from being given something of this name, such as a port.

    Raises:
        OSError: Another has been given it.
    """
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0pilotage-{name}")  # no file: the kernel takes it back when the process ends
    except OSError:
        reservation.close()
        raise
    _RESERVATIONS.append(reservation.detach())
    if len(_RESERVATIONS) > 100:
        os.close(_RESERVATIONS.popleft())  # its server has the port by now, or has ended


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
