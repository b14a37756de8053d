"""`pilotage queue`: the batch queues of the resource tree."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

from rich.console import RenderableType

from cs_config.source.sections import format_origin
from cs_config.source.yaml_reader import resolve_word
from cs_config.tree.address import QueueAddress
from pilotage.cli import options, output, reason_options
from pilotage.cli.commands import job_show
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import WrongUsage
from pilotage.cli.output import Entry
from requirements.values import lookup

#: Parameters in the list of queues.
_SHOWN = ("CEType", "MaxRAM", "NumberOfProcessors", "GPUs", "maxWallClockTime", "OS")


def list_queues(
    *,
    vo: Annotated[str | None, options.option("VO", "Only queues that this VO may use now.")] = None,
    site: Annotated[str | None, options.option("SITE", "Only queues of this site.")] = None,
    service: ServiceOptions,
) -> None:
    """List the queues.

    Example: `pilotage queue list --site LCG.CERN.ch`.
    """
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
    """Show the effective parameters of a queue, each with the level and line where it is set.

    Example: `pilotage queue show LCG.CERN.ch/ce1/long --vo cms`.
    """
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


def find(
    *,
    requires: Annotated[
        list[str] | None,
        options.option(
            "NAME=V1,V2…", "Required of the queue, with what it inherits; repeated. Or an expression."
        ),
    ] = None,
    ce: Annotated[
        list[str] | None, options.option("NAME=V1,V2…", "The same, required of the CE.", "--ce-requires")
    ] = None,
    node: Annotated[str, options.option("TYPE", "What to list: Queue, CE or Site.")] = "Queue",
    vo: Annotated[str | None, options.option("VO", "VO whose values count (default: the token's).")] = None,
    service: ServiceOptions,
) -> None:
    """Find the queues, CEs or sites that a VO may use and that have what is required.

    A site admin finds those of the own site, for any VO.

    Example: `pilotage queue find --requires 'maxWallClockTime>=86400' --vo cms`.
    """
    queue, of_ce = map(parse_selection, (requires or (), ce or ()))
    with service.connect() as client:
        found = client.eligible_nodes(vo=vo, node=node, ce=of_ce, queue=queue)
    required = [name for each in (queue, of_ce) if not isinstance(each, str) for name in each]
    service.emit(found, lambda: _found_table(found, node, list(dict.fromkeys(required)) or _SHOWN))


def _found_table(found: Entry, node: str, names: Sequence[str]) -> RenderableType:
    levels = {"Site": 1, "CE": 2}.get(node, 3)
    nodes: list[tuple[tuple[str, ...], Entry]] = [((site,), below) for site, below in found.items()]
    for _ in range(levels - 1):
        nodes = [((*path, name), below) for path, each in nodes for name, below in each.items()]
    rows = (("/".join(path), *(lookup(values, name) for name in names)) for path, values in nodes)
    return output.table(("/".join(("Site", "CE", "Queue")[:levels]), *names), rows)


_REQUIRED = re.compile(r"([A-Za-z_][\w.]*)=(?![=?!])(.*)", re.DOTALL)


def parse_selection(words: Sequence[str]) -> Mapping[str, object] | str:
    """Words `NAME=V1,V2` as required values, read as in YAML; or a single expression."""
    if len(words) == 1 and not _REQUIRED.fullmatch(words[0]):
        return words[0]
    selection: dict[str, object] = {}
    for word in words:
        if not (found := _REQUIRED.fullmatch(word)):
            raise WrongUsage(f"{word!r:.80} is not NAME=VALUE; an expression stands alone")
        try:
            values = [resolve_word(each) if each else "" for each in found[2].split(",")]
        except ValueError as error:
            raise WrongUsage(f"{word!r:.80}: {error}") from None
        if found[1] in selection:
            raise WrongUsage(f"{found[1]} is required twice; several values are V1,V2")
        selection[found[1]] = values[0] if len(values) == 1 else values
    return selection


def explain(queue: options.Queue, *, service: ServiceOptions) -> None:
    """Explain which waiting jobs a queue may run, what excludes the others, and what it could offer.

    Example: `pilotage queue explain LCG.CERN.ch/ce1/long`.
    """
    address = str(QueueAddress.parse(queue))
    service.show(lambda client: client.explain_queue(address), job_show.explain_queue)


def drain(
    queue: options.Queue,
    *,
    reason: Annotated[
        str | None,
        reason_options.reason_option(
            "Reason, shown to users, and stored in the history of the configuration."
        ),
    ] = None,
    service: ServiceOptions,
) -> None:
    """Send no new jobs to a queue; running jobs continue. Sets `Enabled: false` at the queue.

    Example: `pilotage queue drain LCG.CERN.ch/ce1/long --reason 'jobs fail at once'`.
    """
    address = str(QueueAddress.parse(queue))
    service.show(
        lambda client: client.drain_queue(address, message=reason or ""),
        lambda _: f"{address}: gets no new jobs",
    )


def resume(queue: options.Queue, *, service: ServiceOptions) -> None:
    """Send jobs to a drained queue again.

    Example: `pilotage queue resume LCG.CERN.ch/ce1/long`.
    """
    address = str(QueueAddress.parse(queue))
    service.show(lambda client: client.resume_queue(address), lambda _: f"{address}: gets jobs again")
