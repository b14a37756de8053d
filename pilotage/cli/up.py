"""`pilotage up`: the whole system in one process on this machine."""

import socket
from contextlib import ExitStack
from typing import Annotated

import typer

from cs_config import collector
from pilotage.cli import (
    agents_by_name,
    banner,
    client_env,
    databases,
    home_directory,
    local_demand,
    local_isolation,
    logs,
    options,
    serving,
    settings,
    tls,
    wiring,
)
from pilotage.cli.agents_by_name import AGENTS, Surroundings
from pilotage.cli.failures import Refused
from pilotage.cli.local_demand import Post
from pilotage.cli.local_pilots import LocalPilots
from pilotage.cli.settings import Settings
from pilotage.service import grants
from pilotage.service.app import create_app
from pilotage.service.parts import Parts, utc_now
from requirements.suggestion import did_you_mean

#: Seconds that the token of this machine's user is good; every start makes a new one.
_TOKEN_LIFE = 366 * 86400


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up")(up)


def up(
    *,
    resources: options.Resources = None,
    host: options.Host = None,
    port: options.Port = None,
    tls_certificate: options.TlsCertificate = None,
    tls_key: options.TlsKey = None,
    site: Annotated[
        str | None,
        typer.Option(metavar="SITE", help="Run local pilots for the queues of this site, as jobs need them."),
    ] = None,
    pilots: Annotated[
        int | None, typer.Option(metavar="N", help="At most so many local pilots at a time; else 2.")
    ] = None,
    isolation: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="What jobs of local pilots are kept from: userns (default), they see nothing of the "
            "installation; or none, they may read its keys and do all that you may.",
        ),
    ] = None,
    vo: Annotated[
        str | None, typer.Option(metavar="VO", help="VO that you submit for unless the job says another.")
    ] = None,
    database_url: options.DatabaseUrl = None,
    log_level: options.LogLevel = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Run everything here: database, service, optimizers, agents and, with --site, pilots.

    Needs no server and no root. Ctrl-C ends it; the next start goes on where it was.
    """
    chosen = settings.load(
        {
            "home": home,
            "resources": resources,
            "host": host,
            "port": port,
            "tls_certificate": tls_certificate,
            "tls_key": tls_key,
            "site": site,
            "pilots": pilots,
            "isolation": isolation,
            "vo": vo,
            "database_url": database_url,
            "log_level": log_level,
        }
    ).model_copy(update={"redis_url": None})  # the optimizers run here, whatever else there is
    logs.configure(chosen.log_level, as_json=as_json)
    home_directory.make(chosen.home)
    with home_directory.locked(chosen.home):
        _run(chosen, as_json=as_json)


def _run(chosen: Settings, *, as_json: bool) -> None:
    collector.collect_seldom()
    client_env.remove(chosen.home)
    databases.upgrade(chosen.direct_url)
    with ExitStack() as stack:
        engine = stack.enter_context(wiring.opened(chosen))
        wiring.import_resources(engine, chosen)
        bound = stack.enter_context(serving.bind(chosen.host, chosen.port))
        context = stack.enter_context(tls.kept_current(tls.read(chosen)))
        url = _url(chosen, bound)
        parts = stack.enter_context(wiring.running(chosen, engine))
        _check_site(chosen, parts)
        surroundings = Surroundings(
            engine=engine,
            current=lambda: parts.live.current,
            blobs=parts.blobs,
            holder=agents_by_name.holder(),
        )
        stack.enter_context(agents_by_name.running(list(AGENTS), surroundings))
        local = _local_pilots(chosen, parts, url)

        def ready() -> None:
            token = _token(chosen, parts)
            client_env.write(chosen.home, url=url, token=token, authorities=chosen.authorities)
            local.start()
            banner.show(chosen, parts.live.current, url, as_json=as_json)

        serving.serve(create_app(parts), bound, chosen, tls=context, ready=ready, ending=local.stop)
    if not as_json:
        typer.echo("Ended. Start it again and it goes on.")


def _url(chosen: Settings, bound: socket.socket) -> str:
    """Where the service is for this machine; under TLS by the name that its certificate has."""
    if chosen.tls_certificate is None:
        return serving.url_of(bound)
    return chosen.url or serving.url_of(bound, tls=True)


def _local_pilots(chosen: Settings, parts: Parts, url: str) -> LocalPilots:
    def environment(post: Post, stamp: str) -> dict[str, str]:
        grant = grants.grant(role="pilot", vo=post.vo, queue=str(post.address), stamp=stamp)
        token, _ = parts.tokens.mint(grant, now=utc_now())
        return client_env.variables(url=url, token=token, authorities=chosen.authorities)

    def wanted() -> list[Post]:
        return local_demand.posts(parts, chosen.site) if chosen.site is not None else []

    return LocalPilots(
        most=chosen.pilots,
        wanted=wanted,
        environment=environment,
        directory=chosen.home / "pilots",
        words=local_isolation.words(chosen),
    )


def _check_site(chosen: Settings, parts: Parts) -> None:
    sites = parts.live.current.sites
    if chosen.site is not None and chosen.site not in sites:
        meant = did_you_mean(chosen.site, sites)
        hint = f", did you mean {meant}?" if meant else ""
        raise Refused(f"--site {chosen.site}: the configuration has no such site{hint}")
    if chosen.site is not None:
        local_isolation.check(chosen)


def _token(chosen: Settings, parts: Parts) -> str:
    """A token of an operator: whoever may read the home directory can do everything anyway."""
    vos = parts.live.current.vos
    vo = chosen.vo or (next(iter(vos)) if len(vos) == 1 else None)
    grant = grants.grant(role="operator", vo=vo, ttl=_TOKEN_LIFE)
    return parts.tokens.mint(grant, now=utc_now())[0]
