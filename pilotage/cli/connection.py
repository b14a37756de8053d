"""Connects commands to the service."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from pilotage.cli import errors, home_directory, options, output
from pilotage.cli.errors import WrongUsage
from pilotage.cli.home_directory import ClientSettings
from pilotage.fabric.client import ServiceClient


def connect(*, url: str | None, home: Path | None, token: str | None = None) -> ServiceClient:
    """A client of the service named by arguments, environment or `client.env`.

    The token in `client.env` is sent only to the URL in `client.env`: it must not reach another service.
    """
    chosen = home_directory.load_client_settings(home=home, url=url)
    written = home_directory.read_client_env(chosen.home)
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
            f"which writes {chosen.home / home_directory.CLIENT_ENV}"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The options of a command that uses the service."""

    as_json: options.AsJson = False
    home: options.Home = None
    url: options.Url = None

    @contextmanager
    def connect(self) -> Iterator[ServiceClient]:
        """A client of the service named by flags, environment or `client.env`."""
        with connect(url=self.url, home=self.home) as client:
            try:
                yield client
            except KeyboardInterrupt as stopped:
                errors.show_notes(stopped)  # here, since Typer makes an exit status of it
                raise

    def show(self, fetch: Callable[[ServiceClient], Any], render: Callable[[Any], RenderableType]) -> None:
        """Fetch an answer, and print it as JSON, or what `render` makes of it."""
        with self.connect() as client:
            answer = fetch(client)
        self.emit(answer, lambda: render(answer))

    def emit(self, data: object, render: Callable[[], RenderableType]) -> None:
        """Print `data` as JSON, or what `render` makes of it."""
        output.emit(data, as_json=self.as_json, render=render)
