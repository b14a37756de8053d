"""`pilotage up`: the whole system in one process on this machine."""

import json
import logging
import os
import socket
import sys
from contextlib import ExitStack
from datetime import datetime
from functools import partial

import typer
from rich.panel import Panel

from cs_config import gc_tuning
from pilotage.cli import engine as cli_engine
from pilotage.cli import home_directory, home_lock, output, process_setup, settings, wiring
from pilotage.cli.errors import CommandRefused, harmless
from pilotage.cli.processes import agent, local_pilots, serve, tls, worker
from pilotage.cli.processes.agent import AgentContext
from pilotage.cli.processes.local_pilots import LocalPilots, PilotHost
from pilotage.cli.settings import Settings
from pilotage.client import connection
from pilotage.client import home as client_home
from pilotage.service.app import create_app
from pilotage.service.auth import callers
from pilotage.service.services import Services
from requirements.errors import did_you_mean, format_count, format_duration
from taskqueue.db import redis_servers

log = logging.getLogger(__name__)


def show_banner(chosen: Settings, parts: Services, url: str, *, as_json: bool) -> None:
    """Print the URL of the service and the next commands."""
    if as_json:
        facts = {
            "url": url,
            "home": str(chosen.home),
            "client_env": str(chosen.home / connection.CLIENT_ENV),
            "redis_url": None if chosen.redis_url is None else cli_engine.hide_password(chosen.redis_url),
        }
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        banner = harmless("\n".join(_banner_lines(chosen, parts, url)))
        output.console().print(Panel.fit(banner, title="Pilotage"))
    sys.stdout.flush()


def _banner_lines(chosen: Settings, parts: Services, url: str) -> list[str]:
    config = parts.live.current
    lines = [f"{url}  (interface: {url}/docs)", f"home: {chosen.home}"]
    if config.addresses:
        queues = format_count(len(config.addresses), "queue")
        sites = format_count(len(config.sites), "site")
        lines.append(f"configuration: version {config.version}, {queues} of {sites}")
    else:
        lines.append("no queues yet: pilotage config apply FILE, or start with --resources FILE")
    if chosen.redis_url is not None:
        lines.append(_describe_optimizers(chosen.redis_url, parts))
    if chosen.site is not None:
        lines.append(f"up to {format_count(chosen.pilots, 'pilot')} at {chosen.site} as jobs need them")
        if os.getuid() == 0:
            lines.append("their jobs run as root and can change this machine: start it as another user")
        if chosen.redis_url is not None and redis_servers.is_open(chosen.redis_url):
            lines.append("their jobs can reach Redis, which needs no password: set one, or use unix://PATH")
    home = "" if chosen.home == client_home.default_home(os.environ) else f" --home {chosen.home}"
    lines += ["", f"pilotage login{home}   (a link to the web pages)"]
    lines += [f"pilotage job submit{home} FILE", f"pilotage job list{home}"]
    if chosen.site is None:
        lines.append(f"pilotage pilot{home} --site S --ce C --queue Q")
    return [*lines, "", "Ctrl-C stops it. Nothing is lost: run the same command to continue."]


def _describe_optimizers(redis_url: str, parts: Services) -> str:
    state, place = parts.optimizer_queue(), cli_engine.hide_password(redis_url)
    if state is not None and state.problem is not None:
        return f"Redis at {place} does not answer: jobs wait for the sweep until it does"
    return f"optimizers: an RQ worker, through Redis at {place}"


#: Lifetime of the token in client.env, and time between two renewals, in seconds. Copies of it end soon.
_TOKEN_LIFE = 8 * 86400
_RENEW_EVERY = 600


@settings.command_with(
    *("resources", "host", "port", "tls_certificate", "tls_key"),
    *("site", "pilots", "isolation", "vo", "database_url", "redis_url", "log_level"),
    with_plugins=True,
)
def up(chosen: Settings, *, as_json: bool) -> None:
    """Run the whole system in one process: database, service, optimizers, agents; with --site, pilots.

    Needs no server and no root. With --redis, the optimizers run in an RQ worker, a process of its own.
    Ctrl-C stops it; the next start continues from there.

    Example: `pilotage up --resources resources.yaml --site LCG.CERN.ch`.
    """
    process_setup.configure_logs(chosen.log_level, as_json=as_json)
    home_directory.make_home(chosen.home)
    with home_lock.lock_home(chosen.home, settings.share_with_commands(chosen)):
        _run(chosen, as_json=as_json)


def _run(chosen: Settings, *, as_json: bool) -> None:
    gc_tuning.collect_seldom()
    process_setup.raise_file_limit()
    home_directory.remove_client_env(chosen.home)
    cli_engine.upgrade_schema(chosen.direct_url, first_job_id=chosen.first_job_id)
    with ExitStack() as stack:
        engine = stack.enter_context(wiring.open_current_engine(chosen))
        wiring.import_resources(engine, chosen)
        bound = stack.enter_context(serve.bind_socket(chosen.host, chosen.port))
        tls_context = stack.enter_context(tls.watch_certificate(tls.read_certificate(chosen)))
        url = _url(chosen, bound)
        parts = stack.enter_context(serve.run_services(chosen, engine))
        _check_site(chosen, parts)
        context = AgentContext(
            engine=engine,
            current=lambda: parts.live.current,
            clock=parts.clock,
            blobs=parts.blobs,
            holder=agent.unique_holder(),
        )
        stack.enter_context(agent.run_agents(agent.list_names(), context, chosen))
        if chosen.redis_url is not None:
            target = partial(worker.run, chosen, chosen.redis_url, burst=False, as_json=as_json)
            stack.enter_context(process_setup.keep_beside(target))
        local = _local_pilots(chosen.site, chosen, parts, url) if chosen.site is not None else None

        def renew(_now: datetime) -> None:
            _write_client_env(chosen, parts, url)

        def ready() -> None:
            renew(parts.clock())
            stack.enter_context(wiring.repeat_in_thread(renew, name="client-env", every=_RENEW_EVERY))
            if local is not None:
                local.start()
            show_banner(chosen, parts, url, as_json=as_json)

        ending = local.stop if local else lambda: None
        serve.serve_application(create_app(parts), bound, chosen, tls=tls_context, ready=ready, ending=ending)
    if not as_json:
        typer.echo("Stopped. Start it again to continue.")


def _write_client_env(chosen: Settings, parts: Services, url: str) -> None:
    """Write `client.env` with a new token; where that fails who has a token is served all the same."""
    token = _token(chosen, parts)
    try:
        home_directory.write_client_env(chosen.home, url=url, token=token, authorities=chosen.authorities)
    except OSError as error:  # such as a full disk
        again = format_duration(_RENEW_EVERY)
        log.warning(
            "%s is not written, commands here find no service: %s; again in %s",
            *(connection.CLIENT_ENV, error, again),
        )


def _url(chosen: Settings, bound: socket.socket) -> str:
    """The URL for clients on this machine; with TLS the one that matches the certificate."""
    if chosen.tls_certificate is None:
        return serve.url_of(bound)
    return chosen.url or serve.url_of(bound, tls=True)


def _local_pilots(site: str, chosen: Settings, parts: Services, url: str) -> LocalPilots:
    host = PilotHost(
        directory=str(chosen.home / "pilots"), cores=chosen.pilots, memory=0, grace=local_pilots.GRACE
    )
    return LocalPilots(
        parts=parts,
        site=site,
        url=url,
        host=host,
        authorities=chosen.authorities,
        words=local_pilots.pilot_words(chosen),
    )


def _check_site(chosen: Settings, parts: Services) -> None:
    sites = parts.live.current.sites
    if chosen.site is not None and chosen.site not in sites:
        meant = did_you_mean(chosen.site, sites)
        hint = f", did you mean {meant}?" if meant else ""
        raise CommandRefused(f"--site {chosen.site}: the configuration has no such site{hint}")
    if chosen.site is not None:
        local_pilots.check_isolation(chosen)


def _token(chosen: Settings, parts: Services) -> str:
    """A token of an operator: a reader of the home directory has all rights anyway."""
    vos = parts.live.current.vos
    vo = chosen.vo or (next(iter(vos)) if len(vos) == 1 else None)
    grant = callers.grant(role="operator", vo=vo, ttl=_TOKEN_LIFE)
    return parts.tokens.mint(grant, now=parts.clock())[0]
