"""Clients in processes of their own that all work at the same time, as often as they are told to.

They stay between two runs, so that what is compared can take turns on the same machine.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from benchmarks.results import quantile

#: Works for so many seconds, but for no more than so many jobs; the seconds that each job took.
Work = Callable[[float, int], Sequence[float]]
#: Prepares the work of the client with this number; it has to survive pickling.
Maker = Callable[[int], AbstractContextManager[Work]]
_NO_LIMIT = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the clients did together."""

    per_second: float
    latencies: Sequence[float]  #: seconds

    def ms(self, share: float) -> float:
        """Milliseconds within which this share was done."""
        return round(1000 * quantile(self.latencies, share), 2)


class Clients:
    """As many as there are connections; `all_of` makes them."""

    def __init__(self, connections: Sequence[Connection], coming: set[Connection]) -> None:
        self._connections = connections
        self._coming = coming  #: those that are not known to be ready

    def wait(self) -> None:
        """Until all are ready; who measures others waits for it, since they share the machine."""
        for connection in self._coming.intersection(self._connections):
            _received(connection)
            self._coming.remove(connection)

    def first(self, count: int) -> "Clients":
        """So many of them, which work while the others rest."""
        return Clients(self._connections[:count], self._coming)

    def run(self, seconds: float, most: int = _NO_LIMIT) -> Run:
        """Let all work for a while, or until they have done `most` jobs together."""
        self.wait()
        for connection in self._connections:
            connection.send((seconds, max(1, most // len(self._connections))))
        done: list[tuple[float, Sequence[float]]] = [_received(each) for each in self._connections]
        return Run(
            per_second=sum(len(latencies) / took for took, latencies in done),
            latencies=[each for _, latencies in done for each in latencies],
        )


class ClientFailed(RuntimeError):
    """A client ended with an error, which is on standard error."""


@contextmanager
def all_of(maker: Maker, count: int) -> Iterator[Clients]:
    """So many clients, which get ready by themselves; they are ended afterwards."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(count)]
    processes = [
        context.Process(target=_serve, args=(maker, number, theirs), daemon=True)
        for number, (_, theirs) in enumerate(pairs)
    ]
    for process, (_, theirs) in zip(processes, pairs, strict=True):
        process.start()
        theirs.close()
    ours = [each for each, _ in pairs]
    try:
        yield Clients(ours, set(ours))
    finally:
        for connection in ours:
            connection.close()
        for process in processes:
            process.join(30)


def repeated(one: Callable[[], int]) -> Work:
    """Work that does one thing after the other; `one` says how many jobs it brought."""

    def work(seconds: float, most: int) -> list[float]:
        latencies: list[float] = []
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end and len(latencies) < most:
            if brought := one():
                latencies += [time.perf_counter() - began] * brought
        return latencies

    return work


def _serve(maker: Maker, number: int, connection: Connection) -> None:
    with maker(number) as work:
        work(20.0, 500)  # what is done once for each process, and for each queue, is none of ours
        connection.send(None)
        while True:
            try:
                seconds, most = connection.recv()
            except EOFError:
                return
            began = time.perf_counter()
            latencies = work(seconds, most)
            connection.send((time.perf_counter() - began, latencies))


def _received(connection: Connection) -> tuple[float, Sequence[float]]:
    try:
        received: tuple[float, Sequence[float]] = connection.recv()
    except EOFError:
        raise ClientFailed("a client is gone; what it said is above") from None
    return received
