"""Two hosts of the service before three nodes of PostgreSQL, from the shipped files of `deploy`."""

import json
import os
import ssl
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from examples.servers.certificates import Authority
from examples.servers.cluster import DEPLOY, Addresses, PatroniCluster, SentinelServers, find_program
from examples.servers.starting import wait_until
from examples.servers.supervised import PILOTAGE, Supervised

HOSTS = ("a", "b")
VO = "cluster"
LIMITED, PLAIN = "LCG.Limited.org", "LCG.Plain.org"
#: Most jobs of this type that run at the limited site.
KIND, MOST = "Merge", 3
_DATABASE = "pilotage"
_RESOURCES = f"""
Resources:
  Sites:
    {LIMITED}: {{CEs: {{ce: {{Queues: {{q: {{CPUTime: 1000000}}}}}}}}}}
    {PLAIN}: {{CEs: {{ce: {{Queues: {{q: {{CPUTime: 1000000}}}}}}}}}}
Operations:
  Defaults:
    JobScheduling:
      RunningLimit: {{{LIMITED}: {{JobType: {{{KIND}: {MOST}}}}}}}
    Limits: {{RequestsPerSecond: 100000, PilotClaimsPerHour: 1000000}}
Registry:
  VO: {{{VO}: {{}}}}
"""


class ClusterInstallation:
    """Everything that runs, each process started again when it has ended, as by systemd."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.chmod(0o755)  # for nobody
        self.addresses = Addresses()
        self.cluster = PatroniCluster(directory, self.addresses)
        self.redis = SentinelServers(directory, self.addresses)
        self._resources = directory / "resources.yaml"
        self._resources.write_text(_RESOURCES)
        self._home = {host: directory / f"home-{host}" for host in HOSTS}
        self.balancers = {host: self._make_balancer(host) for host in HOSTS}
        self.processes = {
            f"{name}-{host}": self._make_process(f"{name}-{host}", host, words)
            for host in HOSTS
            for name, words in (("serve", ("serve",)), ("worker", ("worker",)), ("agent", ("agent", "all")))
        }
        self.held_down: set[str] = set()  #: balancers that are not started again now
        self._verify = ssl.create_default_context(cafile=str(directory / "ca.pem"))
        self._verify.check_hostname = False  # the names are addresses of this run

    @property
    def services(self) -> Sequence[str]:
        """The URL of each service behind its host's balancer."""
        return [f"https://{self.addresses[host]}:8443" for host in HOSTS]

    def start(self) -> None:
        """Start all, servers first, and wait until both services are ready."""
        self.redis.start()
        self.cluster.start()
        self.cluster.create_database(_DATABASE, "of-the-demo")
        for balancer in self.balancers.values():
            balancer.start()
        wait_until(lambda: self._try_run("db", "upgrade"))
        for process in self.processes.values():
            process.start()
        wait_until(lambda: all(self.is_ready(host) for host in HOSTS))

    def stop(self) -> None:
        """End all, servers last."""
        for process in self.processes.values():
            process.terminate()
        for process in (*self.processes.values(), *self.balancers.values()):
            process.stop()
        self.cluster.stop()
        self.redis.stop()

    def keep_alive(self) -> None:
        """Start what has ended."""
        self.cluster.keep_alive()
        self.redis.keep_alive()
        for process in self.processes.values():
            process.keep_alive()
        for host, balancer in self.balancers.items():
            if host not in self.held_down:
                balancer.keep_alive()

    def make_token(self, role: str, *options: str) -> str:
        """A token, made by a command."""
        return str(json.loads(self._run("token", "--role", role, "--vo", VO, *options, "--json"))["token"])

    def make_client(self, url: str, token: str) -> httpx.Client:
        """A client of the interface behind a balancer."""
        return httpx.Client(
            base_url=f"{url}/api/v1",
            headers={"Authorization": f"Bearer {token}"},
            verify=self._verify,
            trust_env=False,
            timeout=12,
        )

    def is_ready(self, host: str) -> bool:
        """Whether the service of a host is ready."""
        return bool(self.read_readiness(host).get("status") == "ok")

    def read_readiness(self, host: str) -> dict[str, object]:
        """The answer of `/readyz` of the service of a host; empty: there is none."""
        with suppress(httpx.HTTPError, ValueError):
            url = f"http://{self.addresses[host]}:8750/readyz"
            found: dict[str, object] = httpx.get(url, trust_env=False, timeout=5).json()
            return found
        return {}

    def ask(self, question: str) -> list[tuple[object, ...]]:
        """Rows of the primary, past all balancers; as long as there is none it waits."""
        return self.cluster.ask(question, _DATABASE)

    def _make_balancer(self, host: str) -> Supervised:
        """HAProxy with both shipped files: before the services, and before PostgreSQL."""
        if not (self.directory / "ca.pem").exists():
            certificate, key = Authority(self.directory).sign("balancer")
            (self.directory / "pilotage.pem").write_bytes(certificate.read_bytes() + key.read_bytes())
        own = self.addresses[host]
        service = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
        for before, after in (
            ("bind :443", f"bind {own}:8443"),
            ("/etc/haproxy/pilotage.pem", str(self.directory / "pilotage.pem")),
            *((f"{each}.example.org:8750", f"{self.addresses[each]}:8750") for each in HOSTS),
        ):
            service = service.replace(before, after)
        database = DEPLOY / "haproxy" / "postgresql.cfg"
        texts = service, self.addresses.adapt(database, "n1", **{"bind 127.0.0.1:5000": f"bind {own}:5000"})
        words = ["-db"]
        for number, text in enumerate(texts):
            file = self.directory / f"haproxy-{host}-{number}.cfg"
            file.write_text(text)
            words += ["-f", str(file)]
        return Supervised(
            f"haproxy-{host}",
            words,
            env={},
            log=self.directory / f"haproxy-{host}.log",
            program=find_program("haproxy"),
        )

    def _make_process(self, name: str, host: str, words: Sequence[str]) -> Supervised:
        self._home[host].mkdir(exist_ok=True)
        log = self.directory / f"{name}.log"
        return Supervised(name, words, env=self._environment(host), log=log)

    def _environment(self, host: str) -> dict[str, str]:
        """The settings of a host, of which `home` alone is its own."""
        own = self.addresses[host]
        return {
            "PILOTAGE_HOME": str(self._home[host]),
            "PILOTAGE_DATABASE_URL": f"postgresql://{_DATABASE}:of-the-demo@{own}:5000/{_DATABASE}",
            "PILOTAGE_REDIS_URL": self.redis.url,
            "PILOTAGE_HOST": own,
            "PILOTAGE_TRUSTED_PROXIES": '["127.0.0.0/8"]',
            "PILOTAGE_RESOURCES": str(self._resources),
            "PILOTAGE_KEY": str(self.directory / "signing-key.pem"),
            "PILOTAGE_BLOBS": str(self.directory / "blobs"),
        }

    def _run(self, *words: str) -> str:
        environment = {**os.environ, **self._environment(HOSTS[0])}
        done = subprocess.run(
            [str(PILOTAGE), *words], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"pilotage {' '.join(words)}: {done.stderr}")
        return done.stdout

    def _try_run(self, *words: str) -> bool:
        with suppress(RuntimeError):
            self._run(*words)
            return True
        return False
