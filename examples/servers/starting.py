"""Starting servers of one's own: at ports that are free, and until they answer."""

import socket
import time
from collections.abc import Callable
from typing import TypeVar

_Answer = TypeVar("_Answer")


def free_port() -> int:
    """A port of this host that nobody listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def wait_until(ask: Callable[[], _Answer], seconds: float = 90) -> _Answer:
    """The first answer that is not false or empty.

    Raises:
        TimeoutError: There was none in time.
    """
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing came of it in {seconds:g} s")
        time.sleep(0.05)
    return answer
