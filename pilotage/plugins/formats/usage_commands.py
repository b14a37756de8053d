"""`pilotage usage records`: what jobs used at a site in a month, in formats of usage accounting."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cs_config.options import bounds
from pilotage.cli import options, output
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import CommandRefused, WrongUsage
from pilotage.plugins.formats import apel
from pilotage.plugins.formats.apel import WITHHELD, UsedSlot
from requirements.errors import did_you_mean, format_count

#: Queues that a message names.
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """What is written, and where."""

    format_name: Annotated[
        str,
        options.option(
            "F", "apel: each job; apel-summary: sums; apel-normalised: normalised sums.", "--format"
        ),
    ] = "apel"
    outgoing: Annotated[
        Path | None,
        options.option("DIR", "Write to this directory, from which ssmsend sends (default: print)."),
    ] = None
    plain: Annotated[
        bool, typer.Option("--plain", help="The directory is SSM's `path_type: directory`, not dirq.")
    ] = False
    gocdb_name: Annotated[
        str | None, options.option("NAME", "Name of the site in the records (default: SITE).")
    ] = None
    hepscore23: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="HEPScore23 of a core, for queues that state none.",
            min=bounds.LEAST_HEPSCORE,
            max=bounds.HEPSCORE,
        ),
    ] = None
    withhold_names: Annotated[
        bool, typer.Option("--withhold-names", help="Report no user: each name is `withheld`.")
    ] = False

    def __post_init__(self) -> None:
        """Reject an unknown format."""
        if self.format_name not in apel.FORMATS:
            meant = did_you_mean(self.format_name, apel.FORMATS)
            hint = f", did you mean {meant}?" if meant else ""
            raise WrongUsage(f"--format {self.format_name}: there are {', '.join(apel.FORMATS)}{hint}")


def records(
    *,
    site: Annotated[str, options.option("SITE", "Site, as the resource tree names it.")],
    month: Annotated[str, options.option("YYYY-MM", "Month, in UTC, in which the attempts ended.")],
    wanted: RecordOptions,
    service: ServiceOptions,
) -> None:
    """Write what jobs used at a site in a month as usage records for APEL.

    Each attempt that began is a record, in the month of its end. Names are reported of VOs of your token; of
    others they are withheld. --json prints the records as the service has them.

    Example: `pilotage usage records --site LCG.CERN.ch --month 2026-04`.
    """
    found = _fetch(site, month, service)
    if service.as_json:
        service.emit({"records": found}, str)
        return
    _require_power(found, wanted)
    used = [_read(row, wanted) for row in found]
    messages = list(apel.write_messages(wanted.format_name, site=wanted.gocdb_name or site, used=used))
    if not found:
        output.warn(f"no attempt ended at {site} in {month}: there is nothing to send")
        return
    if wanted.outgoing is None:
        sys.stdout.write("".join(messages))
        return
    for each in messages:
        _store(wanted.outgoing, each, plain=wanted.plain)
    counts = f"{format_count(len(found), 'attempt')}: {format_count(len(messages), 'message')}"
    typer.echo(f"{counts} in {wanted.outgoing}")


def _fetch(site: str, month: str, service: ServiceOptions) -> Sequence[Mapping[str, Any]]:
    """The records of all pages; a warning if accounting has counted more."""
    found: list[Mapping[str, Any]] = []
    accounted = 0
    with service.connect() as client:
        for page in client.usage_records(site, month):
            found += page["records"]
            accounted = page["accounted_attempts"] or 0
    missing = accounted - sum(each["attempts"] for each in found)
    if missing > 0:
        output.warn(
            f"accounting counted {format_count(missing, 'attempt')} more at {site} in {month}: "
            "their jobs are deleted"
        )
    if f"{datetime.now(UTC):%Y-%m}" <= month:
        output.warn(f"{month} is not over: send it again when it is")
    return found


def _require_power(rows: Sequence[Mapping[str, Any]], wanted: RecordOptions) -> None:
    """Refuse queues without a benchmark: their times would count as nothing."""
    lacking = sorted({f"{row['ce']}/{row['queue']}" for row in rows if row["hepscore23"] is None})
    if lacking and wanted.hepscore23 is None:
        more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
        raise CommandRefused(
            f"no HEPScore23 is stated for {', '.join(lacking[:_NAMED])}{more}: set the parameter at site, CE "
            "or queue, or give --hepscore23"
        )


def _read(row: Mapping[str, Any], wanted: RecordOptions) -> UsedSlot:
    name = None if wanted.withhold_names else row["dn"] or row["owner"]
    return UsedSlot(
        job=f"{row['job_id']}.{row['attempt']}",
        vo=row["vo"],
        name=name or WITHHELD,
        ce=row["ce"],
        queue=row["queue"],
        processors=row["processors"],
        started=datetime.fromisoformat(row["started"]),
        ended=datetime.fromisoformat(row["ended"]),
        wall_seconds=row["wall_seconds"],
        cpu_seconds=row["cpu_seconds"],
        peak_ram_mb=row["peak_ram_mb"],
        hepscore23=row["hepscore23"] or wanted.hepscore23 or 0.0,
    )


def _store(directory: Path, message: str, *, plain: bool) -> None:
    try:
        if plain:
            apel.store_in_directory(directory, message)
        else:
            apel.store_in_queue(directory, message, at=time.time())
    except OSError as error:
        raise CommandRefused(f"{directory}: {error.strerror or error}") from None
