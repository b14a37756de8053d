"""A private Grid Engine for the tests: Debian's programs, one host with two queues.

Its master listens on all addresses and refuses a host named 127.*: it lives in a network of its own, which
has no way out. It runs no jobs for root: they belong to a user made for it. All that takes root.
"""

import base64
import fcntl
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from examples.servers.debian import PATH
from examples.servers.starting import wait_until
from pilotage.fabric.batch.shell import Completed, LocalShell

USER = "pilotage-jobs"
#: Of root alone: held by the process that makes the user.
_LOCK = Path("/run/pilotage-tests.lock")
_HOST = "gehost"
_ADDRESS = "10.77.0.1"
_PROGRAMS = Path("/usr/lib/gridengine")
_SHARED = Path("/usr/share/gridengine")
_ENVIRONMENT = """\
pe_name smp
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule $pe_slots
control_slaves FALSE
job_is_first_task TRUE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserShell:
    """Commands and files of the user who may run jobs, in the network of the cell."""

    prefix: tuple[str, ...]
    home: str
    environment: dict[str, str]
    local: LocalShell = field(default_factory=LocalShell)

    def run(self, command: Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Completed:
        return self.local.run([*self.prefix, *command], stdin=stdin, seconds=seconds)

    def write(self, name: str, content: bytes, *, below: str, executable: bool = False) -> None:
        script = 'mkdir -p "$(dirname "$1")" && base64 -d >"$1" && chmod "$2" "$1"'
        mode, path = "700" if executable else "600", f"{below}/{name}"
        done = self.run(["sh", "-c", script, "sh", path, mode], stdin=base64.b64encode(content).decode())
        assert done.status == 0, done

    def read(self, name: str, *, below: str, last: int) -> bytes:
        return self.local.read(name, below=below, last=last)

    def read_small(self, names: Sequence[str], *, below: str, most: int) -> Mapping[str, bytes]:
        return self.local.read_small(names, below=below, most=most)

    def remove(self, names: Sequence[str], *, below: str) -> None:
        self.local.remove(names, below=below)


class GridEngine:
    """One cell whose files lie in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._network = f"ge{os.getpid()}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = {
            "SGE_ROOT": str(directory / "root"),
            "SGE_CELL": "default",
            "SGE_ARCH": "lx-amd64",
            "SGE_QMASTER_PORT": "6444",
            "SGE_EXECD_PORT": "6445",
            "SGE_CLUSTER_NAME": "tests",
            "PATH": f"{_PROGRAMS}:{PATH}",
        }

    @property
    def shell(self) -> UserShell:
        """For the adapter."""
        home = str(self.directory / "home")
        words = [f"{name}={value}" for name, value in self._environment.items()]
        drop = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups")
        prefix = (*self._inside, *drop, "env", f"HOME={home}", *words)
        return UserShell(prefix=prefix, home=home, environment=self._environment)

    def start(self) -> None:
        self._make_user()
        self._make_network()
        self._make_cell()
        self._serve("sge_qmaster")
        wait_until(lambda: self._succeeds("qconf", "-sh"))
        for add in ("-ah", "-as"):
            self._succeeds("qconf", add, _HOST)
        self._serve("sge_execd")
        self._configure()
        wait_until(lambda: "load_values" in self.ask("qconf", "-se", _HOST))
        self.ask("qconf", "-mattr", "exechost", "complex_values", "h_vmem=8G,slots=8", _HOST)
        wait_until(lambda: "au" not in self.ask("qstat", "-f"))

    def ask(self, *command: str) -> str:
        return self._run([*self._inside, *command]).stdout

    def stop(self) -> None:
        for process in self._processes:
            # It ignores TERM for a while; jobs run in sessions of their own, and belong to the user.
            process.kill()
            process.wait()
        for job in self._job_processes():
            with suppress(psutil.NoSuchProcess):
                job.kill()
        subprocess.run(["umount", str(self.directory / "uts")], check=False)
        subprocess.run(["ip", "netns", "del", self._network], check=False)
        shutil.rmtree(f"/etc/netns/{self._network}", ignore_errors=True)

    def _job_processes(self) -> list[psutil.Process]:
        """What runs in jobs of this cell: the user is that of every cell on this machine."""
        root, found = self._environment["SGE_ROOT"], []
        for process in psutil.process_iter(["environ"]):
            if (process.info["environ"] or {}).get("SGE_ROOT") == root:
                with suppress(psutil.NoSuchProcess):
                    found += [process, *process.children(recursive=True)]
        return found

    @property
    def _inside(self) -> tuple[str, ...]:
        """Enter the network and the host name of the cell."""
        name = self._network
        return (
            *("nsenter", f"--net=/run/netns/{name}", f"--uts={self.directory}/uts", "--"),
            *("ip", "netns", "exec", name),
        )

    def _make_user(self) -> None:
        """Make it once: of two at a time each would succeed, and the second gives it another number."""
        with _LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if all(each.pw_name != USER for each in pwd.getpwall()):
                self._run(["useradd", "--no-create-home", "--shell", "/bin/sh", USER])
        home = self.directory / "home"
        home.mkdir()
        shutil.chown(home, USER, USER)

    def _make_network(self) -> None:
        name = self._network
        hosts = Path(f"/etc/netns/{name}/hosts")
        hosts.parent.mkdir(parents=True, exist_ok=True)
        hosts.write_text(f"127.0.0.1 localhost\n{_ADDRESS} {_HOST}\n")
        self._run(["ip", "netns", "add", name])
        self._run(["ip", "-n", name, "link", "set", "lo", "up"])
        self._run(["ip", "-n", name, "addr", "add", f"{_ADDRESS}/32", "dev", "lo"])
        uts = self.directory / "uts"
        uts.touch()
        self._run(["unshare", f"--uts={uts}", "hostname", _HOST])

    def _make_cell(self) -> None:
        root, spool = self.directory / "root", self.directory / "spool"
        common = root / "default" / "common"
        for path in (common, spool / "db", spool / "qmaster" / "job_scripts", spool / "execd"):
            path.mkdir(parents=True)
        for part in ("lib", "util", "bin", "utilbin"):
            self._run(["cp", "-a", f"/var/lib/gridengine/{part}", str(root)])
        old = "/var/spool/gridengine"
        bootstrap = (_SHARED / "default-bootstrap").read_text()
        bootstrap = bootstrap.replace(f"{old}/spooldb", f"{spool}/db").replace(
            f"{old}/qmaster", f"{spool}/qmaster"
        )
        (common / "bootstrap").write_text(bootstrap)
        (common / "act_qmaster").write_text(f"{_HOST}\n")
        (common / "cluster_name").write_text("tests\n")
        configuration = (
            (_SHARED / "default-configuration").read_text().replace(f"{old}/execd", f"{spool}/execd")
        )
        for name, value in (("load_report_time", "00:00:02"), ("max_unheard", "00:00:20")):
            configuration = re.sub(rf"^{name}.*", f"{name} {value}", configuration, flags=re.MULTILINE)
        file = self.directory / "configuration"
        file.write_text(configuration.replace("flush_time=00:00:15", "flush_time=00:00:00"))
        self._run(["chown", "-R", "sgeadmin:sgeadmin", str(root / "default"), str(spool)])
        resources = _SHARED / "util" / "resources"
        for command in (
            [_PROGRAMS / "spoolinit", "berkeleydb", "libspoolb", spool / "db", "init"],
            [_PROGRAMS / "spooldefaults", "configuration", file],
            [_PROGRAMS / "spooldefaults", "complexes", resources / "centry"],
            [_PROGRAMS / "spooldefaults", "usersets", resources / "usersets"],
            [_PROGRAMS / "spooldefaults", "managers", "sgeadmin"],
            [_PROGRAMS / "spooldefaults", "managers", "root"],
        ):
            admin = ("setpriv", "--reuid=sgeadmin", "--regid=sgeadmin", "--init-groups")
            self._run([*self._inside, *admin, *map(str, command)])

    def _configure(self) -> None:
        """Memory is used up, cores on one host go together, and jobs are looked for every second."""
        complexes = self.ask("qconf", "-sc")
        complexes = re.sub(
            r"^h_vmem .*", "h_vmem h_vmem MEMORY <= YES YES 200M 0", complexes, flags=re.MULTILINE
        )
        self._load("-Mc", f"{complexes.rstrip()}\nbench bench INT <= YES NO 0 0\n")
        self._load("-Ap", _ENVIRONMENT)
        scheduler = self.ask("qconf", "-ssconf")
        for name, value in (
            ("schedule_interval", "0:0:1"),
            ("flush_submit_sec", "1"),
            ("flush_finish_sec", "1"),
        ):
            scheduler = re.sub(rf"^{name}.*", f"{name} {value}", scheduler, flags=re.MULTILINE)
        self._load("-Msconf", scheduler)
        self._load("-Ahgrp", f"group_name @allhosts\nhostlist {_HOST}\n")
        template = self.ask("qconf", "-sq")
        for queue, hours in (("short", 1), ("long", 48)):
            text = template
            for name, value in (
                ("qname", queue),
                ("hostlist", "@allhosts"),
                ("slots", "4"),
                ("pe_list", "smp"),
                ("h_rt", f"{hours}:0:0"),
                ("shell", "/bin/sh"),
                ("load_thresholds", "NONE"),
                ("notify", "00:02:00"),  # of a slow host: it ends as soon as the job does
            ):
                text = re.sub(rf"^{name} .*", f"{name} {value}", text, flags=re.MULTILINE)
            self._load("-Aq", text)

    def _load(self, option: str, text: str) -> None:
        file = self.directory / "loaded"
        file.write_text(text)
        self.ask("qconf", option, str(file))

    def _serve(self, program: str) -> None:
        environment = {**os.environ, **self._environment, "SGE_ND": "1"}
        self._processes.append(
            subprocess.Popen(
                [*self._inside, str(_PROGRAMS / program)],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def _succeeds(self, *command: str) -> bool:
        try:
            self.ask(*command)
        except RuntimeError:
            return False
        return True

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self._environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done
