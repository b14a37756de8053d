"""`pilotage dirac-door`, `dirac-history` and `dirac-document`: what DIRAC's users get from this installation.

The door has DIRAC's services over HTTPS, with certificates and proxies; the history, numbers of jobs for the
dashboards of DIRAC's Monitoring; the third command translates descriptions of jobs.
"""

import json
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TextIO
from weakref import WeakKeyDictionary

import httpx
import typer
import yaml
from cryptography import x509
from sqlalchemy import Engine, func, select
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cs_config import gc_tuning
from cs_config.versions import store
from pilotage.bounded_http import BoundedTransport
from pilotage.cli import engine as cli_engine
from pilotage.cli import process_setup, settings, wiring
from pilotage.cli.errors import CommandRefused, WrongUsage, harmless
from pilotage.cli.processes import serve, tls
from pilotage.cli.processes.client_connections import ClientConnection
from pilotage.cli.processes.tls import Certificate
from pilotage.cli.settings import Settings, command_with
from pilotage.fabric.pilot.service import transport
from pilotage.plugins.dirac import monitoring, routing
from pilotage.plugins.dirac.app import create_door
from pilotage.plugins.dirac.configuration_server import ConfigurationFile
from pilotage.plugins.dirac.documents import job_documents, pilot_documents
from pilotage.plugins.dirac.former import FormerServices
from pilotage.service.clients import STATE
from taskqueue.db import clock, database, sql
from taskqueue.schema.tables import jobs

#: A revoked certificate is accepted no longer than this.
_LONGEST = timedelta(minutes=10)
_AUTHORITIES = Path("/etc/grid-security/certificates")


class CertifiedRequests:
    """The door, with the verified certificates of its clients in their requests (TLS extension of ASGI).

    They are verified once, in the handshake: a connection outlives neither them nor ten minutes.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        #: By connection: the chain (PEM, the client's own first), and when the connection ends.
        self._chains: WeakKeyDictionary[ClientConnection, tuple[tuple[str, ...], datetime]] = (
            WeakKeyDictionary()
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the certificates, none if they must be verified again; near its end close the connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        now = datetime.now(UTC)
        chain, ends_at = self._find_chain(scope["state"][STATE], now)
        scope["extensions"] = {"tls": {"client_cert_chain": chain if now < ends_at else ()}}

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, send_last if now > ends_at - _LONGEST / 2 else send)

    def _find_chain(self, connection: ClientConnection, now: datetime) -> tuple[tuple[str, ...], datetime]:
        found = self._chains.get(connection)
        if found is None:
            chain = _read_chain(connection.transport.get_extra_info("ssl_object"))
            found = self._chains[connection] = chain, find_end(chain, now)
        return found


def find_end(chain: Sequence[str], now: datetime) -> datetime:
    """When a connection ends whose client has shown this chain (PEM) now."""
    ends = [x509.load_pem_x509_certificate(each.encode()).not_valid_after_utc for each in chain]
    return min((now + _LONGEST, *ends))


def _read_chain(connection: ssl.SSLObject | None) -> tuple[str, ...]:
    """The chain that OpenSSL has verified; Python 3.13 makes the method public."""
    if connection is None:
        return ()
    if hasattr(connection, "get_verified_chain"):
        return tuple(ssl.DER_cert_to_PEM_cert(each) for each in connection.get_verified_chain())
    verified = connection._sslobj.get_verified_chain()  # type: ignore[attr-defined]  # noqa: SLF001
    return tuple(each.public_bytes() for each in verified or ())


@settings.command_with(
    *("host", "tls_certificate", "tls_key", "workers", "resources"),
    *("database_url", "redis_url", "log_level", "first_job_id"),
)
def dirac_door(
    chosen: Settings,
    *,
    as_json: bool,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on.")] = 8443,
    authorities: Annotated[
        Path,
        typer.Option(
            metavar="DIRECTORY",
            help="CA certificates and revocation lists of the clients, by hash; read again when they change.",
        ),
    ] = _AUTHORITIES,
    configuration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Configuration of DIRAC (CFG) to serve as Configuration/Server; read again when it changes.",
        ),
    ] = None,
    former: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="URL of a service of DIRAC for what has not moved; once for each of the four.",
        ),
    ] = None,
) -> None:
    """Serve unmodified clients, pilots and directors of DIRAC, with certificates and proxies.

    Run it beside `serve`, on the same database, with the certificate of the host. A proxy server in front
    has to pass TLS through. With --json, log lines are JSON.

    Example: `pilotage dirac-door --port 9135 --configuration dirac.cfg`.
    """
    process_setup.configure_logs(chosen.log_level, as_json=as_json)
    _read_certificate(chosen, authorities)
    _read_configuration(configuration)
    _ = _read_former(chosen, authorities, former or [])
    process_setup.raise_file_limit()
    with cli_engine.translate_unreachable(chosen.database_url), wiring.open_current_engine(chosen) as engine:
        wiring.import_resources(engine, chosen)
        if former:
            _require_own_ids(engine, chosen.first_job_id)
    bound = serve.bind_socket(chosen.host, port)
    url = serve.url_of(bound, tls=True, name=socket.getfqdn())
    typer.echo(f"pilotage answers DIRAC at {url}", err=True)
    one = partial(_run, chosen, bound, authorities, configuration, former or [], as_json=as_json)
    if chosen.workers == 1:
        one()
    else:
        process_setup.keep_alive(one, chosen.workers, ending=bound.close)


def _read_certificate(chosen: Settings, authorities: Path) -> Certificate:
    if chosen.tls_certificate is None:
        raise WrongUsage("DIRAC's clients need HTTPS: --tls-certificate, with the key in it or --tls-key")
    if not authorities.is_dir():
        raise CommandRefused(
            f"{authorities} is no directory with certificates of authorities (--authorities)"
        )
    with_tokens = any(each.kind == "diracx" for each in chosen.issuers)
    return Certificate(chosen.tls_certificate, chosen.tls_key, authorities, with_tokens=with_tokens)


def _read_configuration(file: Path | None) -> ConfigurationFile | None:
    try:
        return None if file is None else ConfigurationFile(file)
    except (OSError, UnicodeError) as error:
        raise CommandRefused(f"{file} cannot be read: {error} (--configuration)") from None


def _read_former(chosen: Settings, authorities: Path, urls: Sequence[str]) -> FormerServices | None:
    """The former services, if there are any; all four are needed."""
    if not urls or chosen.tls_certificate is None:
        return None
    certificate, key = chosen.tls_certificate, chosen.tls_key

    def make_context() -> ssl.SSLContext:
        context = transport.tls_context(authorities)
        context.load_cert_chain(certificate, key)
        return context

    services = FormerServices(urls, first_job_id=chosen.first_job_id, make_context=make_context)
    if missing := sorted(routing.SHARED - services.paths):
        raise WrongUsage(f"--former: there is no URL that ends in {', '.join(missing)}")
    if further := sorted(services.paths - routing.SHARED):
        raise WrongUsage(f"--former: {', '.join(further)} cannot be handed on, only the four services can")
    if chosen.first_job_id <= 1:
        raise WrongUsage("--former needs --first-job-id, beyond all ids of the former services")
    return services


def _require_own_ids(engine: Engine, first_job_id: int) -> None:
    """No job of ours has, or gets, an id that may be one of the former services."""
    with database.reading(engine) as conn:
        smallest = conn.execute(select(func.min(jobs.c.job_id))).scalar()
        if min(smallest or first_job_id, sql.read_next_id(conn, jobs)) < first_job_id:
            raise CommandRefused(
                f"jobs have ids below {first_job_id} here: begin with an empty database, "
                f"and `pilotage db upgrade --first-job-id {first_job_id}`"
            )


def _run(
    chosen: Settings,
    bound: socket.socket,
    authorities: Path,
    configuration: Path | None,
    former: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Run one process."""
    process_setup.configure_logs(chosen.log_level, as_json=as_json)
    gc_tuning.collect_seldom()
    with (
        wiring.open_current_engine(chosen) as engine,
        serve.run_services(chosen, engine) as parts,
        tls.watch_certificate(_read_certificate(chosen, authorities)) as context,
    ):
        door = create_door(
            parts, _read_configuration(configuration), _read_former(chosen, authorities, former)
        )
        door.add_middleware(CertifiedRequests)
        serve.serve_application(door, bound, chosen, tls=context)


@settings.command_with()
def dirac_document(
    _chosen: Settings,
    file: Annotated[
        typer.FileText,
        typer.Argument(metavar="FILE", help="JDL, or a description in YAML; - is standard input."),
    ],
    *,
    as_json: bool,
    to_jdl: Annotated[bool, typer.Option("--jdl", help="Write the JDL of a description.")] = False,
    of_pilot: Annotated[
        bool, typer.Option("--pilot", help="Read what a pilot of DIRAC offers the Matcher.")
    ] = False,
) -> None:
    """Translate a JDL of DIRAC or DiracX into a document of the match-making specification, or back.

    Keywords that DIRAC keeps, but does not match by, are named on standard error.

    Example: `pilotage dirac-document - --jdl`.
    """
    if to_jdl and of_pilot:
        raise WrongUsage("--jdl and --pilot: one of the two")
    if to_jdl:
        description = _read_record(file)
        typer.echo(job_documents.write_jdl(description))
        if unmatched := job_documents.list_unmatched(description):
            typer.echo(f"DIRAC does not match by {', '.join(unmatched)}", err=True)
        return
    found = (
        pilot_documents.read_resource(_read_record(file)) if of_pilot else job_documents.read_jdl(file.read())
    )
    typer.echo(json.dumps(found) if as_json else yaml.safe_dump(found, sort_keys=False).rstrip())


def _read_record(file: TextIO) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file)
    except yaml.YAMLError as error:
        raise CommandRefused(f"{file.name}: {harmless(str(error))}") from None
    if not isinstance(found, dict):
        raise CommandRefused(f"{file.name}: a record of keywords is needed")
    return found


#: Records in one request, seconds for it, and bytes of the answer, which has a result for each record.
_MOST, LONGEST, MOST_ANSWERED = 5_000, 120.0, 32 << 20
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
    """Write the numbers of all jobs as WMSHistory records, as DIRAC's StatesAccountingAgent does.

    Prints a line of JSON for each record, or sends them to OpenSearch. Run it every 15 minutes.

    Example: `pilotage dirac-history --opensearch https://search.example.org:9200`.
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
        bounded = BoundedTransport(context, seconds=LONGEST, most=MOST_ANSWERED, with_proxies=True)
        with httpx.Client(transport=bounded, timeout=LONGEST, auth=_read_netrc()) as client:
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
