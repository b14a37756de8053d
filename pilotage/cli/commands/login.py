"""`pilotage login`: a link that signs a browser in, or a login of the command line; `whoami`; `revoke`.

A user who can read the signing key needs no token: the command signs one.
"""

import os
import sys
import time
from getpass import getuser
from pathlib import Path
from typing import Annotated

import typer

from pilotage.cli import home_directory, options, output
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import WrongUsage
from pilotage.client import connection
from pilotage.client.api import ApiError, Json, ServiceAway, ServiceClient, is_passing
from pilotage.client.connection import ClientSettings

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

    With --device, the commands get the rights of your browser session instead, and keep the token in
    client.env of the home directory.

    Example: `pilotage login --role user --vo cms --user ada`.
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
    chosen = connection.load_client_settings(home=service.home, url=service.url)
    written = connection.read_client_env(chosen.home)
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
    """Show the role, VOs and sites of your token.

    Example: `pilotage whoami`.
    """
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

    A token in the arguments of a command can be seen by others on this machine: use `-` instead.

    Example: `pilotage revoke TOKEN`.
    """
    given = sys.stdin.read().strip() if token == "-" else token  # noqa: S105 - a sign, not a password
    with service.connect() as client:
        client.revoke(given)
    service.emit({"revoked": True}, lambda: "revoked")


def _signing_client(service: ServiceOptions) -> ServiceClient:
    """A client with the configured token, or else with an operator's token signed by the local key."""
    mine = connection.load_client_settings(home=service.home, url=service.url)
    if mine.token or connection.read_client_env(mine.home):
        return connection.connect(url=service.url, home=service.home)
    # Imported late: most users have a token, and need neither all settings nor keys nor the database.
    from pilotage.cli import settings
    from pilotage.cli.commands import tokens
    from pilotage.service.auth import callers

    chosen = settings.load({"home": service.home, "url": service.url})
    if not chosen.key.exists():
        return connection.connect(url=service.url, home=service.home)
    grant = callers.grant(role="operator", user=getuser(), ttl=_LONGEST_SESSION)
    token, _ = tokens.mint_token(chosen, grant)
    own = ClientSettings(
        home=chosen.home,
        url=chosen.url or f"http://{chosen.host}:{chosen.port}",
        authorities=chosen.authorities,
        proxy=chosen.proxy,
    )
    return connection.make_client(own, {}, token, whose=str(chosen.key))
