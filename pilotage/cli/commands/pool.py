"""`pilotage pool`: SubmitPools, which are Requirements of jobs with the queues eligible for them."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from rich.console import Group, RenderableType

from cs_config.tree.address import QueueAddress
from pilotage.cli import options, output
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import CommandRefused
from pilotage.cli.output import Column, Entry
from pilotage.client.api import ServiceClient
from requirements.errors import format_count

#: Digits of an id in tables, enough to identify a pool.
_SHORT = 12
#: Queues in one request; the service answers a person for no more.
_QUEUES = 20
#: Fields of a pool that `show` formats separately.
_SEPARATE = {"queues", "requirements", "jobs", "more_jobs"}


def list_pools(
    *,
    vo: Annotated[str | None, options.option("VO", "Only pools of this VO.")] = None,
    limit: output.Limit = 1000,
    after: Annotated[str | None, options.option("ID", "Only pools after this one (next page).")] = None,
    service: ServiceOptions,
) -> None:
    """List the pools with their numbers of queues and jobs, ordered by id.

    Example: `pilotage pool list --vo cms`.
    """
    filters = {"vo": vo} if vo else {}
    with service.connect() as client:
        found = output.read_pages("pools", partial(client.pools, filters), limit=limit, after=after)
    found.emit(_COLUMNS, as_json=service.as_json)


def show(
    pool_id: Annotated[str, options.argument("ID", "Pool id, or its first digits if they are unambiguous.")],
    *,
    service: ServiceOptions,
) -> None:
    """Show one pool with all its queues.

    Example: `pilotage pool show 3f2a9c`.
    """
    is_whole = len(pool_id) == 64
    service.show(
        lambda client: client.pool(pool_id if is_whole else _complete(client, pool_id.lower())), _details
    )


def for_queue(
    queues: Annotated[
        list[str], options.argument("Site/CE/Queue", "Batch queues, such as LCG.CERN.ch/ce01.cern.ch/long.")
    ],
    *,
    service: ServiceOptions,
) -> None:
    """List the pools that each batch queue serves: whose jobs its pilots may get.

    A site admin sees those of all VOs at the own site.

    Example: `pilotage pool for-queue LCG.CERN.ch/ce1/long`.
    """
    wanted = [str(QueueAddress.parse(each)) for each in queues]
    with service.connect() as client:
        found = fetch_pools(client, wanted)
    rows = [(queue, pool) for queue, pools in found["pools"].items() for pool in pools or ["none"]]
    service.emit(found, lambda: output.table(("Site/CE/Queue", "Pool"), rows))
    for each in found["unknown"]:
        meant = f", did you mean {each['did_you_mean']}?" if each["did_you_mean"] else ""
        sys.stderr.write(f"{each['queue']}: no such queue{meant}\n")


def fetch_pools(client: ServiceClient, queues: Sequence[str]) -> dict[str, Any]:
    """The `pools` of each queue, and those that are `unknown`; in as many requests as it takes."""
    found = client.submit_pools(queues[:_QUEUES])
    for begin in range(_QUEUES, len(queues), _QUEUES):
        more = client.submit_pools(queues[begin : begin + _QUEUES])
        found["pools"] |= more["pools"]
        found["unknown"] += more["unknown"]
    return found


def _requirements(pool: Entry) -> str:
    requirements = pool["requirements"]
    if isinstance(requirements, Mapping):
        return "; ".join(f"{name} = {_value(value)}" for name, value in requirements.items())
    return str(requirements)


def _value(value: object) -> str:
    return "{" + ", ".join(map(str, value)) + "}" if isinstance(value, list) else str(value)


def _counts(pool: Entry) -> str:
    more = pool["more_jobs"]
    return ", ".join(
        f"{'more than ' if status in more else ''}{count} {status}" for status, count in pool["jobs"].items()
    )


_COLUMNS: Mapping[str, Column] = {
    "ID": lambda pool: pool["pool_id"][:_SHORT],
    "VO": "vo",
    "Requirements": _requirements,
    "#Queues": "eligible_queues",
    "Jobs": _counts,
}


def _complete(client: ServiceClient, start: str) -> str:
    """The only id with this prefix; ids are listed in order, so it is the first one after the prefix."""
    behind = client.pools({}, limit=2, after=start)["pools"]
    found = [pool["pool_id"] for pool in behind if pool["pool_id"].startswith(start)]
    if len(found) != 1:
        raise CommandRefused(f"several pools start with {start}" if found else f"no pool {start}")
    return str(found[0])


def _details(pool: Entry) -> RenderableType:
    facts = {name: value for name, value in pool.items() if name not in _SEPARATE}
    facts |= {"requirements": _requirements(pool), "jobs": _counts(pool)}
    queues = output.table((_eligible(pool),), ([queue] for queue in pool["queues"]))
    return Group(output.facts(facts, title="Pool"), queues)


def _eligible(pool: Entry) -> str:
    """Heading of the list of queues; of other VOs' pools, only queues at the caller's sites are listed."""
    shown, every = len(pool["queues"]), pool["eligible_queues"]
    number = f"{shown:,} of " if shown < every else ""
    return number + format_count(every, "eligible queue")
