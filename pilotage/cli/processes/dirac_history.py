"""`pilotage dirac-history`: numbers of jobs for the dashboards of DIRAC's Monitoring."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import typer

from cs_config.versions import store
from pilotage.cli import engine as cli_engine
from pilotage.cli import wiring
from pilotage.cli.errors import CommandRefused, harmless
from pilotage.cli.settings import Settings, command_with
from pilotage.dirac_door import monitoring
from pilotage.fabric.pilot.service import transport
from taskqueue.db import clock, database

#: Records in one request, and seconds for it.
_MOST, _SECONDS = 5_000, 120.0
#: As DIRAC makes them: dashboards sum by texts, which have to be keywords.
MAPPING: Final[Mapping[str, Any]] = {
    "mappings": {
        "properties": {
            "timestamp": {"type": "date"},
            **{name: {"type": "keyword"} for name in monitoring.HISTORY_KEYS},
        }
    }
}


@command_with("database_url")
def dirac_history(
    chosen: Settings,
    *,
    as_json: bool,
    opensearch: Annotated[
        str | None,
        typer.Option(metavar="URL", help="OpenSearch that gets the records; its password is in ~/.netrc."),
    ] = None,
    index: Annotated[
        str,
        typer.Option(metavar="NAME", help="Index in OpenSearch, to which the day is added, as by DIRAC."),
    ] = "wmshistory_index",
    authorities: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="CA certificates for OpenSearch (default: those of the system)."),
    ] = None,
) -> None:
    """Write the numbers of all jobs as records WMSHistory, as DIRAC's StatesAccountingAgent does.

    Prints a line of JSON for each record, or sends them to OpenSearch. Run it every 15 minutes.
    """
    with (
        cli_engine.translate_unreachable(chosen.database_url),
        wiring.open_current_engine(chosen) as engine,
        database.reading(engine) as conn,
    ):
        now = clock.read_time(conn, clock.utc_now())
        records = list(monitoring.list_history(conn, store.load_version(conn), now))
    if opensearch is None:
        for record in records:
            sys.stdout.write(json.dumps(record) + "\n")
        return
    named = f"{index}-{now.astimezone(UTC):%Y-%m-%d}"
    send(opensearch.rstrip("/"), named, records, authorities)
    result = {"index": named, "records": len(records)}
    typer.echo(json.dumps(result) if as_json else f"{len(records)} records are in {named}", err=not as_json)


def send(
    url: str, index: str, records: Sequence[Mapping[str, object]], authorities: Path | None = None
) -> None:
    """Send records to an index, which is made if it does not exist; `CommandRefused`."""
    place = _name_place(url)
    try:
        context = transport.tls_context(authorities)
        with httpx.Client(verify=context, timeout=_SECONDS, auth=_read_netrc()) as client:
            made = client.put(f"{url}/{index}", json=MAPPING)
            if "resource_already_exists_exception" not in made.text:
                made.raise_for_status()
            for begin in range(0, len(records), _MOST):
                body = "".join(_format_bulk(index, records[begin : begin + _MOST]))
                answer = client.post(
                    f"{url}/_bulk", content=body, headers={"Content-Type": "application/x-ndjson"}
                ).raise_for_status()
                if answer.json().get("errors"):
                    raise CommandRefused(
                        f"{place}: not all records were stored: {_name_failure(answer.json())}"
                    )
    except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandRefused(f"{place}: {harmless(str(error)) or type(error).__name__}") from None


def _name_place(url: str) -> str:
    """Host and port of a URL; `CommandRefused` if it has a user or password."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise CommandRefused(f"--opensearch: {harmless(str(error))}") from None
    if parts.userinfo:
        raise CommandRefused(f"--opensearch: {parts.host}: user and password belong in ~/.netrc")
    return parts.host if parts.port is None else f"{parts.host}:{parts.port}"


def _name_failure(answer: Mapping[str, Any]) -> str:
    """The number of failed records of a bulk request, and the error of the first."""
    results = [result for item in answer.get("items", []) for result in item.values()]
    failed = [result["error"] for result in results if result.get("error")]
    return f"{len(failed)} failed, the first: {harmless(json.dumps(failed[:1]))[:500]}"


def _read_netrc() -> httpx.NetRCAuth | None:
    file = Path.home() / ".netrc"
    return httpx.NetRCAuth(str(file)) if file.exists() else None


def _format_bulk(index: str, records: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Lines of a bulk request."""
    for record in records:
        yield json.dumps({"index": {"_index": index}}) + "\n"
        yield json.dumps(record) + "\n"
