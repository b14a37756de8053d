"""`pilotage token`, `login` and `key`: tokens, sign-in links and the keys that sign them.

A user who can read the signing key needs no token: `token` and `login` sign one locally.
"""

from datetime import UTC, datetime, timedelta
from getpass import getuser
from pathlib import Path
from typing import Annotated

import typer

from pilotage.cli import home_directory, last_seen, options, output, settings
from pilotage.cli.connection import connect
from pilotage.cli.errors import CommandRefused, WrongUsage
from pilotage.cli.settings import Settings
from pilotage.fabric.client import Client
from pilotage.service.auth import callers, keys
from pilotage.service.auth.callers import Grant, Role
from pilotage.service.auth.keys import KeyRing
from pilotage.service.auth.tokens import Tokens
from pilotage.service.services import utc_now


def mint_token(chosen: Settings, grant: Grant, *, now: datetime) -> tuple[str, datetime]:
    """A token for the grant, and when it expires.

    Raises:
        CommandRefused: The home directory has no installation.
    """
    home_directory.require_installation(chosen.home, chosen.key)
    seen = last_seen.read_last_seen(chosen)
    ring = keys.load_or_create(chosen.key)
    return Tokens(ring, incarnation=lambda: seen.incarnation if seen else 1).mint(grant, now=now)


def register_token(app: typer.Typer) -> None:
    """Add the command."""
    app.command("token")(token)


def token(
    *,
    role: Annotated[
        str,
        typer.Option(help="Role: user, vo_admin, site_admin, director, gateway, pilot, monitor or operator."),
    ],
    vo: Annotated[
        str | None, typer.Option(metavar="VO", help="VO; for directors and gateways VO1,VO2.")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Owner of the token; for the role user, the default is your login name."
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Owner group (default: <vo>_user).")
    ] = None,
    site: Annotated[
        str | None, typer.Option(metavar="SITE", help="Site, for roles that belong to one.")
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="Site/CE/Queue", help="Queue of a pilot (default: the first queue that it reports)."
        ),
    ] = None,
    stamp: Annotated[
        str | None, typer.Option(metavar="STAMP", help="Stamp of a pilot (default: a new one).")
    ] = None,
    ttl: Annotated[
        float | None, typer.Option(metavar="S", help="Lifetime in seconds (default: 1 day).")
    ] = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Create a token with the signing key of this installation and print it.

    Everyone who can read the home directory can act as operator: protect it.
    """
    if role == Role.USER and user is None:
        user = getuser()
    grant = callers.grant(
        role=role, vo=vo, user=user, group=group, site=site, queue=queue, stamp=stamp, ttl=ttl
    )
    chosen = settings.load({"home": home})
    text, expires_at = mint_token(chosen, grant, now=datetime.now(UTC))
    data = {"token": text, "expires_at": expires_at.isoformat()}
    output.emit(data, as_json=as_json, render=lambda: text)


#: Lifetime in seconds of a token that `login` signs, and the maximum of the session.
_LONGEST_SESSION = 43_200


def register_login(app: typer.Typer) -> None:
    """Add the command."""
    app.command("login")(login)


def login(
    *,
    role: Annotated[
        str | None,
        typer.Option(
            help="For operators: sign in as user, vo_admin, site_admin or operator (default: your own role)."
        ),
    ] = None,
    vo: Annotated[str | None, typer.Option(metavar="VO", help="With --role: VO.")] = None,
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="With --role: user name; for the role user, the default is your login name."
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="With --role: owner group (default: <vo>_user).")
    ] = None,
    site: Annotated[str | None, typer.Option(metavar="SITE", help="With --role: site.")] = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Print a link that signs a browser in to the web pages; valid once, for five minutes.

    The session has the rights of your token, for at most twelve hours. No token is needed if you can read the
    signing key of the installation.
    """
    wanted = {"role": role, "vo": vo, "user": user, "group": group, "site": site}
    if role is None and any(wanted.values()):
        raise WrongUsage("--vo, --user, --group and --site need --role")
    if role == "user" and user is None:
        wanted["user"] = getuser()
    with _signing_client(home=home, url=url) as client:
        answer = client.login_link({name: value for name, value in wanted.items() if value is not None})
        link = f"{client.url}{answer['path']}"
    data = {"link": link, "expires_at": answer["expires_at"]}
    output.emit(data, as_json=as_json, render=lambda: link)


def _signing_client(*, home: Path | None, url: str | None) -> Client:
    """A client with the configured token, or else with a token signed by the local key."""
    chosen = settings.load({"home": home, "url": url})
    if chosen.token or home_directory.read_client_env(chosen.home) or not chosen.key.exists():
        return connect(home=home, url=url)
    return Client(
        chosen.url or f"http://{chosen.host}:{chosen.port}",
        _mint_operator_token(chosen),
        whose=str(chosen.key),
    )


def _mint_operator_token(chosen: Settings) -> str:
    grant = callers.grant(role="operator", user=getuser(), ttl=_LONGEST_SESSION)
    return mint_token(chosen, grant, now=datetime.now(UTC))[0]


#: Default days that the previous key still verifies tokens: most tokens have expired by then.
_KEPT_DAYS = 30.0
_LONGEST_DAYS = 366.0


def register_key(app: typer.Typer) -> None:
    """Add the commands."""
    commands = typer.Typer(help="List, rotate and retire the keys that sign tokens.")
    commands.command("list")(show_keys)
    commands.command("rotate")(rotate)
    commands.command("retire")(retire)
    app.add_typer(commands, name="key")


def show_keys(*, as_json: options.AsJson = False, home: options.Home = None) -> None:
    """List the keys that verify tokens, with their end dates."""
    _show(keys.load(_installation(home).key), as_json=as_json)


def rotate(
    *,
    keep: Annotated[
        float,
        typer.Option(
            min=0,
            max=_LONGEST_DAYS,
            metavar="DAYS",
            help="Tokens of the previous key stay valid for this long; 0: they become invalid now.",
        ),
    ] = _KEPT_DAYS,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Replace the key that signs tokens; running services reload it within seconds.

    If hosts do not share the key file, copy it to the other hosts now.
    """
    chosen = _installation(home)
    ring = keys.rotate(chosen.key, keep=timedelta(days=keep), now=utc_now())
    _show(ring, as_json=as_json)


def retire(
    key_id: Annotated[str, typer.Argument(metavar="KEY", help="Key name, see `pilotage key list`.")],
    *,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Reject all tokens of a previous key, for example after a leak."""
    ring = keys.retire(_installation(home).key, key_id, now=utc_now())
    if ring is None:
        raise CommandRefused(
            f"{key_id}: no previous key has this name; `pilotage key rotate` replaces the signing key"
        )
    _show(ring, as_json=as_json)


def _installation(home: options.Home) -> Settings:
    chosen = settings.load({"home": home})
    home_directory.require_installation(chosen.home, chosen.key)
    return chosen


def _show(ring: KeyRing, *, as_json: bool) -> None:
    rows = [{"key": ring.signing.key_id, "signs": True, "until": None}] + [
        {"key": key.key_id, "signs": False, "until": key.until} for key in ring.retiring
    ]
    output.emit({"keys": rows}, as_json=as_json, render=lambda: output.table(("Key", "State"), _lines(ring)))


def _lines(ring: KeyRing) -> list[tuple[str, str]]:
    return [(ring.signing.key_id, "signs")] + [
        (key.key_id, f"verifies until {_day(key.until)}") for key in ring.retiring if key.until
    ]


def _day(when: datetime) -> str:
    return str(output.local_time(when.isoformat()))
