"""Jobs and pilots after it is over: the service knows the pilot of each job, Slurm the node of each pilot."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from examples.servers.slurm import Slurm
from pilotage.client.api import ServiceClient

_MOST_PILOTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What became of one job."""

    vo: str
    name: str
    queue: str
    node: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A pilot in Slurm."""

    stamp: str
    vo: str
    queue: str
    told: str  #: what Slurm was told of its node
    node: str  #: empty: it never ran
    jobs: int


def look(client: ServiceClient, slurm: Slurm, jobs: Sequence[int]) -> tuple[list[Ran], list[Sent]]:
    """All jobs and all pilots."""
    known = {pilot["stamp"]: pilot for pilot in client.pilots({}, limit=_MOST_PILOTS)["pilots"]}
    sent = []
    for line in slurm.ask("squeue", "--noheader", "--states=all", "--format=%j|%P|%f|%N").splitlines():
        stamp, queue, told, node = line.split("|")
        if pilot := known.get(stamp):
            told = told.replace("(null)", "")
            sent.append(
                Sent(stamp=stamp, vo=pilot["vo"], queue=queue, told=told, node=node, jobs=int(pilot["jobs"]))
            )
    nodes = {each.stamp: each.node for each in sent}
    return [_ran(client.job(job), nodes) for job in jobs], sent


def _ran(job: Mapping[str, Any], nodes: Mapping[str, str]) -> Ran:
    attempt = job["attempt"] or {}
    return Ran(
        vo=job["vo"],
        name=job["job_name"],
        queue=attempt.get("queue", "–"),
        node=nodes.get(attempt.get("pilot"), "–"),
        status=job["status"],
    )


def doubled(pilots: Iterable[Sent]) -> list[str]:
    """Stamps that more than one batch job bears."""
    return sorted(stamp for stamp, number in Counter(each.stamp for each in pilots).items() if number > 1)


def jobs_table(ran: Iterable[Ran]) -> Table:
    """Jobs by all that is known of them."""
    table = Table("VO", "Job", "Partition", "Node", "Status", box=SIMPLE_HEAD)
    table.add_column("Jobs", justify="right")
    counts = Counter((each.vo, each.name, each.queue, each.node, each.status) for each in ran)
    for (vo, name, queue, node, status), number in sorted(counts.items()):
        colour = "green" if status == "Done" else "red"
        table.add_row(vo, name, queue, node, f"[{colour}]{status}", str(number))
    return table


def pilots_table(sent: Iterable[Sent]) -> Table:
    """Pilots with the number of jobs that they had."""
    table = Table("VO", "Partition", "--constraint", "Node", box=SIMPLE_HEAD)
    for name in ("Pilots", "Jobs", "Without a job"):
        table.add_column(name, justify="right")
    groups: dict[tuple[str, str, str, str], list[Sent]] = defaultdict(list)
    for each in sent:
        groups[each.vo, each.queue, each.told, each.node].append(each)
    for words, pilots in sorted(groups.items()):
        jobs, empty = sum(each.jobs for each in pilots), sum(not each.jobs for each in pilots)
        table.add_row(*(word or "–" for word in words), str(len(pilots)), str(jobs), str(empty))
    return table
