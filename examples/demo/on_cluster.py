"""Three nodes of PostgreSQL under Patroni, two hosts of the service, Redis with Sentinels, and faults.

Starts all of it on this machine from the files in `deploy`, with users and pilots, and breaks one part after
the other. Shows what each fault cost; without flaws it leaves nothing behind. Exits 0 only if nothing that
was acknowledged is lost or doubled, no limit was exceeded, nobody had to run `db recover`, and writes were
away for 30 s at most.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from examples.cluster import campaign
from examples.cluster.campaign import ClusterPlan, ClusterReport
from examples.demo.installation import console
from examples.servers import cluster, debian, patroni_package

MINUTES = 10.0
#: Flaws that are shown.
_SHOWN = 20


def main(*, minutes: float | None, seed: int | None, kinds: frozenset[str] | None, install: bool) -> int:
    """Run the demonstration, with all kinds of faults or some; the exit status."""
    if install:
        debian.install([cluster.SUITE] if cluster.SUITE.missing else [])
    if lack := cluster.SUITE.lack:
        sys.stderr.write(f"./dev demo --cluster: {lack}\n")
        return 2
    seed = int(time.time()) if seed is None else seed
    minutes = MINUTES if minutes is None else minutes
    began = time.monotonic()

    def tell(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:5.0f} s[/] {text}")

    console.print(f"Patroni {patroni_package.VERSION} from PyPI; faults for {minutes:g} minutes, seed {seed}")
    directory = Path(tempfile.mkdtemp(prefix="pilotage-demo-"))
    plan = ClusterPlan(seed=seed, seconds=60 * minutes, directory=directory, kinds=kinds, tell=tell)
    report = campaign.run(plan)
    _show(report)
    if report.flaws:
        console.print(f"All logs are in {directory}")
    else:
        shutil.rmtree(directory)
    return int(bool(report.flaws))


def _show(report: ClusterReport) -> None:
    table = Table("Fault", box=SIMPLE_HEAD)
    table.add_column("times", justify="right")
    table.add_column("longest without a write, s", justify="right")
    for name, number in sorted(report.faults.items()):
        table.add_row(name, str(number), f"{report.silences[name]:.1f}")
    console.print(table)
    statuses = ", ".join(f"{number} x {status}" for status, number in sorted(report.statuses.items()))
    console.print(f"{sum(report.statuses.values())} requests: {statuses}")
    console.print(
        f"{report.submitted} jobs submitted, {report.finished} finished; at most {report.most} at the limit"
    )
    console.print(
        f"lost {len(report.lost)}, doubled {len(report.doubled)}, over a limit {len(report.over_limit)}, "
        f"longest silence {max(report.silences.values(), default=0.0):.1f} s, "
        f"db recover wanted {len(report.recoveries)} times"
    )
    for flaw in report.flaws[:_SHOWN]:
        console.print(f"[bold red]{flaw}[/]")
    if not report.flaws:
        console.print("[bold green]Nothing is lost.[/]")
