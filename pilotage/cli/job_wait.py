"""`pilotage job wait`."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from pilotage.cli import job_ids, job_show, options, output
from pilotage.cli.connection import connect
from pilotage.cli.failures import REFUSED, Refused, WrongUsage
from pilotage.cli.waiting_bars import WaitingBars
from pilotage.fabric.client import Client
from taskqueue.states import FINAL, JobStatus

#: Seconds between two looks.
_PAUSE = 0.5
#: Jobs that a filter may name; more are waited for in parts.
_MOST = 100_000


def wait(
    ids: options.JobIds = None,
    *,
    status: options.StatusFilter = None,
    vo: options.VoFilter = None,
    owner: options.OwnerFilter = None,
    site: options.SiteFilter = None,
    pool: options.PoolFilter = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="Give up after so many seconds.")] = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Wait until jobs are at their end; status 0 if all are Done, else 1."""
    filters = job_ids.filters(status=status, vo=vo, owner=owner, site=site, pool=pool)
    wanted = job_ids.parse(ids)
    if bool(wanted) == bool(filters):
        raise WrongUsage("name either job ids or filters such as --status")
    with connect(home=home, url=url) as client:
        if filters:
            wanted = _ids(client, filters)
        statuses = until_final(client, wanted, timeout=timeout)
    counts = Counter(statuses.values())
    said = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    output.emit({"jobs": statuses, "counts": counts}, as_json=as_json, render=lambda: said or "no jobs")
    if set(counts) - {JobStatus.DONE}:
        raise typer.Exit(REFUSED)


def _ids(client: Client, filters: Mapping[str, str]) -> list[int]:
    found = job_show.first(client, filters, _MOST)
    if found.next is not None:
        raise Refused(f"more than {_MOST:,} jobs pass the filters; narrow them, or name ids")
    return [job["job_id"] for job in found.entries]


def until_final(client: Client, ids: Sequence[int], *, timeout: float | None) -> Mapping[int, str]:
    """Look again and again until every job is at its end, or time is up.

    Returns:
        The status of each job when it was last looked at.

    Raises:
        Refused: One of the jobs does not exist.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    statuses: dict[int, str] = {}
    open_ids = list(ids)
    with WaitingBars(len(ids), client.job) as bars:
        while open_ids:
            seen = {job["job_id"]: job["status"] for job in job_show.by_id(client, open_ids)}
            if unknown := [job_id for job_id in open_ids if job_id not in seen]:
                raise Refused(f"no job {job_ids.shown(unknown)}")
            statuses.update(seen)
            open_ids = [job_id for job_id in open_ids if seen[job_id] not in FINAL]
            running = [job_id for job_id in open_ids if seen[job_id] == JobStatus.RUNNING]
            bars.show(ended=len(ids) - len(open_ids), total=len(ids), running=running)
            if deadline is not None and time.monotonic() >= deadline:
                break
            if open_ids:
                time.sleep(_PAUSE)
    return statuses
