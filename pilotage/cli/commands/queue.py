"""`pilotage queue`: the batch queues of the resource tree."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.tree.inheritance import Parameter
from pilotage.cli import options, output
from pilotage.cli.commands import config_request, job_show
from pilotage.cli.connection import connect

#: Parameters in the list of queues.
_SHOWN = ("CEType", "MaxRAM", "NumberOfProcessors", "GPUs", "maxWallClockTime", "OS")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    queues = typer.Typer(help="List, explain, drain and resume batch queues.")
    queues.command("list")(list_queues)
    queues.command("show")(show)
    queues.command("explain")(explain)
    queues.command("drain")(drain)
    queues.command("resume")(resume)
    app.add_typer(queues, name="queue")


def list_queues(
    *,
    vo: Annotated[
        str | None, typer.Option(metavar="VO", help="Only queues that this VO may use now.")
    ] = None,
    site: Annotated[str | None, typer.Option(metavar="SITE", help="Only queues of this site.")] = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """List the queues."""
    config = _current(home=home, url=url)
    found = [
        address
        for address in config.addresses
        if (site is None or address.site == site) and (vo is None or config.usable(address, vo))
    ]
    data = [_as_json(config, address, vo) for address in found]
    rows = (
        (str(address), *(config.values(address, vo or "").get(name) for name in _SHOWN)) for address in found
    )
    headings = ("Site/CE/Queue", *_SHOWN)
    output.emit({"queues": data}, as_json=as_json, render=lambda: output.table(headings, rows))


def show(
    queue: options.Queue,
    *,
    vo: Annotated[str | None, typer.Option(metavar="VO", help="Effective values for this VO.")] = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Show the effective parameters of a queue, each with the level and line where it is set."""
    config = _current(home=home, url=url)
    address = config.require(QueueAddress.parse(queue))
    parameters = config.parameters(address, vo or "")
    ordered = [parameters[name] for name in sorted(parameters, key=str.casefold)]
    expired = config.expired(address, vo or "")
    data = _as_json(config, address, vo) | {
        "origins": {p.name: {"level": p.level, "file": p.file, "line": p.line} for p in ordered},
        "expired": {p.name: p.value for p in expired.values()},
    }
    listed: list[tuple[Parameter, object]] = [(p, p.value) for p in ordered]
    listed += [(p, f"expired, it was {output.cell(p.value)}") for p in expired.values()]
    rows = ((p.name, value, p.level, f"{p.file}:{p.line}") for p, value in listed)
    headings = ("Parameter", "Value", "Level", "Written in")
    output.emit(data, as_json=as_json, render=lambda: output.table(headings, rows))


def explain(
    queue: options.Queue,
    *,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Explain which waiting jobs a queue may run, what excludes the others, and what it could offer."""
    address = QueueAddress.parse(queue)
    with connect(home=home, url=url) as client:
        found = client.explain_queue(str(address))
    output.emit(found, as_json=as_json, render=lambda: job_show.explain_queue(found))


def drain(
    queue: options.Queue,
    *,
    reason: Annotated[
        str, typer.Option(metavar="R", help="Reason, stored in the history of the configuration.")
    ] = "",
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Send no new jobs to a queue; running jobs continue. Sets `Enabled: false` at the queue."""
    address = QueueAddress.parse(queue)
    with connect(home=home, url=url) as client:
        stored = client.drain_queue(str(address), message=reason)
    output.emit(stored, as_json=as_json, render=lambda: f"{address}: gets no new jobs")


def resume(
    queue: options.Queue,
    *,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Send jobs to a drained queue again."""
    address = QueueAddress.parse(queue)
    with connect(home=home, url=url) as client:
        stored = client.resume_queue(str(address))
    output.emit(stored, as_json=as_json, render=lambda: f"{address}: gets jobs again")


def _current(*, home: Path | None, url: str | None) -> Configuration:
    """The configuration in force without expired values."""
    return config_request.fetch_configuration(home=home, url=url).at_moment(datetime.now(UTC))


def _as_json(config: Configuration, address: QueueAddress, vo: str | None) -> dict[str, object]:
    usable = {} if vo is None else {"usable": config.usable(address, vo)}
    values = {p.name: p.value for p in config.parameters(address, vo or "").values()}
    return {"queue": str(address), **usable, "parameters": values}
