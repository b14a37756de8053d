"""Builds a client of the service from the settings."""

from pathlib import Path

from pilotage.cli import client_settings, home_directory
from pilotage.cli.errors import WrongUsage
from pilotage.fabric.client import Client


def connect(*, home: Path | None, url: str | None) -> Client:
    """A client of the service named by flags, environment or `client.env`.

    The token in `client.env` is sent only to the URL in `client.env`: it must not reach another service.

    Raises:
        WrongUsage: No URL or no token is configured.
    """
    chosen = client_settings.load(home=home, url=url)
    written = home_directory.read_client_env(chosen.home)
    address = chosen.url or written.get("PILOTAGE_URL")
    if address is None:
        raise WrongUsage(
            f"no service known: set PILOTAGE_URL, or start `pilotage up`, "
            f"which writes {chosen.home / home_directory.CLIENT_ENV}"
        )
    own = written.get("PILOTAGE_TOKEN") if address == written.get("PILOTAGE_URL") else None
    token = chosen.token or own
    if token is None:
        raise WrongUsage(
            f"no token for {address}: set PILOTAGE_TOKEN (an operator makes one: `pilotage token`)"
        )
    authorities = chosen.authorities or written.get("PILOTAGE_AUTHORITIES")
    try:
        return Client(address, token, authorities=Path(authorities) if authorities else None)
    except ValueError as error:
        raise WrongUsage(str(error)) from None
