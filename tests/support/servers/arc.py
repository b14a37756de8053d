"""A private ARC CE for the tests: Debian's A-REX, nothing of the machine's own, on 127.0.0.1 only.

It wants root: it runs jobs as somebody else. Behind it are this host's processes, or a Slurm.
"""

import os
import re
import ssl
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import httpx
import psutil

from examples.servers.certificates import Authority
from examples.servers.debian import PATH
from examples.servers.starting import free_port, wait_until
from tests.support.servers.token_issuer import TokenIssuer

SCRIPTS = Path("/usr/share/arc")
#: Who may submit: by certificate, and by token.
USER = "alice"
#: As whom jobs run.
_ACCOUNT = "nobody:nogroup"
_SIGNING_POLICY = """\
access_id_CA X509 '{subject}'
pos_rights globus CA:sign
cond_subjects globus '"/DC=test/*"'
"""
_CONFIGURATION = """\
[common]
hostname=localhost
x509_host_key={directory}/localhost.key
x509_host_cert={directory}/localhost.pem
x509_cert_dir=/etc/grid-security/certificates
[authgroup:certificates]
subject=/DC=test/CN={user}
[authgroup:tokens]
authtokens={user} {issuer} * * *
[mapping]
map_to_user=certificates {account}
map_to_user=tokens {account}
[authtokens]
[lrms]
{lrms}
[arex]
user=root
controldir={directory}/control
sessiondir={directory}/session
tmpdir={directory}/tmp
logfile={directory}/arex.log
joblog={directory}/jobs.log
pidfile={directory}/arex.pid
loglevel=3
wakeupperiod=1
defaultttl=3600
[arex/ws]
wsurl=https://localhost:{port}/arex
logfile={directory}/ws.log
pidfile={directory}/ws.pid
[arex/ws/jobs]
allowaccess=certificates tokens
[infosys]
logfile={directory}/information.log
[infosys/glue2]
[infosys/cluster]
{queues}
"""
_SLURM = """\
lrms=slurm
slurm_bin_path=/usr/bin
slurm_use_sacct=no
slurm_wakeupperiod=1"""


#: A runtime environment, run by the job (stage 1) with its options after the stage.
_ENVIRONMENT = """\
if [ "$1" = 1 ]; then
    shift
    export TEST_OPTIONS="$*"
fi
"""


class ArcCe:
    """One CE whose files lie in `directory`; `environment` is that of the batch system's commands."""

    def __init__(
        self,
        directory: Path,
        *,
        lrms: str = "lrms=fork",
        queues: tuple[str, ...] = ("fork",),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._environment = {**os.environ, **(environment or {}), "PATH": PATH}
        self._port = free_port()
        self._authority = Authority(directory)
        self.authorities = self._authority.certificate
        self._issuer = TokenIssuer(*self._authority.sign("localhost"))
        self.certificate, self.key = self._authority.sign(USER)
        self.url = f"https://localhost:{self._port}/arex"
        self._lay_out(lrms, queues)

    @classmethod
    def before_slurm(cls, directory: Path, environment: Mapping[str, str]) -> Self:
        """A CE whose jobs run in a Slurm with the partitions `short` and `long`."""
        return cls(directory, lrms=_SLURM, queues=("short", "long"), environment=environment)

    def __enter__(self) -> Self:
        self._issuer.start()
        try:
            self._launch("arc-arex-start")
            self.start_door()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_door(self) -> None:
        """Start the part that answers requests."""
        self._launch("arc-arex-ws-start")
        wait_until(self._answers)

    def stop_door(self) -> None:
        """Stop the part that answers requests; jobs go on."""
        self._kill(self.directory / "ws.pid")

    def stop(self) -> None:
        for file in self.directory.glob("*.pid"):
            self._kill(file)
        self._issuer.stop()

    def token(self, **changed: object) -> Path:
        """A file with a token for the user."""
        file = self.directory / f"token-{len(list(self.directory.glob('token-*')))}"
        file.touch(mode=0o600)
        file.write_text(self._issuer.token(USER, self.url, **changed))
        return file

    def taken(self, prefix: str) -> list[str]:
        """The names that begin so, of all jobs that were ever taken, each as often as there is a job."""
        log = self.directory / "jobs.log"
        said = log.read_text() if log.exists() else ""
        names = re.findall(r'Started - job id: .*?name: "([^"]*)"', said)
        return [name for name in names if name.startswith(prefix)]

    def wait_until_taken(self, prefix: str) -> None:
        wait_until(lambda: bool(self.taken(prefix)))

    def _lay_out(self, lrms: str, queues: tuple[str, ...]) -> None:
        for name in ("control", "session", "tmp", "trusted"):
            (self.directory / name).mkdir()
        for name in ("session", "tmp"):
            (self.directory / name).chmod(0o1777)
        self._trust(self.directory / "trusted" / "certificates")
        configuration = _CONFIGURATION.format(
            directory=self.directory,
            user=USER,
            account=_ACCOUNT,
            issuer=self._issuer.url,
            port=self._port,
            lrms=lrms,
            queues="\n".join(f"[queue:{queue}]\ncomment={queue}" for queue in queues),
        )
        (self.directory / "arc.conf").write_text(configuration)
        enabled = self.directory / "control" / "rte" / "enabled" / "APPS"
        enabled.mkdir(parents=True)
        (enabled / "TEST").write_text(_ENVIRONMENT)
        # Without these the start script makes larger ones, which takes minutes.
        self._run(
            *("openssl", "genpkey", "-genparam", "-algorithm", "DH", "-pkeyopt", "group:ffdhe2048"),
            *("-out", str(self.directory / "control" / "dhparam.pem")),
        )
        # A state is told as the last look at the batch system was, by default a minute ago.
        self._copy(
            "arc-arex-start",
            "<arex:gmconfig>",
            "<arex:InfoproviderWakeupPeriod>5</arex:InfoproviderWakeupPeriod>",
        )
        self._copy("arc-arex-ws-start", "<tcp:Port>", "<tcp:Interface>127.0.0.1</tcp:Interface>")

    def _trust(self, directory: Path) -> None:
        directory.mkdir()
        ask = ("openssl", "x509", "-noout", "-in", str(self.authorities))
        name = self._run(*ask, "-hash").strip()
        subject = self._run(*ask, "-subject", "-nameopt", "compat").strip().removeprefix("subject=")
        (directory / f"{name}.0").write_bytes(self.authorities.read_bytes())
        (directory / f"{name}.signing_policy").write_text(_SIGNING_POLICY.format(subject=subject.strip()))

    def _copy(self, script: str, before: str, added: str) -> None:
        """A start script of our own, with something added to the configuration that it makes."""
        text = (SCRIPTS / script).read_text()
        assert before in text
        copy = self.directory / script
        copy.write_text(text.replace(before, added + before))
        copy.chmod(0o755)

    def _launch(self, script: str) -> None:
        """Start a daemon; it sees our authority in the place where the issuers of tokens are looked up."""
        trusted = self.directory / "trusted"
        mount = 'mkdir -p /etc/grid-security && mount --bind "$0" /etc/grid-security && exec "$1"'
        self._run("unshare", "--mount", "sh", "-c", mount, str(trusted), str(self.directory / script))

    def _run(self, *command: str) -> str:
        environment = {**self._environment, "ARC_CONFIG": str(self.directory / "arc.conf")}
        with (self.directory / "start.log").open("ab") as log:
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, timeout=300
            )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {(self.directory / 'start.log').read_text()}")
        return done.stdout

    def _answers(self) -> bool:
        # Its port is open before it can use TLS.
        trusted = ssl.create_default_context(cafile=str(self.authorities))
        with suppress(httpx.TransportError):
            httpx.get(f"{self.url}/rest", verify=trusted, trust_env=False, timeout=60)
            return True
        return False

    def _kill(self, file: Path) -> None:
        try:
            process = psutil.Process(int(file.read_text()))
        except (OSError, ValueError, psutil.NoSuchProcess):
            return
        found = [process, *process.children(recursive=True)]
        for each in found:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        wait_until(lambda: all(map(_has_ended, found)))
        file.unlink(missing_ok=True)


def _has_ended(process: psutil.Process) -> bool:
    """Whether only its remains are there, if anything: it is nobody's child."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return True
