"""`pilotage token`: mint a token with the installation's own key."""

from datetime import UTC, datetime
from getpass import getuser
from typing import Annotated

import typer

from pilotage.cli import options, output, own_token, settings
from pilotage.service import grants
from pilotage.service.callers import Role


def register(app: typer.Typer) -> None:
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
    grant = grants.grant(
        role=role, vo=vo, user=user, group=group, site=site, queue=queue, stamp=stamp, ttl=ttl
    )
    chosen = settings.load({"home": home})
    text, expires_at = own_token.mint(chosen, grant, now=datetime.now(UTC))
    data = {"token": text, "expires_at": expires_at.isoformat()}
    output.emit(data, as_json=as_json, render=lambda: text)
