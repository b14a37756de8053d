"""A genuine DIRAC 9.1, unmodified, whose jobs move to Pilotage by a change of four URLs.

Imports a configuration of DIRAC, starts `pilotage up` and `pilotage dirac-door`, which serves the
configuration too, and sets the four URLs in it. DIRAC's own commands submit jobs, JobAgents run them in slots
of three queues, one is killed. Then the URLs are set back. Exits 0 only if every other job is Done, and its
output is here.
"""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from examples.demo.installation import Installation, console, ended
from examples.servers import debian, dirac, dirac_package, starting
from examples.servers.certificates import Authority, make_proxy
from examples.servers.dirac import GenuineDirac, Slot

#: Slots of the JobAgents.
SLOTS = {
    "north-short": Slot(site="LCG.North.org", ce="ce-north", queue="short", cpu_time_left=20_000),
    "north-long": Slot(site="LCG.North.org", ce="ce-north", queue="long"),
    "south": Slot(site="LCG.South.org", ce="ce-south", queue="grid"),
}
FORMER = "https://dirac.example.org:8443"
_JDL = """\
JobName = "from a JDL";
Executable = "hello.sh";
Arguments = "the north";
StdOutput = "std.out";
InputSandbox = {"hello.sh", "data.txt"};
OutputSandbox = {"std.out", "result.txt"};
Site = "LCG.North.org";
CPUTime = 500;
"""
_SCRIPT = """\
#!/bin/sh
echo "Hello from $1, job $JOBID"
tr a-z A-Z <data.txt >result.txt
"""
#: The Python API of DIRAC; prints the ids of the jobs.
_API = """\
from DIRAC import initialize
initialize()
from DIRAC.Interfaces.API.Dirac import Dirac
from DIRAC.Interfaces.API.Job import Job

ids = []
wanted = (("one", "LCG.North.org", 5000), ("two", "LCG.South.org", 500), ("three", "", 200))
for name, site, cpu_time in wanted:
    job = Job()
    job.setName(f"from the API, {name}")
    job.setExecutable("hello.sh", arguments=name, logFile="hello.log")
    job.setInputSandbox(["hello.sh", "data.txt"])
    job.setOutputSandbox(["hello.log", "result.txt"])
    job.setCPUTime(cpu_time)
    if site:
        job.setDestination(site)
    ids.append(Dirac().submitJob(job)["Value"])
job = Job()
job.setName("to be killed")
job.setExecutable("/bin/sleep", arguments="900")
job.setDestination("LCG.South.org")
ids.append(Dirac().submitJob(job)["Value"])
print("IDS", *ids)
"""
_SHOW_URL = """\
from DIRAC import gConfig, initialize
initialize()
print(gConfig.getValue("/Systems/WorkloadManagement/URLs/Matcher"))
"""
#: Seconds that the jobs may take together, on a slow machine too.
PATIENCE = 900


def main(*, install: bool) -> int:
    """Run the demonstration; the exit status."""
    if install:
        debian.install([dirac_package.SUITE] if dirac_package.SUITE.missing else [])
    if lack := dirac_package.SUITE.lack:
        sys.stderr.write(f"./dev demo --dirac: to build DIRAC's M2Crypto, {lack}\n")
        return 2
    console.print(
        f"DIRAC {dirac_package.VERSION} in an environment of its own, from PyPI: installed once,"
        " which takes some minutes, since its M2Crypto is built"
    )
    try:
        python = dirac_package.install()
    except subprocess.CalledProcessError as fault:
        sys.stderr.write(
            f"./dev demo --dirac: DIRAC was not installed: {' '.join(map(str, fault.cmd))} failed\n"
        )
        return 2
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pilotage-demo-") as name, ExitStack() as processes:
        demo = Demo(Path(name), python)
        processes.enter_context(demo.services_up())
        demo.move()
        killed, others = demo.submit()
        processes.enter_context(demo.agents())
        demo.kill(killed)
        done = demo.wait(others)
        wrong = demo.report(killed, others, done=done)
        demo.go_back()
    seconds = time.monotonic() - started
    good = f"[bold green]{done} of {len(others)} jobs are Done, and one was killed[/]"
    console.print(f"\n{f'[bold red]{wrong}[/]' if wrong else good}, after {seconds:.0f} s.")
    return 1 if wrong else 0


class Demo(Installation):
    """The installation with its door, a genuine DIRAC, and what is done with them."""

    def __init__(self, directory: Path, python: Path) -> None:
        super().__init__(directory)
        authority = Authority(directory)
        self._host = authority.sign("host")
        self._authorities = authority.link_by_hash()
        self._port = starting.free_port()
        self._url = f"https://localhost:{self._port}"
        self._cs = directory / "cs.cfg"
        self._write_cs(FORMER)
        self._proxy = make_proxy(*authority.sign("ada"), directory / "ada.proxy", group="lhcb_user", days=7)
        self.dirac = GenuineDirac(
            python=python, directory=directory / "dirac", url=self._url, authorities=self._authorities
        )
        self._work = directory / "work"
        for each in (self._work, self.dirac.directory):
            each.mkdir()

    def _write_cs(self, jobs_at: str) -> None:
        services = {**dict.fromkeys(dirac.ALONE, self._url), **dict.fromkeys(dirac.MOVED, jobs_at)}
        self._cs.write_text("\n".join(dirac.write_cfg(configure(self._url, services))) + "\n")

    @contextmanager
    def services_up(self) -> Iterator[None]:
        """The service with DIRAC's configuration, and the door, until the end of the block."""
        empty = self.directory / "resources.yaml"
        empty.write_text("Resources: {Sites: {}}\n")
        self.say("The service, with a configuration of DIRAC: two sites, three queues")
        with self.service(empty):
            self.show("config", "import", "dirac", str(self._cs), "--apply")
            self.say("DIRAC's services, over TLS with certificates and proxies")
            certificate, key = self._host
            tls = ("--tls-certificate", certificate, "--tls-key", key, "--authorities", self._authorities)
            words = ("dirac-door", "--port", str(self._port), *tls, "--configuration", self._cs)
            self.show_command(*words)
            log = self.directory / "door.log"
            door = self.start(*words, log=log)
            with ended(door, signal.SIGTERM):
                starting.wait_until(lambda: "answers" in log.read_text() or door.poll() is not None)
                if door.poll() is not None:
                    raise SystemExit(log.read_text())
                yield

    def move(self) -> None:
        """Set the four URLs."""
        self.say("Four URLs of DIRAC's configuration are changed; all else stays")
        for name in dirac.MOVED:
            path = f"/Systems/WorkloadManagement/URLs/{name}"
            console.print(f"{path}: {FORMER} → {self._url}", markup=False, soft_wrap=True)
        self._write_cs(self._url)

    def submit(self) -> tuple[int, list[int]]:
        """The job that will be killed, and the others."""
        self.say("Jobs, by DIRAC's command and by its Python API")
        for file, text in {"hello.sh": _SCRIPT, "data.txt": "some data\n", "job.jdl": _JDL}.items():
            (self._work / file).write_text(text)
        (self._work / "hello.sh").chmod(0o755)
        first = int(self.command("dirac-wms-job-submit", "job.jdl").rpartition("JobID =")[2].split()[0])
        console.print("[dim]$[/] python: Dirac().submitJob(Job()), four times")
        found = self._python(_API).rpartition("IDS")[2]
        console.print(f"Jobs{found}", markup=False)
        *others, killed = map(int, found.split())
        return killed, [first, *others]

    def command(self, *words: str) -> str:
        """What a command of DIRAC prints."""
        console.print(f"[dim]$[/] {' '.join(words)}", soft_wrap=True)
        done = self.dirac.run(self._proxy, *words, directory=self._work, check=False)
        text = done.stdout.rstrip()
        console.print(text or done.stderr, markup=False, soft_wrap=True)
        if done.returncode:
            raise SystemExit(f"{words[0]} failed: {done.stdout}{done.stderr}")
        return text

    def _python(self, code: str) -> str:
        done = self.dirac.run(self._proxy, "python", "-c", code, directory=self._work, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return done.stdout

    @contextmanager
    def agents(self) -> Iterator[None]:
        """The JobAgents, until the end of the block."""
        self.say("DIRAC's JobAgents in slots of three queues; each takes jobs until nothing is left")
        running: list[subprocess.Popen[bytes]] = []
        try:
            for name, slot in SLOTS.items():
                console.print(
                    f"dirac-agent WorkloadManagement/JobAgent at {slot.site}/{slot.ce}/{slot.queue}"
                )
                running.append(self.dirac.start_job_agent(name, slot, self._proxy))
            yield
        finally:
            dirac.kill(running)

    def kill(self, job_id: int) -> None:
        """Kill a job when its payload runs."""
        self._wait_for(job_id, {"Running"})
        self.say("One job is killed while it runs: its payload ends at the next heartbeat")
        self.command("dirac-wms-job-kill", str(job_id))
        with self.client() as client:
            starting.wait_until(lambda: client.job(job_id)["attempt"]["closed_as"], PATIENCE)
        console.print("Its JobWrapper has ended it, and reported that.")

    def wait(self, job_ids: list[int]) -> int:
        """Wait until jobs have ended; how many are Done."""
        return sum(self._wait_for(each, {"Done", "Failed", "Killed"}) == "Done" for each in job_ids)

    def _wait_for(self, job_id: int, wanted: set[str]) -> str:
        def look() -> str:
            with self.client() as client:
                [job] = client.jobs({"ids": str(job_id)})["jobs"]
            status = str(job["status"])
            return status if status in wanted else ""

        try:
            return starting.wait_until(look, PATIENCE)
        except TimeoutError:
            self.show("job", "list")
            for name in SLOTS:
                log = self.dirac.directory / f"{name}.log"
                console.print(f"{name}: {log.read_text(errors='replace')[-3000:]}", markup=False)
            raise SystemExit(f"job {job_id} did not become {' or '.join(sorted(wanted))}") from None

    def report(self, killed: int, job_ids: list[int], *, done: int) -> str | None:
        """What DIRAC's commands show at the end; what is wrong, None: nothing."""
        self.say("What DIRAC's commands show")
        self.command("dirac-wms-job-status", *map(str, [*job_ids, killed]))
        self.command("dirac-wms-job-logging-info", str(job_ids[0]))
        self.command("dirac-wms-job-get-output", *map(str, job_ids))
        self.say("The same jobs here")
        self.show("job", "list")
        if done < len(job_ids):
            return f"only {done} of {len(job_ids)} jobs are Done"
        for each in job_ids:
            result = self._work / str(each) / "result.txt"
            if not result.exists() or result.read_text() != "SOME DATA\n":
                return f"the output of job {each} is not what its script wrote"
        return None

    def go_back(self) -> None:
        """Set the four URLs back, and see that a client reads them."""
        self.say("The four URLs are changed back")
        self._write_cs(FORMER)
        url = self._python(_SHOW_URL).strip()
        console.print(f"A client of DIRAC now reads {url}", markup=False, soft_wrap=True)
        if not url.endswith(f"{FORMER}/WorkloadManagement/Matcher"):
            raise SystemExit("the URLs are not those of before")


def configure(url: str, services: Mapping[str, str]) -> Mapping[str, object]:
    """A configuration of DIRAC."""
    queue = {"VO": "lhcb", "SI00": 2500}
    north = {name: {**queue, "maxCPUTime": minutes} for name, minutes in (("short", 60), ("long", 2000))}
    sites = {
        "LCG.North.org": {"CEs": {"ce-north": {"CEType": "HTCondorCE", "Queues": north}}},
        "LCG.South.org": {
            "CEs": {"ce-south": {"CEType": "AREX", "Queues": {"grid": {**queue, "maxCPUTime": 500}}}}
        },
    }
    return {
        "DIRAC": {"VirtualOrganization": "lhcb", "Configuration": {"Servers": f"{url}/Configuration/Server"}},
        "DiracX": {"DisabledVOs": "lhcb"},
        "Systems": {
            "WorkloadManagement": {
                "URLs": {name: f"{at}/WorkloadManagement/{name}" for name, at in services.items()},
                "JobWrapper": {"PollingTime": 2, "CheckingTime": 5, "MinCheckingTime": 5},
            },
            "ResourceStatus": {"URLs": {"ResourceStatus": f"{url}/ResourceStatus/ResourceStatus"}},
        },
        "Resources": {
            "Sites": {"LCG": sites},
            "StorageElements": {"SandboxSE": dirac.sandbox_element(url)},
        },
        "Registry": {
            "DefaultGroup": "lhcb_user",
            "VO": {"lhcb": {}},
            "Users": {"ada": {"DN": "/DC=test/CN=ada"}},
            "Groups": {"lhcb_user": {"Users": "ada", "VO": "lhcb", "Properties": "NormalUser"}},
        },
        "Operations": {
            "Defaults": {"JobScheduling": {"RescheduleDelays": 0}, "MonitoringBackends": {"Default": ","}}
        },
    }
