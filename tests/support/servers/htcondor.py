"""A private pool of HTCondor for the tests: a real one, on 127.0.0.1 only, entered by token as a CE is.

Debian 12 has no HTCondor: the packages of Debian 13 lie unpacked in a directory of their own, which is the
root of the daemons. They are ended with their namespace of processes. It takes root.
"""

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Self

import htcondor2
import psutil

from examples.servers.certificates import Authority
from examples.servers.debian import Suite, aside
from examples.servers.starting import free_port, wait_until
from pilotage.fabric.batch.htcondor import RemoteSchedd
from tests.support.servers.grid_engine import UserShell
from tests.support.servers.token_issuer import TokenIssuer

SUITE = Suite(
    about="the batch system HTCondor, entered by token",
    programs=("unshare", "mount", "chroot"),
    packages=("util-linux", "mount"),
    release="trixie",
    beside=("condor", "dash", "coreutils", "base-files", "sed", "grep"),
    needs_root=True,
)
#: The account of its daemons and of all jobs: nobody's.
_ACCOUNT = 65_534
_CONFIGURATION = """\
RELEASE_DIR = /usr
LIB = /usr/lib/condor
LIBEXEC = /usr/libexec/condor
LOCAL_DIR = {directory}
LOCAL_CONFIG_DIR =
REQUIRE_LOCAL_CONFIG_FILE = false
LOG = {directory}/log
SPOOL = {directory}/spool
EXECUTE = {directory}/execute
RUN = {directory}/run
LOCK = {directory}/lock
DAEMON_SOCKET_DIR = {directory}/sock
DAEMON_LIST = MASTER COLLECTOR NEGOTIATOR SCHEDD STARTD
COLLECTOR_HOST = localhost:{port}
SHARED_PORT_PORT = {port}
NETWORK_INTERFACE = 127.0.0.1
BIND_ALL_INTERFACES = false
NETWORK_HOSTNAME = localhost
SCHEDD_NAME = ce@
NUM_CPUS = 8
MEMORY = 16000
SLOT_TYPE_1 = 100%
SLOT_TYPE_1_PARTITIONABLE = true
NUM_SLOTS_TYPE_1 = 1
START = true
RunBenchmarks = 0
START_BACKFILL = false
JAVA =
DOCKER =
SINGULARITY =
USE_PROCD = false
ENABLE_URL_TRANSFERS = false
FILETRANSFER_PLUGINS =
NEGOTIATOR_INTERVAL = 1
NEGOTIATOR_MIN_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 1
SCHEDD_MIN_INTERVAL = 1
PERIODIC_EXPR_INTERVAL = 1
UPDATE_INTERVAL = 5
SHADOW_QUEUE_UPDATE_INTERVAL = 1
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_DAEMON = *
ALLOW_NEGOTIATOR = *
ALLOW_ADMINISTRATOR = *
SEC_DEFAULT_AUTHENTICATION_METHODS = FS, SCITOKENS
SEC_CLIENT_AUTHENTICATION_METHODS = FS
SEC_SCITOKENS_ALLOW_FOREIGN_TOKEN_TYPES = true
CERTIFICATE_MAPFILE = {directory}/mapfile
CERTIFICATE_MAPFILE_ASSUME_HASH_KEYS = false
AUTH_SSL_SERVER_CERTFILE = {certificate}
AUTH_SSL_SERVER_KEYFILE = {key}
AUTH_SSL_SERVER_CAFILE = {authorities}
SCITOKENS_SERVER_AUDIENCE = {audience}
"""
_START = """\
set -e
mount --bind "$1" /mnt
mount -t proc proc /mnt/proc
for each in dev sys tmp; do mount --rbind /$each /mnt/$each; done
for each in passwd group hosts; do mount --bind "$2/$each" /mnt/etc/$each; done
mount --bind "$2/ca.pem" /mnt/etc/ssl/certs/ca-certificates.crt
exec chroot --userspec={account}:{account} /mnt env -i PATH=/usr/bin:/usr/sbin HOME="$2/home" \\
    CONDOR_CONFIG="$2/condor_config" /usr/sbin/condor_master -f
"""


class HTCondorPool:
    """A pool with one machine of eight cores; its files lie in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.collector = f"localhost:{self.port}"
        self._authority = Authority(directory)
        self.authorities = self._authority.certificate
        self._issuer = TokenIssuer(*self._authority.sign("localhost"))
        self._process: subprocess.Popen[bytes] | None = None
        self._lay_out()

    def __enter__(self) -> Self:
        self._issuer.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._issuer.stop()

    def start(self) -> None:
        """Start the daemons; jobs of before are there again."""
        with (self.directory / "out").open("ab") as out:
            self._process = subprocess.Popen(
                [
                    *("unshare", "--mount", "--pid", "--fork", "sh", "-c"),
                    *(_START.format(account=_ACCOUNT), "sh", aside(SUITE.release), self.directory),
                ],
                stdout=out,
                stderr=out,
            )
        wait_until(self._is_complete)

    def stop(self) -> None:
        """End all daemons and jobs: the first process of their namespace."""
        if self._process is not None:
            for each in psutil.Process(self._process.pid).children():
                each.kill()
            self._process.wait()
            self._process = None

    def token(self, subject: str = "pilots", **changed: object) -> Path:
        """A file with a token for an account of the pool."""
        file = self.directory / f"token-{len(list(self.directory.glob('token-*')))}"
        file.touch(mode=0o600)
        scopes = "condor:/READ condor:/WRITE compute.read compute.create compute.cancel compute.modify"
        file.write_text(self._issuer.token(subject, self.collector, **{"scope": scopes, **changed}))
        return file

    @property
    def schedd(self) -> RemoteSchedd:
        """Its queue manager as a remote one."""
        return RemoteSchedd(
            name="ce@", collector=self.collector, token_file=self.token(), authorities=self.authorities
        )

    @property
    def shell(self) -> UserShell:
        """A shell on its host, with the account of its jobs and the Python of that host."""
        assert self._process is not None
        [master] = psutil.Process(self._process.pid).children()
        enter = ("nsenter", f"--target={master.pid}", "--mount", "--pid", "--root")
        drop = (f"--setuid={_ACCOUNT}", f"--setgid={_ACCOUNT}")
        home = str(self.directory / "home")
        words = (f"HOME={home}", f"CONDOR_CONFIG={self.directory}/condor_config", "PATH=/usr/bin")
        return UserShell(prefix=(*enter, *drop, "env", *words), home=home, environment={})

    def _is_complete(self) -> bool:
        """Whether a queue manager and a machine are there."""
        with suppress(htcondor2.HTCondorException):
            collector = htcondor2.Collector(self.collector)
            return all(collector.query(each) for each in (htcondor2.AdType.Schedd, htcondor2.AdType.Startd))
        return False

    def _lay_out(self) -> None:
        self.directory.chmod(0o755)
        for name in ("log", "spool", "execute", "run", "lock", "home"):
            (self.directory / name).mkdir()
            os.chown(self.directory / name, _ACCOUNT, _ACCOUNT)
        certificate, key = self._authority.sign("host")
        os.chown(key, _ACCOUNT, _ACCOUNT)
        texts = {
            "condor_config": _CONFIGURATION.format(
                directory=self.directory,
                port=self.port,
                certificate=certificate,
                key=key,
                authorities=self.authorities,
                audience=self.collector,
            ),
            "mapfile": f"SCITOKENS ^{self._issuer.url},pilots$ pilots\n",
            "passwd": "".join(
                f"{name}:x:{number}:{number}::/nonexistent:/bin/sh\n"
                for name, number in (("root", 0), ("pilots", _ACCOUNT))
            ),
            "group": f"root:x:0:\npilots:x:{_ACCOUNT}:\n",
            "hosts": "127.0.0.1 localhost\n",
        }
        for name, text in texts.items():
            (self.directory / name).write_text(text)
