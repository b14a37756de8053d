"""Faults of hosts, servers and links, each from its beginning to its end."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from random import Random

import psutil

from examples.cluster.installation import HOSTS, ClusterInstallation
from examples.servers.starting import wait_until

#: Seconds that a host is off or frozen: more than the time after which another server takes over.
_LONG = 32.0
#: Seconds for what is noticed at once.
_SHORT = 6.0
#: Seconds until all nodes have joined again, on a slow machine too.
_PATIENCE = 300.0


class ClusterFaults:
    """Causes one fault after the other, each of which begins when all nodes have joined again."""

    def __init__(self, installation: ClusterInstallation, seed: int, tell: Callable[[str], None]) -> None:
        self._installation = installation
        self._cluster = installation.cluster
        self._dice = Random(f"{seed} faults")
        self._tell = tell
        self.done: Counter[str] = Counter()
        self.times: list[tuple[float, str]] = []  #: when each began
        self.flaws: list[str] = []

    @property
    def kinds(self) -> Mapping[str, Callable[[], AbstractContextManager[float]]]:
        """Each by its name; what it yields are the seconds that it lasts."""
        return {
            "host of the primary killed": self._kill_host,
            "switchover": self._switch_over,
            "host of the primary frozen": self._freeze,
            "replication cut": self._cut_replication,
            "replication cut, then the host killed": self._cut_and_kill,
            "PostgreSQL of the primary killed": self._kill_server,
            "leader of etcd killed": self._kill_etcd,
            "leader of etcd frozen": self._freeze_etcd,
            "master of Redis killed": self._kill_redis,
            "both balancers killed": self._kill_balancers,
            "a host of the service killed": self._kill_service,
        }

    def run(self, is_over: Callable[[], bool], names: frozenset[str] | None = None) -> None:
        """Cause faults in a random order, each once before any comes again, until it is over."""
        chosen = [name for name in self.kinds if names is None or name in names]
        left: list[str] = []
        while not is_over():
            left = left or self._dice.sample(chosen, len(chosen))
            self._cause(name := left.pop())
            try:
                wait_until(self._cluster.is_whole, _PATIENCE)
            except TimeoutError:
                members = dict(self._cluster.members())
                self.flaws.append(f"{name}: not all nodes have joined again in {_PATIENCE:g} s: {members}")
                return
            time.sleep(self._dice.uniform(2, 5))

    def _cause(self, name: str) -> None:
        self._tell(name)
        self.times.append((time.monotonic(), name))
        with self.kinds[name]() as seconds:
            time.sleep(seconds)
        self.done[name] += 1

    @contextmanager
    def _kill_host(self) -> Iterator[float]:
        primary = self._cluster.wait_for_primary()
        primary.kill()
        yield _LONG
        primary.start()

    @contextmanager
    def _freeze(self) -> Iterator[float]:
        primary = self._cluster.wait_for_primary()
        primary.suspend()
        yield _LONG
        primary.resume()

    @contextmanager
    def _switch_over(self) -> Iterator[float]:
        self._cluster.switch_over()
        yield _SHORT

    @contextmanager
    def _kill_server(self) -> Iterator[float]:
        primary = self._cluster.wait_for_primary()
        for process in primary.server_processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        yield _SHORT

    @contextmanager
    def _cut_replication(self) -> Iterator[float]:
        """The standbys receive nothing: their receivers are stopped, whichever are started meanwhile."""
        stopped: list[psutil.Process] = []
        over = threading.Event()

        def cut() -> None:
            while not over.wait(0.2):
                for node in self._cluster.nodes.values():
                    for process in node.receivers():
                        with suppress(psutil.NoSuchProcess):
                            process.suspend()
                            stopped.append(process)

        thread = threading.Thread(target=cut, daemon=True)
        thread.start()
        yield 2.5 * _SHORT
        over.set()
        thread.join()
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    @contextmanager
    def _cut_and_kill(self) -> Iterator[float]:
        """The usual order of a real failure: the link breaks, and some seconds later its host is gone."""
        primary = self._cluster.wait_for_primary()
        with self._cut_replication():
            time.sleep(_SHORT / 2)  # standbys are given up later than that
            primary.kill()
        yield _LONG
        primary.start()

    @contextmanager
    def _kill_etcd(self) -> Iterator[float]:
        if (leader := self._cluster.etcd.find_leader()) is not None:
            leader.kill()
        yield _SHORT

    @contextmanager
    def _freeze_etcd(self) -> Iterator[float]:
        """When it goes on it may revoke the leases of others, also that of the leader key."""
        leader = self._cluster.etcd.wait_for_leader()
        leader.suspend()
        yield _LONG
        leader.resume()

    @contextmanager
    def _kill_redis(self) -> Iterator[float]:
        if (master := self._installation.redis.find_master()) is not None:
            self._installation.redis.servers[master].kill()
        yield 2 * _SHORT

    @contextmanager
    def _kill_balancers(self) -> Iterator[float]:
        self._installation.held_down |= set(HOSTS)
        for balancer in self._installation.balancers.values():
            if balancer.is_running:
                balancer.kill()
        yield _SHORT
        self._installation.held_down.clear()

    @contextmanager
    def _kill_service(self) -> Iterator[float]:
        host = self._dice.choice(HOSTS)
        for name, process in self._installation.processes.items():
            if name.endswith(f"-{host}") and process.is_running:
                process.kill()
        self._cluster.etcd.servers[host].kill()
        yield _SHORT
