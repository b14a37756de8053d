"""`pilotage queue`: the batch queues of the resource tree."""

from functools import partial
from typing import Annotated

from cs_config.source.sections import format_origin
from cs_config.tree.address import QueueAddress
from pilotage.cli import options, output
from pilotage.cli.commands import job_show
from pilotage.cli.connection import ServiceOptions

#: Parameters in the list of queues.
_SHOWN = ("CEType", "MaxRAM", "NumberOfProcessors", "GPUs", "maxWallClockTime", "OS")


def list_queues(
    *,
    vo: Annotated[str | None, options.option("VO", "Only queues that this VO may use now.")] = None,
    site: Annotated[str | None, options.option("SITE", "Only queues of this site.")] = None,
    service: ServiceOptions,
) -> None:
    """List the queues."""
    filters = {name: value for name, value in (("vo", vo), ("site", site)) if value is not None}
    with service.connect() as client:
        found = output.read_pages("queues", partial(client.queues, filters)).entries
    usable = {} if vo is None else {"usable": True}
    data = [{"queue": each["queue"], **usable, "parameters": each["parameters"]} for each in found]
    rows = ((each["queue"], *(each["parameters"].get(name) for name in _SHOWN)) for each in found)
    headings = ("Site/CE/Queue", *_SHOWN)
    service.emit({"queues": data}, lambda: output.table(headings, rows))


def show(
    queue: options.Queue,
    *,
    vo: Annotated[str | None, options.option("VO", "Effective values for this VO.")] = None,
    service: ServiceOptions,
) -> None:
    """Show the effective parameters of a queue, each with the level and line where it is set."""
    address = QueueAddress.parse(queue)
    with service.connect() as client:
        found = client.queue(str(address), vo or "")
    parameters, expired = found["parameters"], found["expired"]
    ordered = sorted(parameters.items(), key=lambda each: each[0].casefold())
    data = {
        "queue": found["queue"],
        **({} if vo is None else {"usable": found["usable"]}),
        "parameters": {name: each["value"] for name, each in parameters.items()},
        "origins": {name: {key: each[key] for key in ("level", "file", "line")} for name, each in ordered},
        "expired": {name: each["value"] for name, each in expired.items()},
    }
    listed = [(name, each, each["value"]) for name, each in ordered]
    listed += [
        (name, each, f"expired, it was {output.cell(each['value'])}") for name, each in expired.items()
    ]
    rows = (
        (name, value, each["level"], format_origin(each["file"], each["line"]))
        for name, each, value in listed
    )
    headings = ("Parameter", "Value", "Level", "Written in")
    service.emit(data, lambda: output.table(headings, rows))


def explain(queue: options.Queue, *, service: ServiceOptions) -> None:
    """Explain which waiting jobs a queue may run, what excludes the others, and what it could offer."""
    address = str(QueueAddress.parse(queue))
    service.show(lambda client: client.explain_queue(address), job_show.explain_queue)


def drain(
    queue: options.Queue,
    *,
    reason: Annotated[str, options.option("R", "Reason, stored in the history of the configuration.")] = "",
    service: ServiceOptions,
) -> None:
    """Send no new jobs to a queue; running jobs continue. Sets `Enabled: false` at the queue."""
    address = str(QueueAddress.parse(queue))
    service.show(
        lambda client: client.drain_queue(address, message=reason), lambda _: f"{address}: gets no new jobs"
    )


def resume(queue: options.Queue, *, service: ServiceOptions) -> None:
    """Send jobs to a drained queue again."""
    address = str(QueueAddress.parse(queue))
    service.show(lambda client: client.resume_queue(address), lambda _: f"{address}: gets jobs again")
