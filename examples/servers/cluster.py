"""Three PostgreSQL under Patroni, three etcd elsewhere, and Redis with Sentinels, from the shipped files.

Each host has a loopback address of its own, so that only the addresses in the files are changed, and the
ports are those that operators have. Nothing needs root; started by root, the servers run as nobody.
"""

import itertools
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg

from examples.servers import patroni_package
from examples.servers.debian import PATH, Suite
from examples.servers.starting import reserve, wait_until
from examples.servers.supervised import Supervised, kill_all, suspend_all

SUITE = Suite(
    about="PostgreSQL under Patroni and etcd, HAProxy, and Redis with Sentinels",
    programs=("etcd", "haproxy", "redis-server", "redis-sentinel", "/usr/bin/python3"),
    packages=("postgresql", "etcd-server", "haproxy", "redis-server", "redis-sentinel", "python3-venv"),
    files=("/usr/lib/postgresql/*/bin/postgres",),
)
DEPLOY = Path(__file__).parents[2] / "deploy"
NODES = ("n1", "n2", "n3")  #: hosts of PostgreSQL
VOTERS = ("a", "b", "c")  #: hosts of etcd; the service runs on the first two
MASTER = "pilotage"
#: As in the shipped files.
_SHIPPED = {
    name: f"192.0.2.{ten}{number}"
    for ten, names in ((1, NODES), (2, VOTERS))
    for number, name in enumerate(names, 1)
}
PASSWORD = "change-me-1"  # noqa: S105 - of the superuser, in the shipped example
_NOBODY = 65534
_DRAW = random.SystemRandom()
#: Seconds for an answer of a server, which may be frozen, on a busy machine.
_PATIENCE = 10


def find_program(name: str) -> str:
    """The path of a program of Debian."""
    found = shutil.which(name, path=PATH)
    if found is None:
        raise RuntimeError(f"there is no {name} on this host")
    return found


def postgresql_programs() -> Path:
    """The directory of the newest PostgreSQL of Debian."""
    return max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))


class Addresses:
    """A network of loopback addresses, in the place of the example's in the shipped files."""

    def __init__(self) -> None:
        while True:
            self._network = f"127.{_DRAW.randint(1, 254)}.{_DRAW.randint(0, 254)}"
            with suppress(OSError):
                reserve(f"network-{self._network}")
                return

    def __getitem__(self, name: str) -> str:
        """Of a host."""
        return f"{self._network}.{_SHIPPED[name].rpartition('.')[2]}"

    def adapt(self, file: Path, name: str, **more: str) -> str:
        """A shipped file for one of its hosts, with its addresses, and `more` replaced as well."""
        text = file.read_text(encoding="utf-8")
        first = NODES[0] if name in NODES else VOTERS[0]
        exchanged = {
            first: name,
            name: first,
            _SHIPPED[first]: _SHIPPED[name],
            _SHIPPED[name]: _SHIPPED[first],
        }
        names = "|".join(map(re.escape, exchanged))
        text = re.sub(rf"\b(?:{names})\b", lambda found: exchanged[found[0]], text)
        for each, shipped in _SHIPPED.items():
            text = text.replace(shipped, self[each])
        for before, after in more.items():
            if before not in text:
                raise ValueError(f"{file} has no {before}")
            text = text.replace(before, after)
        return text


class Node:
    """One of the three hosts of PostgreSQL, which its Patroni keeps."""

    def __init__(
        self, name: str, directory: Path, addresses: Addresses, patroni: Path, user: int | None
    ) -> None:
        self.name = name
        self.directory = directory  #: with its data in `data`, and with its sockets
        self.user = user
        self.address = addresses[name]
        self._patroni_log = directory / "patroni.log"
        directory.mkdir()
        self.file = file = directory / "patroni.yaml"
        paths = {
            "/var/lib/postgresql/15/pilotage": str(directory / "data"),
            "/usr/lib/postgresql/15/bin": str(postgresql_programs()),
            "/var/lib/postgresql/.pgpass-patroni": str(directory / "pgpass"),
            "/var/run/postgresql": str(directory),
            "192.0.2.0/24": "127.0.0.0/8",
            "local all postgres peer": "local all postgres scram-sha-256",
        }
        file.write_text(addresses.adapt(DEPLOY / "patroni" / "patroni.yaml", name, **paths))
        if user is not None:
            for each in (directory, file):
                os.chown(each, user, user)
        self.patroni = Supervised(
            f"patroni-{name}",
            ("-m", "patroni", str(file)),
            env={"HOME": str(directory)},
            log=self._patroni_log,
            program=patroni / "bin" / "python",
            user=user,
        )
        self._data = directory / "data"
        self.is_down = False

    def start(self) -> None:
        """Switch the host on."""
        self.patroni.start()
        self.is_down = False

    def keep_alive(self) -> None:
        """Start what has ended, as systemd would."""
        if not self.is_down:
            self.patroni.keep_alive()

    def kill(self) -> None:
        """Switch the host off at once."""
        self.is_down = True
        psutil.wait_procs(kill_all(self.processes), timeout=300)

    def suspend(self) -> None:
        """Freeze all its processes, as a virtual machine that is moved."""
        self.is_down = True
        suspend_all(self.processes)

    def resume(self) -> None:
        """Let it go on where it was."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.resume()
        self.is_down = False

    def stop(self) -> None:
        """End all of it; PostgreSQL ends with its Patroni."""
        self.is_down = True
        self.patroni.stop()
        for process in self.server_processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def processes(self) -> list[psutil.Process]:
        """Patroni, and PostgreSQL with its sessions."""
        return [*_of(self.patroni), *self.server_processes()]

    def server_processes(self) -> list[psutil.Process]:
        """PostgreSQL with its sessions, which outlives its Patroni."""
        try:
            number = int((self._data / "postmaster.pid").read_text().split()[0])
            server = psutil.Process(number)
            if str(self._data) not in " ".join(server.cmdline()):
                return []
            return [server, *server.children(recursive=True)]
        except (OSError, ValueError, IndexError, psutil.Error):
            return []

    def receivers(self) -> list[psutil.Process]:
        """The processes by which a standby receives from its primary."""
        found = []
        for process in self.server_processes():
            with suppress(psutil.Error):
                if "walreceiver" in " ".join(process.cmdline()):
                    found.append(process)
        return found


class EtcdServers:
    """An etcd on each of three hosts, none of which has PostgreSQL."""

    def __init__(self, directory: Path, addresses: Addresses, user: int | None) -> None:
        self._addresses = addresses
        self.servers: dict[str, Supervised] = {}
        for name in VOTERS:
            data = directory / f"etcd-{name}"
            data.mkdir()
            if user is not None:
                os.chown(data, user, user)
            settings = addresses.adapt(
                DEPLOY / "etcd" / "etcd.env", name, **{"/var/lib/etcd/pilotage": str(data / "data")}
            )
            self.servers[name] = Supervised(
                f"etcd-{name}",
                (),
                env=_parse_environment(settings),
                log=directory / f"etcd-{name}.log",
                program=find_program("etcd"),
                user=user,
            )

    def find_leader(self) -> Supervised | None:
        """The one that leads the others; None: none does now."""
        for name, server in self.servers.items():
            with suppress(httpx.HTTPError, KeyError, ValueError):
                url = f"http://{self._addresses[name]}:2379/v3/maintenance/status"
                status = httpx.post(url, json={}, trust_env=False, timeout=_PATIENCE).json()
                if status["leader"] == status["header"]["member_id"]:
                    return server
        return None

    def wait_for_leader(self) -> Supervised:
        """The one that leads the others, as soon as one does."""
        leader = wait_until(self.find_leader)
        assert leader is not None
        return leader


class PatroniCluster:
    """The three nodes and their etcd; use it with `start` and `stop`."""

    def __init__(self, directory: Path, addresses: Addresses) -> None:
        self._addresses = addresses
        self.user = None if os.geteuid() else _NOBODY  # PostgreSQL refuses root
        patroni = patroni_package.install()
        self._control = patroni / "bin" / "patronictl"
        if self.user is not None:  # who may not reach this environment: give it a copy
            patroni = shutil.copytree(patroni, directory / "patroni", symlinks=True)
        self.etcd = EtcdServers(directory, addresses, self.user)
        self.nodes = {name: Node(name, directory / name, addresses, patroni, self.user) for name in NODES}

    def start(self) -> None:
        """Start all, and wait for a primary with a synchronous standby."""
        for server in self.etcd.servers.values():
            server.start()
        for node in self.nodes.values():
            node.start()
        wait_until(self.is_whole)

    def stop(self) -> None:
        """End all nodes, standbys first: nobody is promoted any more."""
        primary = self.find_primary()
        for node in sorted(self.nodes.values(), key=lambda each: each is primary):
            node.stop()
        for server in self.etcd.servers.values():
            server.stop()

    def keep_alive(self) -> None:
        """Start what has ended by itself."""
        for server in self.etcd.servers.values():
            server.keep_alive()
        for node in self.nodes.values():
            node.keep_alive()

    def members(self) -> Mapping[str, Mapping[str, Any]]:
        """What Patroni tells about its members; empty: no node answers."""
        for node in self.nodes.values():
            if node.is_down:
                continue
            with suppress(httpx.HTTPError, ValueError):
                url = f"http://{node.address}:8008/cluster"
                answer = httpx.get(url, trust_env=False, timeout=_PATIENCE).json()
                return {member["name"]: member for member in answer.get("members", ())}
        return {}

    def find_primary(self) -> Node | None:
        """The node that holds the leader key and is promoted; None: there is none now."""
        for name, member in self.members().items():
            node = self.nodes[name]
            if member.get("role") == "leader" and not node.is_down and self._is_promoted(node):
                return node
        return None

    def _is_promoted(self, node: Node) -> bool:
        """Whether a node is no standby any more: with the leader key it is one until all is replayed."""
        with suppress(psycopg.OperationalError), closing(psycopg.connect(self.direct(node))) as connection:
            return connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
        return False

    def wait_for_primary(self) -> Node:
        """The node that holds the leader key and is promoted, as soon as one is."""
        primary = wait_until(self.find_primary)
        assert primary is not None
        return primary

    def is_whole(self) -> bool:
        """Whether there is a primary, a synchronous standby, and a third one that follows."""
        members = self.members().values()
        roles = sorted(member.get("role", "") for member in members)
        states = {member.get("state") for member in members}
        return roles == ["leader", "replica", "sync_standby"] and states <= {"running", "streaming"}

    def control(self, *words: str, typed: Sequence[str] = ()) -> str:
        """What `patronictl` prints, to which `typed` answers line by line."""
        command = [str(self._control), "-c", str(self.nodes[NODES[0]].file), *words]
        done = subprocess.run(command, input="\n".join(typed), capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"{command} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def switch_over(self) -> None:
        """Let Patroni make another server the primary."""
        if (primary := self.find_primary()) is not None:
            url = f"http://{primary.address}:8008/switchover"
            with suppress(httpx.HTTPError):
                httpx.post(url, json={"leader": primary.name}, trust_env=False, timeout=60)

    def create_database(self, name: str, password: str) -> None:
        """A role with a database of the same name."""
        with suppress(psycopg.errors.DuplicateObject):
            self.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        with suppress(psycopg.errors.DuplicateDatabase):
            self.execute(f"CREATE DATABASE {name} OWNER {name}")

    def ask(self, question: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Rows of the primary, past all balancers; a primary that is lost meanwhile is waited for."""
        [rows] = wait_until(lambda: self._try(question, database))
        return rows

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Have the primary of then acknowledge a statement; it may be carried out more than once."""
        wait_until(lambda: self._try(statement, database))

    def _try(self, statement: str, database: str) -> list[list[tuple[object, ...]]]:
        """Its rows as the only item; none: the primary was lost, and the statement may have taken effect."""
        url = self.direct(self.wait_for_primary(), database)
        with (
            suppress(psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction),
            closing(psycopg.connect(url, autocommit=True)) as connection,
        ):
            done = connection.execute(statement)
            return [done.fetchall() if done.description else []]
        return []

    def direct(self, node: Node, database: str = "postgres") -> str:
        """The connection of the superuser to a node, past all balancers."""
        return f"postgresql://postgres:{PASSWORD}@{node.address}:5432/{database}?connect_timeout=5"


class SentinelServers:
    """A Redis on two nodes and a Sentinel on each of three."""

    def __init__(self, directory: Path, addresses: Addresses, programs: Sequence[str] | None = None) -> None:
        """`programs`: the server and the Sentinel; by default those of Debian."""
        self._addresses = addresses
        server, sentinel = programs or (find_program("redis-server"), find_program("redis-sentinel"))
        self.servers: dict[str, Supervised] = {}
        self.sentinels: dict[str, Supervised] = {}
        for name in NODES[:2]:
            home = directory / f"redis-{name}"
            home.mkdir()
            words = ["--bind", addresses[name], "--port", "6379", "--dir", str(home), "--save", ""]
            words += ["--replica-announce-ip", addresses[name]]
            if name != NODES[0]:
                words += ["--replicaof", addresses[NODES[0]], "6379"]
            self.servers[name] = Supervised(
                f"redis-{name}", words, env={}, log=directory / f"redis-{name}.log", program=server
            )
        for name in NODES:
            home = directory / f"sentinel-{name}"
            home.mkdir()
            file = home / "sentinel.conf"
            file.write_text(_of_sentinel(addresses, name))
            self.sentinels[name] = Supervised(
                f"sentinel-{name}",
                (str(file), "--sentinel", "--dir", str(home)),
                env={},
                log=directory / f"sentinel-{name}.log",
                program=sentinel,
            )

    @property
    def url(self) -> str:
        """As a setting of ours."""
        hosts = ",".join(f"{self._addresses[name]}:26379" for name in NODES)
        return f"redis+sentinel://{hosts}/{MASTER}"

    def start(self) -> None:
        """Start them, and wait until each Sentinel knows the replica and the other Sentinels.

        One that is elected and knows no replica promotes none, and the next election comes a minute later.
        """
        for process in (*self.servers.values(), *self.sentinels.values()):
            process.start()
        wait_until(lambda: all(map(self._knows_all, NODES)))

    def keep_alive(self) -> None:
        """Start what has ended by itself."""
        for process in (*self.servers.values(), *self.sentinels.values()):
            process.keep_alive()

    def stop(self) -> None:
        """End them."""
        for process in (*self.sentinels.values(), *self.servers.values()):
            process.stop()

    def find_master(self) -> str | None:
        """The node whose Redis is the master, as the first Sentinel that answers has it; None: none does."""
        import redis

        for name in NODES:
            with (
                suppress(redis.RedisError),
                redis.Redis(self._addresses[name], 26379, socket_timeout=2, decode_responses=True) as client,
            ):
                address, _ = client.sentinel_get_master_addr_by_name(MASTER)
                return next(each for each in NODES if self._addresses[each] == address)
        return None

    def _knows_all(self, name: str) -> bool:
        """Whether the Sentinel of a node knows the replica and the other Sentinels."""
        import redis

        with (
            suppress(redis.RedisError),
            redis.Redis(self._addresses[name], 26379, socket_timeout=2, decode_responses=True) as client,
        ):
            state = client.sentinel_master(MASTER)
            return int(state["num-slaves"]) >= 1 and int(state["num-other-sentinels"]) >= len(NODES) - 1
        return False


def _of_sentinel(addresses: Addresses, name: str) -> str:
    """The shipped file for the Sentinel of a node; it follows the master of the first one."""
    file = DEPLOY / "redis" / "sentinel.conf"
    text = addresses.adapt(file, NODES[0])
    for word in ("bind", "sentinel announce-ip"):
        text = text.replace(f"{word} {addresses[NODES[0]]}", f"{word} {addresses[name]}")
    return text


def _parse_environment(text: str) -> dict[str, str]:
    lines = (line.partition("=") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in lines}


def _of(supervised: Supervised) -> Iterator[psutil.Process]:
    """A supervised process with its children, if it runs."""
    if not supervised.is_running:
        return
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(supervised.pid)
        yield from itertools.chain([process], process.children(recursive=True))
