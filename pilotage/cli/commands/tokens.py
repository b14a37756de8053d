"""`pilotage token`, `key`, `login`, `whoami` and `revoke`: tokens, the keys that sign them, and signing in.

`login` makes a link that signs a browser in, or signs the command line in through a browser. A user who can
read the signing key needs no token: the command signs one.
"""

import os
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from getpass import getuser
from pathlib import Path
from typing import Annotated

import typer

from pilotage.cli import connection, home_directory, options, output, settings
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import CommandRefused, WrongUsage
from pilotage.cli.settings import Settings
from pilotage.fabric.client import ApiError, Json, ServiceAway, ServiceClient, is_passing
from pilotage.service.auth import callers, keys
from pilotage.service.auth.callers import Grant, Role
from pilotage.service.auth.keys import KeyRing


def mint_token(chosen: Settings, grant: Grant) -> tuple[str, datetime]:
    """A token for the grant, and when it expires.

    By the clock of the database, as the service judges tokens; by that of this host while it is away.
    """
    # Imported late: commands for keys need no database.
    from pilotage.cli import engine
    from pilotage.service.auth.tokens import Tokens
    from taskqueue.db.clock import DatabaseClock

    home_directory.require_installation(chosen.home, chosen.key)
    seen = engine.read_last_seen(chosen)
    ring, now = keys.load_or_create(chosen.key), datetime.now(UTC)
    with suppress(CommandRefused), engine.open_engine(chosen.database_url, pool_size=1) as opened:
        now = DatabaseClock(opened).read()
    return Tokens(ring, incarnation=lambda: seen.incarnation if seen else 1).mint(grant, now=now)


@settings.command_with()
def token(
    chosen: Settings,
    *,
    as_json: bool,
    role: Annotated[
        str,
        options.option(
            "ROLE", "Role: user, vo_admin, site_admin, director, gateway, pilot, monitor or operator."
        ),
    ],
    vo: Annotated[str | None, options.option("VO", "VO; for directors and gateways VO1,VO2.")] = None,
    user: Annotated[
        str | None,
        options.option("NAME", "Owner of the token; for the role user, the default is your login name."),
    ] = None,
    group: Annotated[str | None, options.option("GROUP", "Owner group (default: <vo>_user).")] = None,
    site: Annotated[str | None, options.option("SITE", "Site, for roles that belong to one.")] = None,
    queue: Annotated[
        str | None,
        options.option("Site/CE/Queue", "Queue of a pilot (default: the first queue that it reports)."),
    ] = None,
    stamp: Annotated[str | None, options.option("STAMP", "Stamp of a pilot (default: a new one).")] = None,
    ttl: Annotated[float | None, options.option("S", "Lifetime in seconds (default: 1 day).")] = None,
) -> None:
    """Create a token with the signing key of this installation and print it.

    Everyone who can read the home directory can act as operator: protect it.
    """
    if role == Role.USER and user is None:
        user = getuser()
    grant = callers.grant(
        role=role, vo=vo, user=user, group=group, site=site, queue=queue, stamp=stamp, ttl=ttl
    )
    text, expires_at = mint_token(chosen, grant)
    data = {"token": text, "expires_at": expires_at.isoformat()}
    output.emit(data, as_json=as_json, render=lambda: text)


#: Default days that the previous key still verifies tokens: most tokens have expired by then.
_KEPT_DAYS = 30.0
_LONGEST_DAYS = 366.0


@settings.command_with()
def show_keys(chosen: Settings, *, as_json: bool) -> None:
    """List the keys that verify tokens, with their end dates."""
    home_directory.require_installation(chosen.home, chosen.key)
    _show(keys.load(chosen.key), as_json=as_json)


@settings.command_with()
def rotate(
    chosen: Settings,
    *,
    as_json: bool,
    keep: Annotated[
        float,
        typer.Option(
            min=0,
            max=_LONGEST_DAYS,
            metavar="DAYS",
            help="Tokens of the previous key stay valid for this long; 0: they become invalid now.",
        ),
    ] = _KEPT_DAYS,
) -> None:
    """Replace the key that signs tokens; running services reload it within seconds.

    If hosts do not share the key file, copy it to the other hosts now.
    """
    home_directory.require_installation(chosen.home, chosen.key)
    ring = keys.rotate(chosen.key, keep=timedelta(days=keep), now=datetime.now(UTC))
    _show(ring, as_json=as_json)


@settings.command_with()
def retire(
    chosen: Settings,
    *,
    as_json: bool,
    key_id: Annotated[str, options.argument("KEY", "Key name, see `pilotage key list`.")],
) -> None:
    """Reject all tokens of a previous key, for example after a leak."""
    home_directory.require_installation(chosen.home, chosen.key)
    ring = keys.retire(chosen.key, key_id, now=datetime.now(UTC))
    if ring is None:
        raise CommandRefused(
            f"{key_id}: no previous key has this name; `pilotage key rotate` replaces the signing key"
        )
    _show(ring, as_json=as_json)


def _show(ring: KeyRing, *, as_json: bool) -> None:
    rows: list[dict[str, object]] = [{"key": ring.signing.key_id, "signs": True, "until": None}]
    lines = [(ring.signing.key_id, "signs")]
    for key in ring.retiring:
        rows.append({"key": key.key_id, "signs": False, "until": key.until})
        if key.until:
            lines.append((key.key_id, f"verifies until {output.local_time(key.until.isoformat())}"))
    output.emit({"keys": rows}, as_json=as_json, render=lambda: output.table(("Key", "State"), lines))


#: Lifetime in seconds of a token that `login` signs, and the maximum of the session.
_LONGEST_SESSION = 43_200
#: Seconds without an answer after which `login --device` ends: the code has expired then.
_LONGEST_SILENCE = 900


def login(
    *,
    role: Annotated[
        str | None,
        options.option(
            "ROLE",
            "For operators: sign in as user, vo_admin, site_admin or operator (default: your own role).",
        ),
    ] = None,
    vo: Annotated[str | None, options.option("VO", "With --role: VO.")] = None,
    user: Annotated[
        str | None,
        options.option("NAME", "With --role: user name; for the role user, the default is your login name."),
    ] = None,
    group: Annotated[
        str | None, options.option("GROUP", "With --role: owner group (default: <vo>_user).")
    ] = None,
    site: Annotated[str | None, options.option("SITE", "With --role: site.")] = None,
    device: Annotated[
        bool,
        typer.Option("--device", help="Log in these commands, by a browser on any device that is signed in."),
    ] = False,
    service: ServiceOptions,
) -> None:
    """Print a link that signs a browser in to the web pages; valid once, for five minutes.

    The session has the rights of your token, for at most twelve hours. No token is needed if you can read the
    signing key of the installation.

    With --device it is the other way round: the commands get the rights of your browser session, and keep the
    token in client.env of the home directory.
    """
    if device:
        if role is not None:
            raise WrongUsage("--role needs a token: it is of no use with --device")
        _log_in_commands(service)
        return
    wanted = {"role": role, "vo": vo, "user": user, "group": group, "site": site}
    if role is None and any(wanted.values()):
        raise WrongUsage("--vo, --user, --group and --site need --role")
    if role == "user" and user is None:
        wanted["user"] = getuser()
    with _signing_client(service) as client:
        answer = client.login_link({name: value for name, value in wanted.items() if value is not None})
        link = f"{client.url}{answer['path']}"
    data = {"link": link, "expires_at": answer["expires_at"]}
    service.emit(data, lambda: link)


def _log_in_commands(service: ServiceOptions) -> None:
    """Let a person confirm a code in a browser, and store the token."""
    chosen = home_directory.load_client_settings(home=service.home, url=service.url)
    written = home_directory.read_client_env(chosen.home)
    if "PILOTAGE_TOKEN" in os.environ:
        raise WrongUsage("PILOTAGE_TOKEN is set, and counts before a login: unset it first")
    with connection.make_client(chosen, written, "") as client:
        begun = client.begin_device_login()
        address = f"{client.url}{begun['path']}"
    sys.stderr.write(f"Open {address}\nand confirm the code {begun['user_code']}\n")
    with connection.make_client(chosen, written, begun["device_code"]) as client:
        found = _wait_for_token(client, seconds=begun["interval"])
        url = client.url
    home_directory.make_home(chosen.home)
    authorities = chosen.authorities or written.get("PILOTAGE_AUTHORITIES")
    path = home_directory.write_client_env(
        chosen.home,
        url=url,
        token=found["token"],
        authorities=Path(authorities) if authorities else None,
        proxy=chosen.proxy or written.get("PILOTAGE_PROXY"),
    )
    data = {"file": str(path), "expires_at": found["expires_at"]}
    text = f"logged in until {output.local_time(found['expires_at'])}; the token is in {path}"
    service.emit(data, lambda: text)


def _wait_for_token(client: ServiceClient, *, seconds: float) -> Json:
    """The token of a device login; a service that is away for a while does not end the wait."""
    last_answer = time.monotonic()
    while True:
        try:
            found = client.fetch_device_token()
        except (ServiceAway, ApiError) as error:
            if not is_passing(error) or time.monotonic() - last_answer > _LONGEST_SILENCE:
                raise
        else:
            if found["token"] is not None:
                return found
            last_answer = time.monotonic()
        time.sleep(seconds)


def whoami(*, service: ServiceOptions) -> None:
    """Show the role, VOs and sites of your token."""
    with service.connect() as client:
        found = {**client.whoami(), "service": client.url}
    service.emit(found, lambda: output.facts(found, title="You are"))


def revoke(
    token: Annotated[str, options.argument("TOKEN", "The token, or its id (jti); - reads standard input.")],
    *,
    service: ServiceOptions,
) -> None:
    """Revoke a token, for operators: it is refused within seconds.

    `pilotage token revoke` is the same.

    A token in the arguments of a command can be seen by others on this machine: rather use `-`.
    """
    given = sys.stdin.read().strip() if token == "-" else token  # noqa: S105 - a sign, not a password
    with service.connect() as client:
        client.revoke(given)
    service.emit({"revoked": True}, lambda: "revoked")


def _signing_client(service: ServiceOptions) -> ServiceClient:
    """A client with the configured token, or else with an operator's token signed by the local key."""
    chosen = settings.load({"home": service.home, "url": service.url})
    if chosen.token or home_directory.read_client_env(chosen.home) or not chosen.key.exists():
        return service.connect()
    # Imported late: most users have a token, and need neither keys nor the database.
    from pilotage.service.auth import callers

    grant = callers.grant(role="operator", user=getuser(), ttl=_LONGEST_SESSION)
    token, _ = mint_token(chosen, grant)
    return ServiceClient(chosen.url or f"http://{chosen.host}:{chosen.port}", token, whose=str(chosen.key))
