"""The configuration in force, asked of the service; or that of a file, where one is named."""

from pathlib import Path
from typing import Annotated

import typer

from cs_config import validate, yaml_text
from cs_config.configuration import Configuration
from pilotage.cli.connection import connect

#: Of commands that look into a configuration.
InsteadOfIt = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="Look into this file instead of asking the service."),
]


def or_of(file: Path | None, *, home: Path | None, url: str | None) -> Configuration:
    """The configuration of a file; without one that in force."""
    return validate.load_file(file) if file else fetch(home=home, url=url)


def fetch(*, home: Path | None, url: str | None) -> Configuration:
    """The configuration in force, as far as the service shows it to us.

    Operators get the text, so that lines are those of the source; others get what they may see.
    """
    with connect(home=home, url=url) as client:
        answer = client.config()
    text = answer.get("text") or yaml_text.to_yaml(answer["config"])
    file = answer.get("source") or f"version {answer['version']}"
    return validate.parse(text, file, answer["version"])
