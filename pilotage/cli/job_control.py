"""`pilotage job kill` and `reschedule`."""

from collections.abc import Callable, Mapping
from typing import Any

import typer

from pilotage.cli import job_ids, options, output
from pilotage.cli.connection import connect
from pilotage.cli.failures import REFUSED, WrongUsage
from pilotage.fabric.client import ApiError, Client


def kill(
    ids: options.JobIds = None,
    *,
    status: options.StatusFilter = None,
    vo: options.VoFilter = None,
    owner: options.OwnerFilter = None,
    site: options.SiteFilter = None,
    pool: options.PoolFilter = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """End jobs, by their ids or all that pass the filters; a running payload is told to stop."""
    filters = job_ids.filters(status=status, vo=vo, owner=owner, site=site, pool=pool)
    with connect(home=home, url=url) as client:
        result = _change(client, job_ids.parse(ids), filters, one=Client.kill, many=Client.kill_all)
    _report("Killed", result, as_json=as_json)


def reschedule(
    ids: options.JobIds = None,
    *,
    status: options.StatusFilter = None,
    vo: options.VoFilter = None,
    owner: options.OwnerFilter = None,
    site: options.SiteFilter = None,
    pool: options.PoolFilter = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Send jobs through the optimizers again, by their ids or all that pass the filters."""
    filters = job_ids.filters(status=status, vo=vo, owner=owner, site=site, pool=pool)
    with connect(home=home, url=url) as client:
        result = _change(
            client, job_ids.parse(ids), filters, one=Client.reschedule, many=Client.reschedule_all
        )
    _report("Rescheduled", result, as_json=as_json)


def _change(
    client: Client,
    ids: list[int],
    filters: Mapping[str, str],
    *,
    one: Callable[[Client, int], Any],
    many: Callable[[Client, Mapping[str, str]], Any],
) -> dict[str, list[Any]]:
    """Ids that changed under `job_ids`, the others with the reason under `refused`."""
    if bool(ids) == bool(filters):
        raise WrongUsage("name either job ids or filters such as --status")
    if filters:
        answer = many(client, filters)
        return {"job_ids": answer["job_ids"], "refused": answer.get("refused", [])}
    result: dict[str, list[Any]] = {"job_ids": [], "refused": []}
    for job_id in ids:
        try:
            one(client, job_id)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            result["refused"].append({"job_id": job_id, "reason": str(error)})
        else:
            result["job_ids"].append(job_id)
    return result


def _report(done: str, result: Mapping[str, list[Any]], *, as_json: bool) -> None:
    changed, refused = result["job_ids"], result["refused"]
    output.emit(
        result, as_json=as_json, render=lambda: f"{done} {len(changed)}: {job_ids.shown(changed) or 'none'}"
    )
    for each in refused:
        job, reason = f"job {each['job_id']}", each["reason"]
        typer.echo(f"pilotage: {reason if reason.startswith(f'{job} ') else f'{job}: {reason}'}", err=True)
    if refused:
        raise typer.Exit(REFUSED)
