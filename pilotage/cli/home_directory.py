"""The home directory of an installation, its lock against a second `up`, and what clients read in it.

Commands on this machine read from `client.env` where the service of `pilotage up` is, and their token. Where
nothing else is set, they do without the model of all settings: building it takes 0.08 s of the 0.48 s of
`pilotage job list`.
"""

import fcntl
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pilotage.cli.errors import CommandRefused
from pilotage.fabric.pilot import job_files

_LOCK = "up.lock"


def make_home(home: Path) -> None:
    """Create the directory, private to its owner: it holds the signing key."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)


def require_installation(home: Path, key: Path) -> None:
    """Reject a mistyped home directory: no service would accept tokens signed there.

    An empty directory passes, as one prepared for a new installation.
    """
    if key.exists() or (home.is_dir() and not any(home.iterdir())):
        return
    raise CommandRefused(
        f"{home}: no installation was made here (no {key.name}); `pilotage up`, `serve` and `db upgrade` "
        "make one, --home or PILOTAGE_HOME names another"
    )


@contextmanager
def lock_home(home: Path) -> Iterator[None]:
    """Hold the lock of `pilotage up` in this home directory; the kernel releases it with the process."""
    with (home / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandRefused(f"`pilotage up` runs already in {home}") from None
        yield


CLIENT_ENV = "client.env"


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


def write_client_env(
    home: Path, *, url: str, token: str, authorities: Path | None = None, proxy: str | None = None
) -> Path:
    """Write `client.env`, readable only by its owner; a shell can source it."""
    path = home / CLIENT_ENV
    variables = client_variables(url=url, token=token, authorities=authorities, proxy=proxy)
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
    job_files.write(str(home), CLIENT_ENV, text.encode())
    return path


def read_client_env(home: Path) -> dict[str, str]:
    """The variables in `client.env`; empty without the file."""
    try:
        text = (home / CLIENT_ENV).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {name.strip(): "".join(shlex.split(value)) for name, _, value in pairs}


def remove_client_env(home: Path) -> None:
    """Remove `client.env`, so that no command connects to the previous service."""
    (home / CLIENT_ENV).unlink(missing_ok=True)


#: The settings file in the home directory.
FILE = "pilotage.yaml"
#: Of the environment variables that hold settings.
PREFIX = "PILOTAGE_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings that a client needs."""

    home: Path
    url: str | None = None
    token: str | None = None
    authorities: Path | None = None
    proxy: str | None = None


_VARIABLES = {PREFIX + name.upper(): name for name in ("home", "url", "token", "authorities", "proxy")}


def default_home(environment: Mapping[str, str]) -> Path:
    """`$XDG_DATA_HOME/pilotage`, where the XDG default stands in for an unset variable."""
    data = environment.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "pilotage"


def load_client_settings(*, home: Path | None, url: str | None = None) -> ClientSettings:
    """The settings of a client: flags, else PILOTAGE_* variables, else the settings file."""
    given = {name: value for name, value in os.environ.items() if name.startswith(PREFIX) and value}
    own = {_VARIABLES[name]: value for name, value in given.items() if name in _VARIABLES}
    place = Path(home or own.get("home") or default_home(os.environ)).expanduser().absolute()
    if (place / FILE).exists() or len(own) < len(given):
        return _load_all(home, url)
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
