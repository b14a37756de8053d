"""`pilotage login`: a link that signs a browser in."""

from datetime import UTC, datetime
from getpass import getuser
from pathlib import Path
from typing import Annotated

import typer

from pilotage.cli import client_env, options, output, own_token, settings
from pilotage.cli.connection import connect
from pilotage.cli.failures import WrongUsage
from pilotage.cli.settings import Settings
from pilotage.fabric.client import Client
from pilotage.service import grants

#: Seconds that the token of who has the key is good, and so the session at most.
_LONGEST_SESSION = 43_200


def register(app: typer.Typer) -> None:
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
    with _client(home=home, url=url) as client:
        answer = client.login_link({name: value for name, value in wishes.items() if value is not None})
        link = f"{client.url}{answer['path']}"
    data = {"link": link, "expires_at": answer["expires_at"]}
    output.emit(data, as_json=as_json, render=lambda: link)


def _client(*, home: Path | None, url: str | None) -> Client:
    """Who asks: the token that is known, else whoever holds the key."""
    chosen = settings.load({"home": home, "url": url})
    if chosen.token or client_env.read(chosen.home) or not chosen.key.exists():
        return connect(home=home, url=url)
    return Client(chosen.url or f"http://{chosen.host}:{chosen.port}", _token(chosen), whose=str(chosen.key))


def _token(chosen: Settings) -> str:
    grant = grants.grant(role="operator", user=getuser(), ttl=_LONGEST_SESSION)
    return own_token.mint(chosen, grant, now=datetime.now(UTC))[0]
