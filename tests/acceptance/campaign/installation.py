"""All processes and servers of an installation, with links between them and disks and clocks of their own."""

import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from examples.servers.certificates import Authority
from examples.servers.postgres import Postgres
from examples.servers.redis_server import RedisServer
from examples.servers.starting import free_port
from pilotage.service.auth import keys
from pilotage.service.auth.callers import grant
from pilotage.service.auth.tokens import Tokens
from pilotage.service.services import utc_now
from tests.acceptance.campaign import next_release, site
from tests.acceptance.campaign.network import Link, Network
from tests.debian import FAKETIME
from tests.support import earlier_release
from tests.support.processes import PILOTAGE, Supervised
from tests.support.servers.pgbouncer import Pgbouncer

DATABASE = "campaign"
_POSTGRES_DISK_MB, _BLOB_DISK_MB, _SMALL_DISK_MB, _NODE_DISK_MB = 1500, 200, 50, 100
#: Pilots request jobs on the small disks of nodes.
_SPACE = "--least-space=5"


class Disk:
    """A directory; a small file system of its own where this machine lets us mount one."""

    def __init__(self, path: Path, megabytes: int) -> None:
        self.path = path
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0755", "tmpfs", str(path)]
        self.mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0

    def fill(self) -> None:
        """Leave not a byte free."""
        with suppress(OSError), (self.path / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(1 << 16))

    def free(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)

    def set_read_only(self, *, read_only: bool) -> bool:
        """Remount it; False: files are open for writing."""
        mode = "ro" if read_only else "rw"
        command = ["mount", "-o", f"remount,{mode}", str(self.path)]
        return subprocess.run(command, capture_output=True).returncode == 0

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)


class Clock:
    """The clock of one host."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, seconds: int) -> None:
        """Let it differ from the true time by so much, within a second."""
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{seconds:+d}\n")
        beside.rename(self._file)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }


@dataclass
class Host:
    """A host of the service: disk of its home directory, clock, and its environment."""

    name: str
    home: Disk
    clock: Clock | None
    environment: dict[str, str]


@dataclass
class Installation:
    """Two hosts with `serve`, `worker` and `agent` on PostgreSQL and Redis, or one with `up` on SQLite.

    A director, a gateway and two pilots are before them. Everything that ends is started again.
    """

    directory: Path
    network: Network
    sqlite: bool = False
    pooler: bool = False  #: pgbouncer before PostgreSQL
    minimal: bool = False  #: without director, gateway and pilots
    earlier: bool = False  #: the service of the second host is of the last release
    hosts: list[Host] = field(default_factory=list)
    processes: dict[str, Supervised] = field(default_factory=dict)
    services: dict[str, str] = field(default_factory=dict)  #: their own URLs, past all links
    postgres: Postgres | None = None
    redis: RedisServer | None = None

    def __post_init__(self) -> None:
        self.directory.chmod(0o755)
        self._stack = ExitStack()
        self._replicas = 0
        self._pooler: Pgbouncer | None = None
        self._next_release: Path | None = None
        self.key, self.ledger = self.directory / "signing-key.pem", self.directory / "ledger"
        self.ledger.touch()
        self.ledger.chmod(0o666)
        (self.directory / "authority").mkdir()
        self._authority = Authority(self.directory / "authority")
        self.tls = ssl.create_default_context(cafile=str(self._authority.certificate))
        self.certificate, self._certificate_key = self.directory / "host.pem", self.directory / "host.key"
        self._certificates = 0
        self.director_clock: Clock | None = None
        self.renew_certificate()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        self.blobs = self._add_disk("blobs", _BLOB_DISK_MB)
        self.database_disk = self._add_disk("db", _POSTGRES_DISK_MB)
        self.gate_disk = self._add_disk("gate", _SMALL_DISK_MB)
        self.node_disk = self._add_disk("nodes", _NODE_DISK_MB)
        self._stack.callback(self.stop)
        if self.sqlite:
            self._add_host("a")
            self.direct_url = f"sqlite:///{self.database_disk.path}/pilotage.db"
        else:
            self._start_servers()
            for name in "ab":
                self._add_host(name)
        self.run("db", "upgrade")
        (self.directory / "resources.yaml").write_text(site.RESOURCES)
        for host in self.hosts:
            self._add_service(host)
        ports = [int(url.rpartition(":")[2]) for url in self.services.values()]
        self.links = {each: self.network.add_link(f"HTTP of {each}", ports) for each in site.CLIENTS}
        self.wait_until_ready()
        for host in self.hosts if not self.sqlite else ():
            # The library breaks `time.sleep`, which RQ uses: its clock is right.
            self._add_process(f"worker-{host.name}", "worker", host=host, environment={"LD_PRELOAD": ""})
            self._add_process(f"agent-{host.name}", "agent", "all", host=host)
        if not self.minimal:
            self._add_site_side()

    def _start_servers(self) -> None:
        (self.database_disk.path / "p0").mkdir()
        (self.directory / "redis").mkdir()
        self.postgres = Postgres(self.database_disk.path / "p0", {"max_wal_size": "64MB"})
        self.redis = RedisServer(self.directory / "redis")
        self.postgres.start()
        self.redis.start()
        self.postgres.execute(f"CREATE DATABASE {DATABASE}")
        self.direct_url = self.postgres.url(DATABASE)
        if self.pooler:
            self._pooler = Pgbouncer(self.postgres)
            self._stack.callback(self._pooler.stop)
            self._pooler.start()

    def _add_disk(self, name: str, megabytes: int) -> Disk:
        disk = Disk(self.directory / name, megabytes)
        self._stack.callback(disk.close)
        return disk

    def _add_host(self, name: str) -> None:
        home = self._add_disk(f"home-{name}", _SMALL_DISK_MB)
        clock = Clock(self.directory / f"clock-{name}") if FAKETIME.exists() else None
        environment = {
            "PILOTAGE_HOME": str(home.path),
            "PILOTAGE_KEY": str(self.key),
            "PILOTAGE_BLOBS": str(self.blobs.path / "store"),
            **(clock.environment if clock else {}),
        }
        self.hosts.append(Host(name, home, clock, environment))

    def _add_service(self, host: Host) -> None:
        name, port = f"serve-{host.name}", free_port()
        self.services[name] = f"https://127.0.0.1:{port}"
        command = "up" if self.sqlite else "serve"
        resources = str(self.directory / "resources.yaml")
        # The first host has two matcher processes.
        several = ("--workers", "2") if not self.sqlite and host is self.hosts[0] else ()
        self._add_process(
            name,
            command,
            "--port",
            str(port),
            "--resources",
            resources,
            *("--tls-certificate", str(self.certificate), "--tls-key", str(self._certificate_key)),
            *several,
            host=host,
            environment=self._release(host),
        )

    def _release(self, host: Host) -> dict[str, str]:
        """The environment in which the service of a host is of the release that it is to be of."""
        if not self.earlier or host is self.hosts[0]:
            return {}
        directory = self.directory / "earlier-release"
        directory.mkdir()
        return {"PYTHONPATH": str(earlier_release.unpack(directory))}

    def _add_process(
        self, name: str, *arguments: str, host: Host | None = None, environment: Mapping[str, str] = {}
    ) -> None:
        own = {**self._environment(name, host), **environment} if host else dict(environment)
        process = Supervised(name, arguments, env=own, log=self.directory / f"{name}.log")
        process.start()
        self.processes[name] = process

    def _environment(self, name: str, host: Host) -> dict[str, str]:
        """Of a process of the service, with links of its own to the servers."""
        if self.postgres is None or self.redis is None:
            return {**host.environment, "PILOTAGE_DATABASE_URL": self.direct_url}
        database = self.network.add_link(f"database of {name}", [self._database_socket()])
        redis = self.network.add_link(f"Redis of {name}", [self.redis.socket])
        return {
            **host.environment,
            "PILOTAGE_DATABASE_URL": f"postgresql+psycopg://postgres@127.0.0.1:{database.port}/{DATABASE}",
            "PILOTAGE_REDIS_URL": f"redis://127.0.0.1:{redis.port}",
            **({"PILOTAGE_DATABASE_DIRECT_URL": self.direct_url} if self.pooler else {}),
        }

    @property
    def pooler_process(self) -> Pgbouncer:
        """The pooler, where there is one."""
        assert self._pooler is not None
        return self._pooler

    def _database_socket(self) -> Path:
        """Where the database, or the pooler before it, accepts connections."""
        assert self.postgres is not None
        return self._pooler.socket if self._pooler is not None else self.postgres.socket

    def renew_certificate(self) -> None:
        """Put a new certificate, and its key, where those of the services are."""
        self._certificates += 1
        made = self._authority.sign(f"host-{self._certificates}")
        for new, place in zip(made, (self.certificate, self._certificate_key), strict=True):
            new.replace(place)

    def _add_site_side(self) -> None:
        self.director_clock = Clock(self.directory / "clock-director") if FAKETIME.exists() else None
        (self.node_disk.path / "tmp").mkdir()
        node = {
            "PILOTAGE_AUTHORITIES": str(self._authority.certificate),
            "TMPDIR": str(self.node_disk.path / "tmp"),
        }
        clock = self.director_clock.environment if self.director_clock else {}
        of_director = {**clock, "TMPDIR": node["TMPDIR"]}  # of its pilots, too
        for name, content, own in (
            ("director", self._director(), of_director),
            ("gateway", self._gateway(), {}),
        ):
            file = self.directory / f"{name}.yaml"
            file.write_text(yaml.safe_dump({**content, "authorities": node["PILOTAGE_AUTHORITIES"]}))
            self._add_process(name, name, "--config", str(file), "--json", environment=own)
        for number in range(2):
            environment = {
                **node,
                "PILOTAGE_URL": self.url_of("pilots"),
                "PILOTAGE_TOKEN": self.token("pilot", queue=f"{site.REAL}/ce/q"),
            }
            place = ("--site", site.REAL, "--ce", "ce", "--queue", "q", _SPACE)
            self._add_process(f"pilot{number}", "pilot", *place, environment=environment)

    def _director(self) -> dict[str, Any]:
        token = self.directory / "director.token"
        token.write_text(self.token("director", user="dora"))
        queue = {"queue": f"{site.REAL}/ce/local", "system": "host", "batch_queue": "local"}
        return {
            "url": self.url_of("director"),
            "name": "campaign",
            "polling_time": 2,
            "pause": 2,
            "longest_pause": 5,
            "lost_after": {"listings": 2, "seconds": 4},
            "vos": {site.VO: {"token_file": str(token)}},
            "systems": {"host": self._system("nodes/batch")},
            "queues": [{**queue, "wall_time": 600, "memory": 300}],
            "pilot": ["--max-empty=2", _SPACE, "--isolation=none"],  # its jobs write into the ledger
        }

    def _gateway(self) -> dict[str, Any]:
        token = self.directory / "gateway.token"
        token.write_text(self.token("gateway", site=site.GATE))
        token.chmod(0o600)
        return {
            "url": self.url_of("gateway"),
            "name": "gate",
            "token_file": str(token),
            "vos": [site.VO],
            "directory": str(self.gate_disk.path / "state"),
            "systems": {"host": self._system("farm")},
            "queues": [
                {"queue": f"{site.GATE}/ce/q", "system": "host", "batch_queue": "local", "memory": 100}
            ],
            "polling_time": 1,
            "job_polling_time": 1,
            "beat": 1,
            "settle": 2,
            "lost_after": {"listings": 2, "seconds": 4},
        }

    def _system(self, name: str) -> dict[str, Any]:
        return {"kind": "local", "directory": str(self.directory / name), "cores": 2, "memory": 4000}

    def url_of(self, client: str) -> str:
        """The service as a kind of client reaches it: any of the hosts, over one link."""
        return f"https://127.0.0.1:{self.links[client].port}"

    def links_of(self, *beginnings: str) -> list[Link]:
        """Links by the beginning of their names."""
        return [link for name, link in self.network.links.items() if name.startswith(beginnings)]

    def token(self, role: str, **rights: str) -> str:
        """As the installation mints it, without a process for each."""
        tokens = Tokens(keys.load_or_create(self.key))
        vo = None if role in {"operator", "site_admin"} else site.VO
        return tokens.mint(grant(role=role, vo=vo, ttl=2 * 86400, **rights), now=utc_now())[0]

    def run(self, *arguments: str) -> str:
        """Run a command on the first host, with a connection of its own to the database."""
        own = {
            **os.environ,
            **self.hosts[0].environment,
            **({"PYTHONPATH": str(self._next_release)} if self._next_release else {}),
            "PILOTAGE_DATABASE_URL": self.direct_url,
        }
        done = subprocess.run(
            [str(PILOTAGE), *arguments], env=own, capture_output=True, text=True, timeout=300
        )
        if done.returncode:
            raise RuntimeError(f"pilotage {' '.join(arguments)}: {done.returncode}: {done.stderr}")
        return done.stdout

    def begin_upgrade(self) -> None:
        """Upgrade the schema to that of the next release, which processes may then have."""
        if self._next_release is None:
            self._next_release = next_release.make(self.directory / "next-release")
            self.run("db", "upgrade")

    def is_upgraded(self, name: str) -> bool:
        """Whether a process is, or will be, of the next release."""
        return "PYTHONPATH" in self.processes[name].env

    def change_release(self, name: str, *, upgraded: bool) -> None:
        """End a process; it is started again with the other release."""
        process = self.processes[name]
        if upgraded:
            process.env["PYTHONPATH"] = str(self._next_release)
        else:
            process.env.pop("PYTHONPATH", None)
        process.stop()

    def end_upgrade(self) -> None:
        """Let all processes be of the next release, if some are."""
        for name in self.processes if self._next_release else ():
            if not self.is_upgraded(name):
                self.change_release(name, upgraded=True)

    def keep_alive(self, paused: Sequence[str] = ()) -> None:
        """Start again what has ended, but processes that are to stay away."""
        for name, process in self.processes.items():
            if name not in paused:
                process.keep_alive()

    def is_ready(self, service: str, *, patience: float = 5) -> bool:
        """Whether a service states that it is ready, in so many seconds."""
        try:
            url = f"{self.services[service]}/readyz"
            answer = httpx.get(url, timeout=patience, trust_env=False, verify=self.tls)
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    def shows_certificate(self, service: str) -> bool:
        """Whether a client of a service sees the certificate that is in the file."""
        address = "127.0.0.1", int(self.services[service].rpartition(":")[2])
        seen = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(address, timeout=30))
        return seen == ssl.PEM_cert_to_DER_cert(self.certificate.read_text())

    def wait_until_ready(self, seconds: float = 600) -> None:
        deadline = time.monotonic() + seconds
        while not all(self.is_ready(each, patience=30) for each in self.services):
            self.keep_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not ready in {seconds:g} s; see the logs in {self.directory}")
            time.sleep(0.2)

    def make_replica(self) -> Postgres:
        """An asynchronous replica that is up to date."""
        assert self.postgres is not None
        self._replicas += 1
        directory = self.database_disk.path / f"p{self._replicas}"
        directory.mkdir()
        replica = Postgres(directory, {"max_wal_size": "64MB"}, primary=self.postgres)
        replica.start()
        return replica

    def fail_over(self, replica: Postgres) -> None:
        """Let the replica be the primary; the processes reach it over the same links, which are cut."""
        assert self.postgres is not None
        old = self.postgres
        old.kill()
        replica.promote()
        self.postgres, self.direct_url = replica, replica.url(DATABASE)
        for link in self.links_of("database"):
            link.targets = [replica.socket]
        self.recover()
        shutil.rmtree(old.directory / "data")

    def recover(self) -> None:
        """What an operator does after commits were lost."""
        self.run("db", "upgrade")  # the copy may be of before the upgrade
        self.run("db", "recover", "--wait", "8")

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in reversed(self.processes.values()):
            process.stop()
        for server in (self.postgres, self.redis):
            if server is not None:
                server.stop()

    def logs(self) -> Iterator[tuple[str, str]]:
        """The log of each process."""
        for name, process in self.processes.items():
            yield name, process.log.read_text(errors="replace")
