"""A SiteDirector with a real Slurm of one machine, two partitions and nodes that differ.

Starts the Slurm and `pilotage up` in a temporary directory, submits jobs of two VOs, lets a director fill the
partitions with pilots as jobs need them, kills it in the middle and starts it again, and shows which job ran
where. Leaves nothing behind. Exits 0 only if every job is Done once, on a node that has what it asked for.
"""

import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen

import yaml
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.demo.installation import Installation, console, ended
from examples.demo.where_jobs_ran import Ran, doubled, jobs_table, look, pilots_table
from examples.servers import debian, slurm
from examples.servers.slurm import NODES, Slurm

SITE = Path(__file__).parents[1] / "slurm"
VOS = ("biomed", "lhcb")
QUEUES = ("short", "long")  #: of the tree, and partitions
#: Each description of jobs.yaml is submitted so often.
COPIES = 8
#: What each node says of itself.
FACTS: Mapping[str, Mapping[str, object]] = {
    "n1": {"OS": "el8", "GlueHostBenchmarkSI00": 400, "Scratch": 50},
    "n2": {"OS": "el9", "GlueHostBenchmarkSI00": 900, "Scratch": 500},
    "n3": {"OS": "el9", "GlueHostBenchmarkSI00": 1200, "Scratch": 500},
}
#: What jobs ask for, by their names: the queue and node where each may run.
ALLOWED = {
    "old-system": {("short", "n1")},
    "fast-or-long": {("short", "n2"), ("long", "n2"), ("long", "n3")},
    "fastest": {("long", "n3")},
    "much-scratch": {("short", "n2"), ("long", "n2"), ("long", "n3")},
}
#: The part of the jobs after which the director is killed.
KILLED_AFTER = 1 / 3
#: Seconds that the jobs may take together.
PATIENCE = 180
#: Characters of the director's log that are shown if the jobs did not end.
_SHOWN = 3000


def main(*, copies: int, install: bool) -> int:
    """Run the demonstration; the exit status."""
    if install:
        debian.install([slurm.SUITE] if slurm.SUITE.missing else [])
    if trouble := _trouble():
        sys.stderr.write(f"./dev demo --slurm: {trouble}\n")
        return 2
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pilotage-demo-") as name, ExitStack() as processes:
        demo = Demo(Path(name))
        processes.enter_context(demo.slurm_up())
        processes.enter_context(demo.service_up())
        jobs = demo.submit(copies)
        demo.run_director(jobs)
        wrong = demo.report(jobs)
    seconds = time.monotonic() - started
    verdict = f"[bold red]{wrong}[/]" if wrong else f"[bold green]{len(jobs)} of {len(jobs)} jobs are Done[/]"
    console.print(f"\n{verdict}, after {seconds:.0f} s.")
    return 1 if wrong else 0


def _trouble() -> str | None:
    """Why it cannot be shown here; None: it can."""
    suite = slurm.SUITE
    if not suite.may_be_run:
        return "Slurm runs jobs for others, which takes root; ./dev demo needs nothing"
    if suite.missing:
        packages = " ".join(suite.packages)
        return (
            f"there is no {', '.join(suite.missing)} here; on Debian --install adds the packages {packages}"
        )
    return None


class Demo(Installation):
    """The installation, and what is done with it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        directory.chmod(0o755)  # Slurm's daemons insist
        (directory / "slurm").mkdir()
        self.slurm = Slurm(directory / "slurm")

    @contextmanager
    def slurm_up(self) -> Iterator[None]:
        """The batch system, until the end of the block."""
        self.say("A Slurm of this machine: two partitions, three nodes that differ")
        try:
            self.slurm.start()
            table = Table("Node", "Features", "Says of itself", box=SIMPLE_HEAD)
            for node, (features, _, _) in NODES.items():
                table.add_row(node, features, json.dumps(FACTS[node]))
            console.print(table)
            yield
        finally:
            self.slurm.stop()

    @contextmanager
    def service_up(self) -> Iterator[None]:
        """The service, until the end of the block."""
        self.say("The service, with a site that has this Slurm")
        self.show_command("up", "--resources", SITE / "resources.yaml")
        with self.service(SITE / "resources.yaml"):
            yield

    def submit(self, copies: int) -> list[int]:
        """The ids of the jobs."""
        self.say("Jobs of two VOs: some run anywhere, some ask for certain nodes")
        answer = self.run("job", "submit", SITE / "jobs.yaml", "--count", str(copies))
        ids: list[int] = answer["job_ids"]
        console.print(f"{len(ids)} jobs were accepted. Nothing runs yet: there is no pilot.")
        return ids

    def run_director(self, jobs: list[int]) -> None:
        """Keep a director until all jobs are at their end; kill it once in the middle."""
        self.say("A director sends pilots, as many as jobs need; kill -9 ends it in the middle")
        file = self._director_file()
        columns = (TextColumn("{task.description:8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as bars, ExitStack() as stack:
            director = stack.enter_context(self._director(file))
            tasks = {vo: bars.add_task(vo, total=number) for vo, number in self._jobs_by_vo().items()}
            killed = False
            for done in self._progress():
                for vo, task in tasks.items():
                    bars.update(task, completed=done[vo])
                if done.total() == len(jobs):
                    return
                if not killed and done.total() >= len(jobs) * KILLED_AFTER:
                    _kill(director)
                    stack.enter_context(self._director(file))
                    killed = True
        console.print((self.directory / "director.log").read_text()[-_SHOWN:], markup=False)

    def _jobs_by_vo(self) -> Counter[str]:
        with self.client() as client:
            return Counter({row["vo"]: row["count"] for row in client.summary(by=["vo"], filters={})})

    def _progress(self) -> Iterator[Counter[str]]:
        """How many jobs of each VO are at their end, again and again until time is up."""
        deadline = time.monotonic() + PATIENCE
        with self.client() as client:
            while time.monotonic() < deadline:
                rows = client.summary(by=["vo"], filters={"status": "Done,Failed,Killed"})
                yield Counter({row["vo"]: row["count"] for row in rows})
                time.sleep(0.5)

    @contextmanager
    def _director(self, file: Path) -> Iterator[Popen[bytes]]:
        """A director, until the end of the block or of itself."""
        self.show_command("director", "--config", file.name)
        process = self.start("director", "--config", file, log=self.directory / "director.log")
        with ended(process, signal.SIGTERM):
            yield process

    def _director_file(self) -> Path:
        facts = self.directory / "facts"
        facts.mkdir()
        for node, known in FACTS.items():
            (facts / f"{node}.json").write_text(json.dumps(known))
        farm = {
            "kind": "slurm",
            "directory": str(self.directory / "pilots"),
            "environment": dict(self.slurm.environment),
        }
        told = {
            "url": self.reached()["PILOTAGE_URL"],
            "name": "demo",
            "every": 1,
            "pause": 2,
            "longest_pause": 4,
            "vos": {vo: {"token_file": self._token_file(vo)} for vo in VOS},
            "systems": {"farm": farm},
            "queues": [
                {"queue": f"LCG.Example.org/slurm/{name}", "system": "farm", "wall_time": 600, "memory": 300}
                for name in QUEUES
            ],
            "pilot": ["--max-empty=1", f"--facts={facts}/$SLURMD_NODENAME.json"],
        }
        file = self.directory / "director.yaml"
        file.write_text(yaml.safe_dump(told))
        return file

    def _token_file(self, vo: str) -> str:
        words = ("token", "--role", "director", "--vo", vo, "--site", "LCG.Example.org")
        file = self.directory / f"{vo}.token"
        file.touch(mode=0o600)
        file.write_text(self.run(*words, quiet=True)["token"])
        return str(file)

    def report(self, jobs: list[int]) -> str | None:
        """The tables at the end; what is wrong, None: nothing."""
        with self.client() as client:
            ran, pilots = look(client, self.slurm, jobs)
        self.say("Where jobs ran")
        console.print(jobs_table(ran))
        self.say("Pilots, by what Slurm was told of the node")
        console.print(pilots_table(pilots))
        lost = [each for each in ran if each.status != "Done"]
        if lost:
            return f"{len(lost)} jobs are not Done"
        if astray := [each for each in ran if not _is_right(each)]:
            return f"{len(astray)} jobs ran on nodes that they did not ask for"
        if twice := doubled(pilots):
            return f"pilots were sent twice: {', '.join(twice)}"
        return None


def _kill(director: Popen[bytes]) -> None:
    """As a crash would; whatever it was doing stays half done."""
    director.kill()
    director.wait()
    console.print(f"[dim]$[/] kill -9 {director.pid}")


def _is_right(ran: Ran) -> bool:
    allowed = ALLOWED.get(ran.name)
    return allowed is None or (ran.queue, ran.node) in allowed
