"""`pilotage downtime`: planned downtimes of sites and CEs, by hand and from feeds."""

import ssl
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import httpx
from rich.console import RenderableType

from cs_config.formats import downtimes
from pilotage.bounded_http import BoundedTransport
from pilotage.cli import options, output, reason_options
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import CommandRefused, WrongUsage, harmless
from pilotage.cli.output import Column, Entry

#: Bytes of a feed, and seconds until all of it is there.
MOST: Final = 32 << 20
LONGEST: Final = 120.0


def add(
    place: Annotated[str, options.argument("SITE[/CE]", "Site or CE that is down.")],
    *,
    begins: Annotated[str, reason_options.time_option("Begin", "--from")],
    ends: Annotated[str, reason_options.time_option("End", "--until")],
    reason: Annotated[str, reason_options.reason_option("Reason, shown to users.")],
    severity: Annotated[
        str, options.option("S", "OUTAGE closes the place, WARNING is only shown.")
    ] = downtimes.OUTAGE,
    service: ServiceOptions,
) -> None:
    """Plan a downtime: jobs that would not end before it begins are not sent, during it only tests are.

    Example: `pilotage downtime add LCG.CERN.ch --from 2026-05-04 --until 2026-05-05 --reason 'new switches'`.
    """
    service.show(
        lambda client: client.plan_downtime(
            place, begins=begins, ends=ends, reason=reason, severity=severity.upper()
        ),
        lambda found: f"{place}: downtime {found['downtime_id']} is planned",
    )


def list_downtimes(
    site: Annotated[str | None, options.argument("SITE", "Only this site.")] = None,
    *,
    service: ServiceOptions,
) -> None:
    """List the downtimes that are not over, the earliest first.

    Example: `pilotage downtime list LCG.CERN.ch`.
    """
    service.show(
        lambda client: {"downtimes": client.downtimes(site)}, lambda found: table(found["downtimes"])
    )


def remove(
    downtime: Annotated[int, options.argument("ID", "Downtime, as `downtime list` numbers it.")],
    *,
    service: ServiceOptions,
) -> None:
    """Remove a downtime: its place is open at once. One of a feed comes back with the next import.

    Example: `pilotage downtime remove 12`.
    """
    service.show(
        lambda client: {"downtimes": client.remove_downtime(downtime)},
        lambda _: f"downtime {downtime}: removed",
    )


def import_feed(
    feed: Annotated[str, options.argument("FILE|URL", "XML of GOCDB, XML or YAML of OSG; - is stdin.")],
    *,
    source: Annotated[
        str | None,
        options.option("NAME", "Name of the feed, whose downtimes are replaced (default: gocdb or osg)."),
    ] = None,
    service: ServiceOptions,
) -> None:
    """Take over the downtimes of CEs that GOCDB or OSG's topology states now, for your sites.

    What the feed changed is changed, what it states no more is removed, and of an entry that cannot be read
    what it stated before stays: run it every few minutes.

    Example: `pilotage downtime import https://goc.example.org/downtimes.xml`.
    """
    read, now = downtimes.read_feed(_fetch(feed), feed), datetime.now(UTC)
    stated = [
        {**asdict(each), "begins": each.begins.isoformat(), "ends": each.ends.isoformat()}
        for each in read.entries
        if each.ends > now
    ]
    with service.connect() as client:
        answer = client.import_downtimes(source or read.source, stated, unreadable=list(read.unreadable))
    unreadable = (f"{key}: {why}: nothing is changed of it" for key, why in read.unreadable.items())
    answer["notes"] = [*unreadable, *answer["notes"]]
    for note in answer["notes"]:
        output.warn(note)
    counts = ("added", "changed", "removed", "unchanged")
    service.emit(answer, lambda: ", ".join(f"{answer[name]} {name}" for name in counts))


def _fetch(feed: str) -> bytes:
    """The content of a feed, bounded."""
    if feed == "-":
        content = sys.stdin.buffer.read(MOST + 1)
    elif feed.startswith(("https://", "http://")):
        content = _download(feed)
    else:
        with Path(feed).open("rb") as file:
            content = file.read(MOST + 1)
    if len(content) > MOST:
        raise WrongUsage(f"{feed}: more than {MOST >> 20} MB")
    return content


def _download(url: str) -> bytes:
    context = ssl.create_default_context()
    bounded = BoundedTransport(context, seconds=LONGEST, most=MOST, with_proxies=True)
    try:
        with httpx.Client(transport=bounded, timeout=LONGEST) as client:
            answer = client.get(url)
    except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandRefused(f"{url}: {harmless(str(error)) or type(error).__name__}") from error
    if answer.status_code != httpx.codes.OK:
        to = harmless(answer.headers.get("Location", ""))[:300]
        raise CommandRefused(f"{url}: answered with {answer.status_code}{to and f', which leads to {to}'}")
    return answer.content


def table(found: list[Entry]) -> RenderableType:
    """A table of downtimes."""
    return output.list_table(_COLUMNS, found) if found else "no downtime"


_COLUMNS: Mapping[str, Column] = {
    "#Id": "downtime_id",
    "Site/CE": "place",
    "From": lambda each: output.local_time(each["begins"]),
    "Until": lambda each: output.local_time(each["ends"]),
    "Severity": "severity",
    "Closed now": "is_closing",
    "Of": lambda each: each["source"] or each["author"],
    "Why": lambda each: " ".join(each["reason"].split())[:200],
}
