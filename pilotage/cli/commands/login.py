"""`pilotage login`, a link that signs a browser in; `whoami`; `revoke`.

A user who can read the signing key needs no token: the command signs one.
"""

import sys
from getpass import getuser
from typing import Annotated

import typer

from pilotage.cli import home_directory, options, output, settings
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import WrongUsage
from pilotage.fabric.client import ServiceClient

#: Lifetime in seconds of a token that `login` signs, and the maximum of the session.
_LONGEST_SESSION = 43_200


def login(
    *,
    role: Annotated[
        str | None,
        typer.Option(
            help="For operators: sign in as user, vo_admin, site_admin or operator (default: your own role)."
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
    service: ServiceOptions,
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
    with _signing_client(service) as client:
        answer = client.login_link({name: value for name, value in wanted.items() if value is not None})
        link = f"{client.url}{answer['path']}"
    data = {"link": link, "expires_at": answer["expires_at"]}
    service.emit(data, lambda: link)


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
    from pilotage.cli.commands import tokens
    from pilotage.service.auth import callers

    grant = callers.grant(role="operator", user=getuser(), ttl=_LONGEST_SESSION)
    token, _ = tokens.mint_token(chosen, grant)
    return ServiceClient(chosen.url or f"http://{chosen.host}:{chosen.port}", token, whose=str(chosen.key))
