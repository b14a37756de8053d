"""A genuine DIRAC beside the door: its configuration, and its commands and JobAgents as processes."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Services that the door answers: the four that move, and those of an installation without DIRAC's own.
MOVED = ("JobManager", "JobMonitoring", "JobStateUpdate", "Matcher")
ALONE = ("PilotManager", "SandboxStore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where a JobAgent runs."""

    site: str
    ce: str
    queue: str
    cpu_time_left: int = 100_000  #: normalised seconds


def write_cfg(sections: Mapping[str, object]) -> Iterator[str]:
    """Lines of a configuration of DIRAC."""
    for name, value in sections.items():
        if isinstance(value, Mapping):
            yield from (name, "{", *write_cfg(value), "}")
        else:
            yield f"{name} = {value}"


def sandbox_element(url: str) -> Mapping[str, object]:
    """The storage element of sandboxes at a door."""
    host, _, port = url.removeprefix("https://").partition(":")
    access = {"Plugin": "DIP", "Protocol": "https", "Host": host, "Port": port, "Access": "remote"}
    path = {"Path": "/WorkloadManagement/SandboxStore"}
    return {"BackendType": "DISET", "AccessProtocols": "https", "DIP": {**access, **path}}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenuineDirac:
    """The package in its environment, with a Configuration Server; everything else lies below `directory`."""

    python: Path
    directory: Path
    url: str  #: of the door
    authorities: Path

    def run(
        self, proxy: Path, *command: str, directory: Path | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """A command, such as `dirac-wms-job-status`, as the user of a proxy; CalledProcessError."""
        home = self._home("user")
        return subprocess.run(
            [str(self.python.parent / command[0]), *command[1:]],
            cwd=directory or home,
            env=self._environment(home, proxy),
            capture_output=True,
            text=True,
            timeout=600,
            check=check,
        )

    def start_job_agent(
        self,
        name: str,
        slot: Slot,
        proxy: Path,
        options: Mapping[str, object] | None = None,
        reference: str = "",
    ) -> subprocess.Popen[bytes]:
        """A JobAgent in a slot, of the pilot with this reference; its log is `<name>.log`."""
        agent = {
            "PollingTime": 1,
            "SubmissionDelay": 1,
            "StopAfterFailedMatches": 0,
            "MinimumTimeLeft": 100,
            "StopOnApplicationFailure": "no",
            **(options or {}),
        }
        local = {
            "Site": slot.site,
            "GridCE": slot.ce,
            "CEQueue": slot.queue,
            "CPUTimeLeft": slot.cpu_time_left,
            "CPUNormalizationFactor": 10,
            "PilotReference": reference or f"https://{slot.ce}/{name}",
        }
        sections = {
            "LocalSite": local,
            "Systems": {"WorkloadManagement": {"Agents": {"JobAgent": agent}}},
        }
        home = self._home(name, sections)
        command = [str(self.python.parent / "dirac-agent"), "WorkloadManagement/JobAgent"]
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "-o", "/DIRAC/Security/UseServerCertificate=no", str(home / "etc" / "dirac.cfg")],
                cwd=home,
                env=self._environment(home, proxy),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _home(self, name: str, sections: Mapping[str, object] | None = None) -> Path:
        home = self.directory / name
        if not home.exists():
            for each in ("etc", "tmp"):
                (home / each).mkdir(parents=True)
            server = {"Servers": f"{self.url}/Configuration/Server"}
            security = {"CALocation": self.authorities, "UseServerCertificate": "no"}
            known = {"Configuration": server, "Security": security}
            text = "\n".join(write_cfg({"DIRAC": known, **(sections or {})}))
            (home / "etc" / "dirac.cfg").write_text(f"{text}\n")
        return home

    def _environment(self, home: Path, proxy: Path) -> Mapping[str, str]:
        return {
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "DIRAC_ROOT_PATH": str(home),
            "X509_USER_PROXY": str(proxy),
            "X509_CERT_DIR": str(self.authorities),
        }


def kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End JobAgents with all that they have started."""
    for each in processes:
        if each.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()
