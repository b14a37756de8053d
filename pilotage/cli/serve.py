"""`pilotage serve`: the HTTP service of an installation with PostgreSQL and Redis."""

import socket
from functools import partial
from typing import Annotated

import typer

from cs_config import collector
from pilotage.cli import databases, logs, options, processes, serving, settings, tls, wiring
from pilotage.cli.settings import Settings
from pilotage.service.app import create_app


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    *,
    host: options.Host = None,
    port: options.Port = None,
    tls_certificate: options.TlsCertificate = None,
    tls_key: options.TlsKey = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes that share the port (else PILOTAGE_WORKERS, else 1)."),
    ] = None,
    resources: options.Resources = None,
    database_url: options.DatabaseUrl = None,
    redis_url: options.RedisUrl = None,
    log_level: options.LogLevel = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Serve HTTP, until SIGINT or SIGTERM; any number of these, on any hosts, behind a load balancer.

    The tables are made by `pilotage db upgrade`; workers and agents are processes of their own. With --json
    log lines are JSON.
    """
    chosen = settings.load(
        {
            "home": home,
            "host": host,
            "port": port,
            "tls_certificate": tls_certificate,
            "tls_key": tls_key,
            "workers": workers,
            "resources": resources,
            "database_url": database_url,
            "redis_url": redis_url,
            "log_level": log_level,
        }
    )
    logs.configure(chosen.log_level, as_json=as_json)
    tls.read(chosen)
    with databases.away_in_one_line(chosen.database_url), wiring.opened(chosen) as engine:
        wiring.import_resources(engine, chosen)
    bound = serving.bind(chosen.host, chosen.port)
    typer.echo(f"pilotage serves {serving.url_of(bound, tls=chosen.tls_certificate is not None)}", err=True)
    one = partial(run, chosen, bound, as_json=as_json)
    if chosen.workers == 1:
        one()
    else:
        # As long as we held the socket open, connections would be taken that nobody serves any more.
        processes.keep_alive(one, chosen.workers, ending=bound.close)


def run(chosen: Settings, bound: socket.socket, *, as_json: bool) -> None:
    """One process of the service."""
    logs.configure(chosen.log_level, as_json=as_json)
    collector.collect_seldom()
    with (
        wiring.opened(chosen) as engine,
        wiring.running(chosen, engine) as parts,
        tls.kept_current(tls.read(chosen)) as context,
    ):
        serving.serve(create_app(parts), bound, chosen, tls=context)
