"""What is done to an installation: processes, servers, links, disks and clocks, one fault after the other."""

import random
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from examples.servers.starting import wait_until
from pilotage.service.auth import keys
from tests.acceptance.campaign import site
from tests.acceptance.campaign.installation import DATABASE, Disk, Installation
from tests.acceptance.campaign.network import Link, LinkState
from tests.acceptance.campaign.players import Context

#: Seconds that a fault lasts: mostly short, sometimes longer than any time-out of the installation.
_SHORT, _LONG = (0.5, 5.0), (10.0, 16.0)
#: For which a key that signs no more is good: longer than a clock is wrong.
_KEPT = timedelta(days=30)


@dataclass
class Faults:
    """The faults of a run, one after the other; their order depends on the seed only."""

    installation: Installation
    context: Context
    every: float  #: seconds between two
    kinds: frozenset[str] | None = None  #: None: all
    done: Counter[str] = field(default_factory=Counter)
    #: When a service could store nothing, from its point of view: from, until, its name.
    blind: list[tuple[float, float, str]] = field(default_factory=list)
    #: When nodes had a full disk, from and until.
    full_nodes: list[tuple[datetime, datetime]] = field(default_factory=list)
    paused: set[str] = field(default_factory=set)  #: processes that are not started again for now

    def __post_init__(self) -> None:
        self._dice = random.Random(f"{self.context.seed} faults")
        self._over = threading.Event()
        self._table = [each for each in self._list_kinds() if self.kinds is None or each[0] in self.kinds]

    def run(self) -> None:
        """Cause faults until there is an end to it: all kinds once, in any order, then all again."""
        left: list[tuple[str, Callable[[], AbstractContextManager[object]]]] = []
        while self._table and not self._over.wait(self.every * self._dice.uniform(0.5, 1.5)):
            left = left or self._dice.sample(self._table, len(self._table))
            self.cause(*left.pop())

    def end(self) -> None:
        self._over.set()

    def cause(self, name: str, act: Callable[[], AbstractContextManager[object]]) -> None:
        """One fault, from its beginning to its end."""
        seconds = self._dice.uniform(*(_LONG if self._dice.random() < 0.15 else _SHORT))
        with act() as what:
            self.context.history.add("faults", f"{name} {what} for {seconds:.1f} s", fault=True)
            time.sleep(seconds)
        self.context.history.add("faults", f"{name} {what} is over", fault=True)
        self.done[name] += 1

    def _list_kinds(self) -> Iterator[tuple[str, Callable[[], AbstractContextManager[object]]]]:
        yield "process killed", self._kill
        if not self.installation.sqlite:
            yield "matcher killed", self._kill_matcher
        yield "process suspended", self._suspend
        yield "process restarted", self._restart
        if not self.installation.earlier:  # whose schema is not two releases ahead of a process
            yield "rolling upgrade", self._change_release
        yield "all services killed", self._kill_services
        yield from [("network", self._break_link)] * 3  # there are many links
        yield "clients cut off", self._break_clients
        yield from self._list_disks()
        if self.installation.director_clock is not None:
            yield "director paused", self._pause_director
        if self.installation.hosts[0].clock is not None:
            yield "clock", self._change_clock
        if len(self.installation.hosts) > 1 and self.installation.hosts[0].clock is not None:
            yield "all clocks", self._change_clocks
        yield "memory refused", self._refuse_memory
        yield "key rotated", self._rotate_key
        yield "certificate rotated", self._rotate_certificate
        if self.installation.pooler:
            yield "pooler restarted", self._restart_pooler
        if not self.installation.pooler:  # it would have to be pointed at the replica
            yield "lost commits", self._restore if self.installation.sqlite else self._fail_over
        if not self.installation.sqlite:
            yield "database cut off", self._cut_database
            yield "database killed", self._kill_database
            yield "database restarted", self._restart_database
            yield "database suspended", self._suspend_database
            yield "database read-only", self._lock_database
            yield "Redis killed", self._kill_redis
            yield "Redis flushed", self._flush_redis
            yield "rolling restart", self._restart_all

    def _list_disks(self) -> Iterator[tuple[str, Callable[[], AbstractContextManager[object]]]]:
        if self.installation.blobs.mounted:
            yield "blob disk full", self._fill_blobs
            yield "blob disk read-only", self._lock_blobs
            yield "database disk full", self._fill_database
            yield "small disk full", self._fill_small
            yield "small disk read-only", self._lock_small
        if self.installation.node_disk.mounted and not self.installation.minimal:
            yield "node disk full", self._fill_nodes

    # Processes

    @contextmanager
    def _kill(self) -> Iterator[str]:
        process = self._dice.choice(list(self.installation.processes.values()))
        if process.is_running:
            process.kill()
        yield process.name

    @contextmanager
    def _kill_services(self) -> Iterator[str]:
        for name in self.installation.services:
            if self.installation.processes[name].is_running:
                self.installation.processes[name].kill()
        yield ""

    @contextmanager
    def _kill_matcher(self) -> Iterator[str]:
        """Kill one of several processes of a service, which starts another one."""
        service = self.installation.processes[next(iter(self.installation.services))]
        with suppress(psutil.NoSuchProcess):
            workers = [
                each
                for each in psutil.Process(service.pid).children()
                if any("spawn_main" in word for word in each.cmdline())
            ]
            if workers:
                self._dice.choice(workers).kill()
        yield f"of {service.name}"

    @contextmanager
    def _suspend(self) -> Iterator[str]:
        process = self._dice.choice(list(self.installation.processes.values()))
        suspended = process.suspend()
        yield process.name
        if suspended:
            process.resume()

    @contextmanager
    def _restart(self) -> Iterator[str]:
        process = self._dice.choice(list(self.installation.processes.values()))
        process.stop()
        yield process.name

    @contextmanager
    def _restart_all(self) -> Iterator[str]:
        for name, process in self.installation.processes.items():
            process.stop()
            self._wait_for(name)
        yield ""

    def _wait_for(self, name: str) -> None:
        """Wait for a while until a service is ready, as one does who restarts one host after the other."""
        deadline = time.monotonic() + 60
        while name in self.installation.services and time.monotonic() < deadline:
            if self.installation.is_ready(name):
                return
            time.sleep(0.2)

    @contextmanager
    def _change_release(self) -> Iterator[str]:
        """One host, or what is at sites, goes on with the next release or back."""
        self.installation.begin_upgrade()
        names = self._dice.choice(list(self._list_movable()))
        upgraded = not self.installation.is_upgraded(names[0])
        for name in names:
            self.installation.change_release(name, upgraded=upgraded)
            self._wait_for(name)
        yield f"of {', '.join(names)} {'forth' if upgraded else 'back'}"

    def _list_movable(self) -> Iterator[list[str]]:
        """Processes that may change their release together: hosts before sites, and back after them."""
        hosts = tuple(f"-{host.name}" for host in self.installation.hosts)
        groups = [[name for name in self.installation.processes if name.endswith(each)] for each in hosts]
        sites = [name for name in self.installation.processes if not name.endswith(hosts)]
        if not sites or not self.installation.is_upgraded(sites[0]):
            yield from groups
        if sites and all(self.installation.is_upgraded(group[0]) for group in groups):
            yield sites

    @contextmanager
    def _refuse_memory(self) -> Iterator[str]:
        """A process gets no more memory than it has, as in a control group that is full."""
        process = self._dice.choice(list(self.installation.processes.values()))
        limited = None
        with suppress(psutil.NoSuchProcess):
            if process.is_running:
                limited = psutil.Process(process.pid)
                most = limited.rlimit(psutil.RLIMIT_AS)
                limited.rlimit(psutil.RLIMIT_AS, (limited.memory_info().vms, most[1]))
        yield process.name
        with suppress(psutil.NoSuchProcess):
            if limited is not None:
                limited.rlimit(psutil.RLIMIT_AS, most)

    @contextmanager
    def _rotate_key(self) -> Iterator[str]:
        """New tokens are signed with a new key; processes go on with those of the last one."""
        keys.rotate(self.installation.key, keep=_KEPT, now=datetime.now(UTC))
        yield ""

    @contextmanager
    def _rotate_certificate(self) -> Iterator[str]:
        """The certificate of all services is renewed while they serve, which read it again by themselves."""
        self.installation.renew_certificate()
        yield ""

    @contextmanager
    def _pause_director(self) -> Iterator[str]:
        """A director goes on where it was, an hour later by its clock; then that is set right.

        It is suspended for longer than its reports, leases and pilots are waited for.
        """
        clock, process = self.installation.director_clock, self.installation.processes["director"]
        assert clock is not None
        suspended = process.suspend()
        clock.set(3600)
        time.sleep(_LONG[1])
        if suspended:
            process.resume()
        yield "for an hour by its clock"
        clock.set(0)

    # Networks

    @contextmanager
    def _broken(self, links: list[Link], state: LinkState) -> Iterator[None]:
        for link in links:
            self.installation.network.set_state(link, state)
        yield
        for link in links:
            self.installation.network.set_state(link, LinkState.OPEN)

    @contextmanager
    def _break_link(self) -> Iterator[str]:
        state = self._dice.choice([each for each in LinkState if each is not LinkState.OPEN])
        link = self._dice.choice(list(self.installation.network.links.values()))
        link.delay = self._dice.choice([0.05, 0.3, 1.0])
        of = link.name.rpartition(" ")[2]
        is_blind = link.name.startswith("database") and state in {LinkState.CUT, LinkState.SILENT}
        with self._noting([of] if is_blind else []), self._broken([link], state):
            yield f"{link.name} {state}"

    @contextmanager
    def _break_clients(self) -> Iterator[str]:
        state = self._dice.choice([LinkState.CUT, LinkState.NO_ANSWERS])
        with self._broken(self.installation.links_of("HTTP"), state):
            yield state

    @contextmanager
    def _cut_database(self) -> Iterator[str]:
        state = self._dice.choice([LinkState.CUT, LinkState.SILENT])
        with self._noting(), self._broken(self.installation.links_of("database"), state):
            yield state

    @contextmanager
    def _noting(self, services: list[str] | None = None) -> Iterator[None]:
        """Services, by default all, that can store nothing meanwhile."""
        began = time.monotonic()
        yield
        names = self.installation.services if services is None else services
        self.blind += [
            (began, time.monotonic(), each) for each in names if each in self.installation.services
        ]

    # Servers

    @contextmanager
    def _kill_database(self) -> Iterator[str]:
        assert self.installation.postgres is not None
        with self._noting():
            self.installation.postgres.kill()
            yield ""
        self.installation.postgres.start()

    @contextmanager
    def _restart_database(self) -> Iterator[str]:
        assert self.installation.postgres is not None
        self.installation.postgres.stop()
        self.installation.postgres.start()
        yield ""

    @contextmanager
    def _suspend_database(self) -> Iterator[str]:
        assert self.installation.postgres is not None
        self.installation.postgres.suspend()
        yield ""
        self.installation.postgres.resume()

    @contextmanager
    def _lock_database(self) -> Iterator[str]:
        """As a standby, or a server whose administrator lets nobody write."""
        assert self.installation.postgres is not None
        with self._noting():
            self.installation.postgres.set_read_only(DATABASE, read_only=True)
            yield ""
            self.installation.postgres.set_read_only(DATABASE, read_only=False)

    @contextmanager
    def _restart_pooler(self) -> Iterator[str]:
        with self._noting():
            self.installation.pooler_process.stop()
            yield ""
            self.installation.pooler_process.start()

    @contextmanager
    def _kill_redis(self) -> Iterator[str]:
        assert self.installation.redis is not None
        self.installation.redis.kill()
        yield ""
        self.installation.redis.start()

    @contextmanager
    def _flush_redis(self) -> Iterator[str]:
        assert self.installation.redis is not None
        self.installation.redis.flush()
        yield ""

    # Disks and clocks

    @contextmanager
    def _fill_database(self) -> Iterator[str]:
        # Not noted as blind: PostgreSQL goes on storing in the files that it has, as long as these last.
        self.installation.database_disk.fill()
        yield ""
        self.installation.database_disk.free()
        postgres = self.installation.postgres
        if postgres is not None:
            wait_until(lambda: postgres.is_answering or not postgres.is_running)
            if not postgres.is_running:  # it ended: nothing could be written to its log
                postgres.start()

    @contextmanager
    def _full(self, disk: Disk) -> Iterator[str]:
        disk.fill()
        yield disk.path.name
        disk.free()

    @contextmanager
    def _locked(self, disk: Disk) -> Iterator[str]:
        done = disk.set_read_only(read_only=True)
        yield f"{disk.path.name}{'' if done else ' (refused, files are open)'}"
        disk.set_read_only(read_only=False)

    @contextmanager
    def _fill_nodes(self) -> Iterator[str]:
        """Pilots and payloads can write nothing more, nor the batch system for them."""
        began = datetime.now(UTC)
        with self._full(self.installation.node_disk) as name:
            yield name
        self.full_nodes.append((began, datetime.now(UTC)))

    def _fill_blobs(self) -> AbstractContextManager[str]:
        return self._full(self.installation.blobs)

    def _lock_blobs(self) -> AbstractContextManager[str]:
        return self._locked(self.installation.blobs)

    def _fill_small(self) -> AbstractContextManager[str]:
        return self._full(self._choose_small())

    def _lock_small(self) -> AbstractContextManager[str]:
        return self._locked(self._choose_small())

    def _choose_small(self) -> Disk:
        """The disk of a home directory, or of the gateway."""
        homes = [host.home for host in self.installation.hosts]
        return self._dice.choice([*homes, self.installation.gate_disk])

    @contextmanager
    def _change_clock(self) -> Iterator[str]:
        host = self._dice.choice(self.installation.hosts)
        seconds = self._dice.choice([5, -5, 60, -60, 3600, -3600, 86_400, -86_400])
        assert host.clock is not None
        host.clock.set(seconds)
        yield f"of host {host.name} {seconds:+d} s"
        host.clock.set(0)

    @contextmanager
    def _change_clocks(self) -> Iterator[str]:
        """All hosts alike, as a wrong time server does it; database and sites have the right time."""
        seconds = self._dice.choice([60, -60, 3600, -3600, 86_400, -86_400])
        clocks = [host.clock for host in self.installation.hosts if host.clock is not None]
        for each in clocks:
            each.set(seconds)
        yield f"of all hosts {seconds:+d} s"
        for each in clocks:
            each.set(0)

    # Lost commits

    @contextmanager
    def _fail_over(self) -> Iterator[str]:
        """The primary dies, and an asynchronous replica that was behind is promoted."""
        replica = self.installation.make_replica()
        behind = time.monotonic()
        replica.fall_behind()
        yield "soon"
        with self._noting(), self._broken(self.installation.links_of("database"), LinkState.CUT):
            time.sleep(0.5)
            self.installation.fail_over(replica)
            self._lose(behind)

    @contextmanager
    def _restore(self) -> Iterator[str]:
        """The database file is lost, and an older copy restored."""
        file = self.installation.database_disk.path / "pilotage.db"
        copy = file.with_suffix(".backup")
        behind = time.monotonic()
        _copy_database(file, copy)
        yield "soon"
        [name] = self.installation.services
        self.paused.add(name)
        self.installation.processes[name].stop()
        for suffix in ("-wal", "-shm"):
            Path(f"{file}{suffix}").unlink(missing_ok=True)
        shutil.move(copy, file)
        self.installation.recover()
        self._lose(behind)
        self.paused.discard(name)

    def _lose(self, behind: float) -> None:
        """Attempts that were open count as lost, and what sites have as unknown to the service."""
        self.context.history.add_loss(behind, time.monotonic())
        self.context.limits.append((behind, time.monotonic(), site.MOST))  # that of before may hold again
        for held in list(self.context.helds):
            if held.end_answered >= behind:
                held.lost = True
        for truth in self.context.truths.values():
            truth.clear()


def _copy_database(file: Path, to: Path) -> None:
    source, target = sqlite3.connect(file), sqlite3.connect(to)
    try:
        source.backup(target)
    finally:
        source.close()
        target.close()
