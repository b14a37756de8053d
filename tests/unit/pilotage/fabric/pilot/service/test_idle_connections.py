"""Connections that nobody closed are closed when the interpreter ends, without a word."""

import builtins
import types

from pilotage.fabric.pilot.service import transport


class FakeConnection:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_a_client_that_nobody_closed_says_nothing_when_the_interpreter_ends() -> None:
    connections = [FakeConnection(), FakeConnection()]
    idle = transport._IdleConnections()  # what a client keeps
    for connection in connections:
        idle.keep(connection)  # type: ignore[arg-type]
    close = transport._IdleConnections.__del__
    types.FunctionType(close.__code__, {"__builtins__": builtins})(idle)  # the module is gone by then
    assert all(connection.is_closed for connection in connections)
