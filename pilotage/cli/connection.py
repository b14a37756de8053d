"""The options of commands that use the service, and their output."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType

from pilotage.cli import errors, options, output
from pilotage.client import connection
from pilotage.client.api import ServiceClient


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The options of a command that uses the service."""

    as_json: options.AsJson = False
    home: options.Home = None
    url: options.Url = None

    @contextmanager
    def connect(self) -> Iterator[ServiceClient]:
        """A client of the service named by flags, environment or `client.env`."""
        with connection.connect(url=self.url, home=self.home) as client:
            try:
                yield client
            except BaseException as error:
                errors.show_notes(error)  # here, since Typer makes an exit status of Ctrl-C
                raise

    def show(self, fetch: Callable[[ServiceClient], Any], render: Callable[[Any], RenderableType]) -> None:
        """Fetch an answer, and print it as JSON, or what `render` makes of it."""
        with self.connect() as client:
            answer = fetch(client)
        self.emit(answer, lambda: render(answer))

    def emit(self, data: object, render: Callable[[], RenderableType]) -> None:
        """Print `data` as JSON, or what `render` makes of it."""
        output.emit(data, as_json=self.as_json, render=render)
