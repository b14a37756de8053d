"""The configuration in force, asked of the service."""

from pathlib import Path

from cs_config import validate, yaml_text
from cs_config.configuration import Configuration
from pilotage.cli.connection import connect


def fetch(*, home: Path | None, url: str | None) -> Configuration:
    """The configuration in force, as far as the service shows it to us.

    Operators get the text, so that lines are those of the source; others get what they may see.
    """
    with connect(home=home, url=url) as client:
        answer = client.config()
    text = answer.get("text") or yaml_text.to_yaml(answer["config"])
    file = answer.get("source") or f"version {answer['version']}"
    return validate.parse(text, file, answer["version"])
