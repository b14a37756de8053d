"""`pilotage queue`: the batch queues of the resource tree."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from cs_config.tree.address import QueueAddress
from cs_config.tree.inheritance import Parameter
from pilotage.cli import options, output
from pilotage.cli.commands import job_show
from pilotage.cli.connection import ServiceOptions

if TYPE_CHECKING:
    from cs_config.tree.configuration import Configuration

#: Parameters in the list of queues.
_SHOWN = ("CEType", "MaxRAM", "NumberOfProcessors", "GPUs", "maxWallClockTime", "OS")


def list_queues(
    *,
    vo: Annotated[str | None, options.option("VO", "Only queues that this VO may use now.")] = None,
    site: Annotated[str | None, options.option("SITE", "Only queues of this site.")] = None,
    service: ServiceOptions,
) -> None:
    """List the queues."""
    config = _current(service)
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
    service.emit({"queues": data}, lambda: output.table(headings, rows))


def show(
    queue: options.Queue,
    *,
    vo: Annotated[str | None, options.option("VO", "Effective values for this VO.")] = None,
    service: ServiceOptions,
) -> None:
    """Show the effective parameters of a queue, each with the level and line where it is set."""
    config = _current(service)
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
    service.emit(data, lambda: output.table(headings, rows))


def explain(queue: options.Queue, *, service: ServiceOptions) -> None:
    """Explain which waiting jobs a queue may run, what excludes the others, and what it could offer."""
    address = QueueAddress.parse(queue)
    with service.connect() as client:
        found = client.explain_queue(str(address))
    service.emit(found, lambda: job_show.explain_queue(found))


def drain(
    queue: options.Queue,
    *,
    reason: Annotated[str, options.option("R", "Reason, stored in the history of the configuration.")] = "",
    service: ServiceOptions,
) -> None:
    """Send no new jobs to a queue; running jobs continue. Sets `Enabled: false` at the queue."""
    address = QueueAddress.parse(queue)
    with service.connect() as client:
        stored = client.drain_queue(str(address), message=reason)
    service.emit(stored, lambda: f"{address}: gets no new jobs")


def resume(queue: options.Queue, *, service: ServiceOptions) -> None:
    """Send jobs to a drained queue again."""
    address = QueueAddress.parse(queue)
    with service.connect() as client:
        stored = client.resume_queue(str(address))
    service.emit(stored, lambda: f"{address}: gets jobs again")


def _current(service: ServiceOptions) -> "Configuration":
    """The configuration in force without expired values."""
    from pilotage.cli.commands import config_request  # imported late: it needs more time than a request

    return config_request.fetch_configuration(service).at_moment(datetime.now(UTC))


def _as_json(config: "Configuration", address: QueueAddress, vo: str | None) -> dict[str, object]:
    usable = {} if vo is None else {"usable": config.usable(address, vo)}
    values = {p.name: p.value for p in config.parameters(address, vo or "").values()}
    return {"queue": str(address), **usable, "parameters": values}
