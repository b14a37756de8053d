"""Where the service is, and the token for it: arguments, environment, settings, or `client.env`.

Commands on this machine read from `client.env` in the home directory where the service of `pilotage up` is,
and their token. Where nothing else is set, they do without the model of all settings, which takes longer to
build than most requests.
"""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pilotage.client.api import ServiceClient
from pilotage.client.errors import WrongUsage
from pilotage.client.home import PREFIX, SETTINGS_FILE, default_home

CLIENT_ENV = "client.env"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings that a client needs."""

    home: Path
    url: str | None = None
    token: str | None = None
    authorities: Path | None = None
    proxy: str | None = None


_VARIABLES = {PREFIX + name.upper(): name for name in ("home", "url", "token", "authorities", "proxy")}


#: The model of all settings, which the light client does without.
_SETTINGS = "pilotage.cli.settings"


def load_client_settings(*, home: Path | None, url: str | None = None) -> ClientSettings:
    """The settings of a client: flags, else PILOTAGE_* variables, else the settings file."""
    given = {name: value for name, value in os.environ.items() if name.startswith(PREFIX) and value}
    own = {_VARIABLES[name]: value for name, value in given.items() if name in _VARIABLES}
    place = Path(home or own.get("home") or default_home(os.environ)).expanduser().absolute()
    has_file = (place / SETTINGS_FILE).exists()
    if (has_file or len(own) < len(given)) and find_spec(_SETTINGS) is not None:
        return _load_all(home, url)
    if has_file:
        raise WrongUsage(
            f"{place / SETTINGS_FILE}: only the whole program reads it; set PILOTAGE_URL and PILOTAGE_TOKEN, "
            "another PILOTAGE_HOME, or install `pilotage` instead of `pilotage-client`"
        )
    authorities = own.get("authorities")
    return ClientSettings(
        home=place,
        url=own.get("url") if url is None else url,
        token=own.get("token"),
        authorities=None if authorities is None else Path(authorities),
        proxy=own.get("proxy"),
    )


def _load_all(home: Path | None, url: str | None) -> ClientSettings:
    from pilotage.cli import settings

    chosen = settings.load({"home": home, "url": url})
    return ClientSettings(
        home=chosen.home,
        url=chosen.url,
        token=chosen.token,
        authorities=chosen.authorities,
        proxy=chosen.proxy,
    )


def client_variables(
    *, url: str, token: str, authorities: Path | None = None, proxy: str | None = None
) -> dict[str, str]:
    """The variables with URL, token and CA certificates of the service, and the proxy on the way to it."""
    variables = {"PILOTAGE_URL": url, "PILOTAGE_TOKEN": token}
    if authorities is not None:
        variables["PILOTAGE_AUTHORITIES"] = str(authorities.absolute())
    if proxy is not None:
        variables["PILOTAGE_PROXY"] = proxy
    return variables


def read_client_env(home: Path) -> dict[str, str]:
    """The variables in `client.env`; empty without the file."""
    try:
        text = (home / CLIENT_ENV).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {name.strip(): "".join(shlex.split(value)) for name, _, value in pairs}


def connect(*, url: str | None, home: Path | None, token: str | None = None) -> ServiceClient:
    """A client of the service named by arguments, environment or `client.env`.

    The token in `client.env` is sent only to the URL in `client.env`: it must not reach another service.
    """
    chosen = load_client_settings(home=home, url=url)
    written = read_client_env(chosen.home)
    address = find_address(chosen, written)
    own = written.get("PILOTAGE_TOKEN") if address == written.get("PILOTAGE_URL") else None
    shown = token or chosen.token or own
    if shown is None:
        raise WrongUsage(f"no token for {address}: run `pilotage login --device`, or set PILOTAGE_TOKEN")
    return make_client(chosen, written, shown)


def find_address(chosen: ClientSettings, written: Mapping[str, str]) -> str:
    """The address of the service; `WrongUsage` without one."""
    address = chosen.url or written.get("PILOTAGE_URL")
    if address is None:
        raise WrongUsage(
            f"no address of a service: set PILOTAGE_URL, or start `pilotage up`, "
            f"which writes {chosen.home / CLIENT_ENV}"
        )
    return address


def make_client(
    chosen: ClientSettings, written: Mapping[str, str], token: str, *, whose: str = ""
) -> ServiceClient:
    """A client of the service with a token; `whose` it is appears in the message if it is refused."""
    authorities = chosen.authorities or written.get("PILOTAGE_AUTHORITIES")
    try:
        return ServiceClient(
            find_address(chosen, written),
            token,
            whose=whose,
            authorities=Path(authorities) if authorities else None,
            proxy=chosen.proxy or written.get("PILOTAGE_PROXY"),
        )
    except ValueError as error:
        raise WrongUsage(str(error)) from None
