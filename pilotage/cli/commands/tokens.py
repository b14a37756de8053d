"""Tokens by the key of the installation: who holds it needs nobody to ask.

`pilotage token`: mint a token with the installation's own key.

`pilotage login`: a link that signs a browser in.

`pilotage key`: the keys that sign this installation's tokens.
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
        Refused: No installation was made in this home directory.
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
        str, typer.Option(help="user, vo_admin, site_admin, director, gateway, pilot, monitor or operator.")
    ],
    vo: Annotated[
        str | None, typer.Option(metavar="VO", help="The VO; for directors and gateways VO1,VO2.")
    ] = None,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="The person; of a user else you.")] = None,
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Owner group; else <vo>_user.")] = None,
    site: Annotated[
        str | None, typer.Option(metavar="SITE", help="The site, for roles that belong to one.")
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(metavar="Site/CE/Queue", help="Queue of a pilot; else the first one it states."),
    ] = None,
    stamp: Annotated[
        str | None, typer.Option(metavar="STAMP", help="A pilot's own id; else a new one.")
    ] = None,
    ttl: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds that it is good; else a day.")
    ] = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Mint a token with the key of this installation and print it.

    Whoever can read the home directory is an operator: keep it to yourself.
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


#: Seconds that the token of who has the key is good, and so the session at most.
_LONGEST_SESSION = 43_200


def register_login(app: typer.Typer) -> None:
    """Add the command."""
    app.command("login")(login)


def login(
    *,
    role: Annotated[
        str | None,
        typer.Option(help="Operators: sign in as user, vo_admin, site_admin or operator; else as who asks."),
    ] = None,
    vo: Annotated[str | None, typer.Option(metavar="VO", help="With --role: the VO.")] = None,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --role: the person; of a user else you.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="With --role: owner group; else <vo>_user.")
    ] = None,
    site: Annotated[str | None, typer.Option(metavar="SITE", help="With --role: the site.")] = None,
    as_json: options.AsJson = False,
    home: options.Home = None,
    url: options.Url = None,
) -> None:
    """Print a link that signs a browser in to the web pages: once, within five minutes.

    Its session has the rights of your token, for twelve hours at most. Beside the installation's key no
    token is needed.
    """
    wishes = {"role": role, "vo": vo, "user": user, "group": group, "site": site}
    if role is None and any(wishes.values()):
        raise WrongUsage("--vo, --user, --group and --site say who a --role is: name it, too")
    if role == "user" and user is None:
        wishes["user"] = getuser()
    with _signing_client(home=home, url=url) as client:
        answer = client.login_link({name: value for name, value in wishes.items() if value is not None})
        link = f"{client.url}{answer['path']}"
    data = {"link": link, "expires_at": answer["expires_at"]}
    output.emit(data, as_json=as_json, render=lambda: link)


def _signing_client(*, home: Path | None, url: str | None) -> Client:
    """Who asks: the token that is known, else whoever holds the key."""
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


#: Days that the earlier key verifies unless it is said otherwise: most tokens have ended by then.
_KEPT_DAYS = 30.0
_LONGEST_DAYS = 366.0


def register_key(app: typer.Typer) -> None:
    """Add the commands."""
    commands = typer.Typer(help="The keys that sign tokens: list them, replace the one that signs.")
    commands.command("list")(show_keys)
    commands.command("rotate")(rotate)
    commands.command("retire")(retire)
    app.add_typer(commands, name="key")


def show_keys(*, as_json: options.AsJson = False, home: options.Home = None) -> None:
    """List the keys that verify tokens, and until when."""
    _show(keys.load(_installation(home).key), as_json=as_json)


def rotate(
    *,
    keep: Annotated[
        float,
        typer.Option(
            min=0,
            max=_LONGEST_DAYS,
            metavar="DAYS",
            help="Tokens of the earlier key stay good so long; 0: they end now.",
        ),
    ] = _KEPT_DAYS,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Have a new key sign tokens from now on; running services notice within seconds.

    Where hosts do not share the key's file, copy it to the others right after.
    """
    chosen = _installation(home)
    ring = keys.rotate(chosen.key, keep=timedelta(days=keep), now=utc_now())
    _show(ring, as_json=as_json)


def retire(
    key_id: Annotated[str, typer.Argument(metavar="KEY", help="Its name, as `pilotage key list` shows it.")],
    *,
    as_json: options.AsJson = False,
    home: options.Home = None,
) -> None:
    """Accept no token of an earlier key any more, as when it has leaked."""
    ring = keys.retire(_installation(home).key, key_id, now=utc_now())
    if ring is None:
        raise CommandRefused(
            f"{key_id}: no earlier key; the one that signs is replaced by `pilotage key rotate`"
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
