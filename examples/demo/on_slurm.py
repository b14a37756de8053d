"""The site's side with a real Slurm of one machine, which has two partitions and nodes that differ.

Starts the Slurm and `pilotage up` in a temporary directory and submits jobs of two VOs and one grid job. A
director fills the partitions with pilots as the jobs need them, a gateway runs the grid job as local jobs;
both are killed in the middle. Shows which job ran where, and leaves nothing behind. Exits 0 only if every job
is Done, once, on a node that has what it asked for, and the grid job's tar holds each of its events once.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.demo import grid_job, slurm_site
from examples.demo.grid_job import EVENTS, GridJob, Standing
from examples.demo.installation import Installation, console
from examples.demo.mortal import Mortal
from examples.demo.slurm_site import FACTS
from examples.demo.where_jobs_ran import Ran, doubled, jobs_table, look, pilots_table
from examples.servers import debian, slurm
from examples.servers.slurm import NODES, Slurm
from pilotage.client.api import ServiceClient

SITE = Path(__file__).parents[1] / "slurm"
#: Each description of jobs.yaml is submitted so often.
COPIES = 8
#: What jobs ask for, by their names: the queue and node where each may run.
ALLOWED = {
    "old-system": {("short", "n1")},
    "fast-or-long": {("short", "n2"), ("long", "n2"), ("long", "n3")},
    "fastest": {("long", "n3")},
    "much-scratch": {("short", "n2"), ("long", "n2"), ("long", "n3")},
}
#: The part of the work after which director and gateway are killed.
KILLED_AFTER = 1 / 3
#: Seconds that all may take together, on a slow machine too.
PATIENCE = 900


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
        submitted = demo.submit(copies)
        demo.run_all(submitted)
        wrong = demo.report(submitted)
    seconds = time.monotonic() - started
    number = len(submitted.jobs)
    good = f"[bold green]{number} of {number} jobs are Done, and the grid job[/]"
    console.print(f"\n{f'[bold red]{wrong}[/]' if wrong else good}, after {seconds:.0f} s.")
    return 1 if wrong else 0


def _trouble() -> str | None:
    """Why it cannot be shown here; None: it can."""
    suite = slurm.SUITE
    if not suite.may_be_run:
        return "Slurm runs jobs for others, which takes root; ./dev demo needs nothing"
    return suite.lack or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What is to be done."""

    jobs: Sequence[int]  #: for pilots
    grid_job: GridJob


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

    def submit(self, copies: int) -> Submitted:
        """All jobs."""
        self.say("Jobs of two VOs, some of which ask for certain nodes, and a grid job")
        jobs = self.run("job", "submit", SITE / "jobs.yaml", "--count", str(copies))["job_ids"]
        submitted = Submitted(jobs=jobs, grid_job=GridJob.submit(self))
        console.print(f"{len(jobs) + 1} jobs were accepted. Nothing runs yet: there is no pilot.")
        return submitted

    def run_all(self, submitted: Submitted) -> None:
        """Keep director and gateway until all jobs are at their end; kill each of them once in the middle."""
        self.say("A director sends pilots, a gateway runs the grid job; kill -9 ends both in the middle")
        number = len(submitted.jobs)
        with ExitStack() as stack:
            director = stack.enter_context(
                Mortal(self, "director", file=slurm_site.director(self, self.slurm))
            )
            gateway = stack.enter_context(Mortal(self, "gateway", file=slurm_site.gateway(self, self.slurm)))
            bars = stack.enter_context(Bars(jobs=number))
            for done, grid in self._progress(submitted):
                bars.show(done, grid)
                director.check()
                gateway.check()
                if done >= number * KILLED_AFTER:
                    director.kill_once()
                if grid.generated >= grid_job.EVENTS * KILLED_AFTER:
                    gateway.kill_once()
                if done == number and grid.has_ended:
                    return
        for each in (director, gateway):
            console.print(each.end_of_log(), markup=False)

    def _progress(self, submitted: Submitted) -> Iterator[tuple[int, Standing]]:
        """How many jobs are at their end, and the grid job; again and again until time is up."""
        deadline = time.monotonic() + PATIENCE
        with self.client() as client:
            while time.monotonic() < deadline:
                grid = submitted.grid_job.look(client)
                yield _ended(client) - grid.has_ended, grid
                time.sleep(0.5)

    def report(self, submitted: Submitted) -> str | None:
        """The tables at the end; what is wrong, None: nothing."""
        with self.client() as client:
            ran, pilots = look(client, self.slurm, submitted.jobs)
            grid = submitted.grid_job.look(client)
        self.say("Where jobs ran")
        console.print(jobs_table(ran))
        self.say("Pilots, by what Slurm was told of the node")
        console.print(pilots_table(pilots))
        if any(each.status != "Done" for each in ran):
            return "jobs are not Done"
        if not all(_is_right(each) for each in ran):
            return "jobs ran on nodes that they did not ask for"
        if twice := doubled(pilots):
            return f"pilots were sent twice: {', '.join(twice)}"
        if grid.status != "Done":
            return f"the grid job is {grid.status}"
        self.say(f"The grid job: {sum(grid.local_jobs.values())} local jobs, one tar")
        return submitted.grid_job.fetch()


def _ended(client: ServiceClient) -> int:
    rows = client.summary(by=["status"], filters={"status": "Done,Failed,Killed"})
    return sum(row["count"] for row in rows)


def _is_right(ran: Ran) -> bool:
    allowed = ALLOWED.get(ran.name)
    return allowed is None or (ran.queue, ran.node) in allowed


class Bars:
    """Jobs, and events of the grid job; used with `with`."""

    def __init__(self, *, jobs: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console)
        self._jobs = self._bars.add_task("Jobs done", total=jobs)
        self._events = self._bars.add_task("Events of the grid job", total=EVENTS)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, done: int, grid: Standing) -> None:
        """Draw them anew."""
        states = Counter(grid.local_jobs)
        said = ", ".join(f"{number} {state}" for state, number in sorted(states.items()) if number)
        self._bars.update(self._jobs, completed=done)
        about = f"Events of the grid job ({said or grid.status})"
        self._bars.update(self._events, completed=grid.generated, description=about)
