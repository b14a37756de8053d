"""The whole system on a real grid's resource tree.

Starts `pilotage up` in a temporary home directory, submits a few hundred jobs of several VOs, lets real
pilots for real queue names run them side by side, and shows what happened. Leaves nothing behind.
Exits 0 only if every job that can run is Done.
"""

import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.demo.installation import Installation, console, ended
from pilotage.cli import settings
from pilotage.cli.commands import tokens
from pilotage.service.auth import callers

GRID = Path(__file__).parents[1] / "osg" / "resources.yaml"
JOBS = Path(__file__).parents[1] / "osg" / "jobs"

#: VO and queue of each pilot.
PILOTS = (
    ("cms", "OSG.CERN.ch/ce503.cern.ch/CMSHTPC_T2_CH_CERN_ce503"),
    ("cms", "OSG.London.uk/ceprod03.grid.hep.ph.ic.ac.uk/CMSHTPC_T2_UK_London_IC_ceprod03"),
    ("cms", "OSG.MIT.us/ce01.cmsaf.mit.edu/CMSHTPC_T2_US_MIT_ce01"),
    ("dune", "OSG.CIEMAT.es/condorce1.ciemat.es/DUNE_T2_ES_CIEMAT_condorce1"),
    ("dune", "OSG.FNAL_GPGrid.us/gpce03.fnal.gov/FNAL_GPGrid_ce03_mcore_op_duneonly"),
    ("ligo", "OSG.UChicago.us/iut2-gk.mwt2.org/Engage_US_MWT2_iut2_condce_mcore"),
    ("osgvo", "OSG.SIUE-CC-production.us/cc-condor.hpc.siue.edu/OSG_US_SIUE_OS_CC"),
    ("osgvo", "OSG.UUCHPC.us/osggate.chpc.utah.edu/OSG_US_Utah_CHPC_osggate"),
)
#: Each description of production.yaml is submitted so often.
COPIES = 30
#: Where the new release gets installed while its job waits.
UPGRADED_CE = "        ce01.cmsaf.mit.edu:\n"
#: Queues of a pool that the table names.
QUEUES_SHOWN = 2
#: Seconds that the jobs may take together, on a slow machine too.
PATIENCE = 1200


def main() -> int:
    """Run the demonstration; the exit status."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pilotage-demo-") as name, ExitStack() as processes:
        demo = Demo(Path(name))
        demo.say("The service, its optimizers and agents, on the Open Science Grid's 980 queues")
        processes.enter_context(demo.service(demo.grid))
        demo.say("Jobs of four VOs")
        impossible, new_release, rfc, analysis, others = demo.submit_all()
        demo.say(f"{len(PILOTS)} pilots, each in a batch slot of another queue")
        processes.enter_context(demo.pilots())
        demo.say("One job waits for a release that no site has; the configuration is mended while it waits")
        demo.install_new_release(new_release)
        runnable = [*new_release, *rfc, *analysis, *others]
        statuses = demo.watch(runnable)
        demo.report(rfc=rfc[0], analysis=analysis, impossible=impossible[0])
    done = sum(status == "Done" for status in statuses.values())
    everything = done == len(runnable)
    colour = "green" if everything else "red"
    seconds = time.monotonic() - started
    console.print(
        f"\n[bold {colour}]{done} of {len(runnable)} runnable jobs are Done[/], after {seconds:.0f} s."
    )
    return 0 if everything else 1


class Demo(Installation):
    """The installation, and what is done with it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.grid = directory / "resources.yaml"
        self.grid.write_text(GRID.read_text(encoding="utf-8"), encoding="utf-8")

    def submit_all(self) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
        """Ids of the jobs, kind by kind."""
        many = ("--count", str(COPIES))
        samples = ("--param", "SAMPLE=data,top,higgs,background")
        submissions: tuple[tuple[str | Path, ...], ...] = (
            (JOBS / "impossible.jdl",),
            (JOBS / "new-release.jdl",),
            (JOBS / "rfc.jdl",),
            (JOBS / "analysis.jdl", *samples),
            (JOBS / "production.yaml", *many),
        )
        ids = [self.run("job", "submit", *submission)["job_ids"] for submission in submissions]
        console.print(f"{sum(map(len, ids))} jobs were accepted.")
        return ids[0], ids[1], ids[2], ids[3], ids[4]

    @contextmanager
    def pilots(self) -> Iterator[None]:
        """One pilot for each of `PILOTS`, side by side, until the end of the block."""
        chosen = settings.load({}, self.environment)
        with ExitStack() as running:
            for number, (vo, queue) in enumerate(PILOTS):
                console.print(f"  {vo:6} {queue}")
                token, _ = tokens.mint_token(chosen, callers.grant(role="pilot", vo=vo, queue=queue))
                running.enter_context(self._pilot(number, queue, token))
            yield

    @contextmanager
    def _pilot(self, number: int, queue: str, token: str) -> Iterator[None]:
        site, ce, name = queue.split("/")
        directory = self.directory / f"slot{number}"
        directory.mkdir()
        environment = {**self.reached(), "PILOTAGE_TOKEN": token}
        words = ("pilot", "--site", site, "--ce", ce, "--queue", name)
        log = directory / "pilot.log"
        with ended(self.start(*words, log=log, directory=directory, **environment), signal.SIGTERM):
            yield

    def install_new_release(self, ids: Sequence[int]) -> None:
        """Add a software tag at one site; the job that waits for it becomes runnable by itself."""
        with self.client() as client:
            job = client.job(ids[0])
        console.print(f"job {ids[0]} is {job['status']}: {job['minor_status']}")
        tree = self.grid.read_text(encoding="utf-8")
        addition = "          SoftwareTag: [AppVersion4]\n"
        self.grid.write_text(tree.replace(UPGRADED_CE, UPGRADED_CE + addition), encoding="utf-8")
        answer = self.run("config", "apply", self.grid, "--message", "AppVersion4 is at MIT")
        console.print(f"version {answer['version']} of the configuration is in force.")

    def watch(self, ids: Sequence[int]) -> dict[str, str]:
        """Wait for the jobs; their statuses at the end."""
        console.print()
        columns = (TextColumn("Jobs done"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        deadline = time.monotonic() + PATIENCE
        with Progress(*columns, console=console) as bar, self.client() as client:
            task = bar.add_task("jobs", total=len(ids))
            while time.monotonic() < deadline:
                rows = client.summary(by=["status"], filters={"status": "Done,Failed,Killed"})
                final = sum(row["count"] for row in rows)
                bar.update(task, completed=final)
                if final >= len(ids):
                    break
                time.sleep(0.5)
            listed = client.jobs({}, limit=1000)["jobs"]
        return {str(job["job_id"]): job["status"] for job in listed if job["job_id"] in set(ids)}

    def report(self, *, rfc: int, analysis: Sequence[int], impossible: int) -> None:
        """The tables at the end."""
        self.say("Jobs by VO, pool, site and status")
        self._jobs_table()
        self.say("Pools with their queues")
        self._pools_table()
        self.say("The RFC's job")
        self.show("job", "log", str(rfc))
        target = self.directory / "output"
        files = self.run("job", "output", str(rfc), str(analysis[-1]), "--directory", target)["files"]
        for file in (Path(file) for found in files.values() for file in found):
            if not file.stat().st_size:
                continue
            console.print(f"[dim]{file.relative_to(target)}:[/]")
            console.print(file.read_text().rstrip(), markup=False)
        self.say("The job that cannot run, and why")
        self.show("job", "explain", str(impossible))

    def _jobs_table(self) -> None:
        by = ("vo", "submit_pool", "site", "status")
        with self.client() as client:
            rows = client.summary(by=by, filters={})
        table = Table("VO", "Pool", "Site", "Status", box=SIMPLE_HEAD)
        table.add_column("Jobs", justify="right")
        for row in sorted(rows, key=lambda row: [str(row[name]) for name in by]):
            colour = "green" if row["status"] == "Done" else "yellow"
            pool = (row["submit_pool"] or "–")[:12]
            table.add_row(row["vo"], pool, row["site"], f"[{colour}]{row['status']}", str(row["count"]))
        console.print(table)

    def _pools_table(self) -> None:
        table = Table("Pool", "VO", "Requirements", box=SIMPLE_HEAD)
        table.add_column("Eligible queues", overflow="fold")
        for pool in self.run("pool", "list")["pools"]:
            queues = pool["queues"][:QUEUES_SHOWN]
            more = len(pool["queues"]) - len(queues)
            shown = [*queues, *([f"… and {more} more"] if more else [])] or ["none"]
            table.add_row(pool["pool_id"][:12], pool["vo"], _requirements(pool), "\n".join(shown))
        console.print(table)


def _requirements(pool: dict[str, Any]) -> str:
    asked = pool["requirements"]
    if isinstance(asked, str):
        return asked
    return "\n".join(f"{name} = {_words(value)}" for name, value in asked.items())


def _words(value: object) -> str:
    return " | ".join(map(str, value)) if isinstance(value, list) else str(value)
