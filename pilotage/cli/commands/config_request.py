"""Configuration changes from words or files as requests to the service, and as lines of text.

In a line, `+` is an addition, `-` a removal, `~` a new value.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cs_config import validate
from cs_config.source import yaml_writer
from cs_config.tree.configuration import Configuration
from cs_config.versions import diff, patch, show
from cs_config.versions.diff import Difference
from pilotage.cli.connection import connect
from pilotage.cli.errors import WrongUsage
from pilotage.fabric.client import Client
from requirements.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A change, and the version that it starts from."""

    body: Mapping[str, object]  #: `text` with `source`, or `set` and `remove`
    version: int
    changed: bool
    differences: tuple[Difference, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether the change is a whole text, which only operators may send."""
        return "text" in self.body


def change_from_file(client: Client, file: Path) -> ConfigChange:
    """The change that replaces the visible configuration by a file.

    A caller that sees only a part of the tree sends the differences in that part.

    Raises:
        ConfigError: The file is wrong.
    """
    config = validate.load_file(file)
    answer = client.config()
    found = diff.compare(answer["config"], config.tree)
    version = int(answer["version"])
    if (text := answer.get("text")) is not None:
        whole = {"text": config.source, "source": file.name}
        return ConfigChange(body=whole, version=version, changed=text != config.source, differences=found)
    values, removed = patch.edits_from_differences(found)
    body = {"set": values, "remove": removed}
    return ConfigChange(body=body, version=version, changed=bool(found), differences=found)


def change_from_words(client: Client, words: Sequence[str], removed: Sequence[str]) -> ConfigChange:
    """The change made of `PATH=VALUE` words and paths to remove.

    Raises:
        WrongUsage: No edit is given, or a word is not PATH=VALUE.
    """
    if not words and not removed:
        raise WrongUsage("give PATH=VALUE, or --remove PATH")
    body = {"set": dict(map(_edit, words)), "remove": list(removed)}
    return ConfigChange(body=body, version=int(client.config()["version"]), changed=True)


def _edit(word: str) -> tuple[str, object]:
    path, equals, written = word.partition("=")
    if not path.strip() or not equals:
        raise WrongUsage(f"{word!r}: write PATH=VALUE, as Resources/Sites/LCG.CERN.ch/MaxRAM=8000")
    return path.strip(), parse_value(written, path.strip())


def parse_value(written: str, path: str) -> object:
    """A YAML value: `8000`, `[el8, el9]`, `{Policy: level0}`, `null`.

    Raises:
        WrongUsage: The text is not one value.
    """
    try:
        return yaml_writer.read_value(written, path)
    except InvalidRequest as error:
        raise WrongUsage(str(error)) from error


def list_changes(found: Iterable[Difference]) -> list[dict[str, object]]:
    """Differences in the form in which the service returns them."""
    return [each.as_json() for each in found]


#: A response of the service.
Answer = dict[str, Any]

#: Lines to print; JSON has all.
_MOST = 100


def change_lines(changes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each change."""
    for change in changes[:_MOST]:
        yield _line(change)
    if len(changes) > _MOST:
        yield f"… and {len(changes) - _MOST} more (--json lists all)"


def _line(change: Mapping[str, Any]) -> str:
    path = change["path"]
    if change["change"] == "removed":
        return f"- {path} = {format_value(change['before'])}"
    if change["change"] == "added":
        return f"+ {path} = {format_value(change['after'])}"
    return f"~ {path} = {format_value(change['after'])} (was {format_value(change['before'])})"


def format_value(value: Any) -> str:
    """A value or a whole section in one line of YAML."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {format_value(below)}' for name, below in value.items())}}}"
    return show.format_value(value)


#: Option of commands that only read a configuration.
InsteadOfRunning = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="Read this file instead of the configuration in force."),
]


def configuration_from(file: Path | None, *, home: Path | None, url: str | None) -> Configuration:
    """The configuration of a file, or without one the configuration in force."""
    return validate.load_file(file) if file else fetch_configuration(home=home, url=url)


def fetch_configuration(*, home: Path | None, url: str | None) -> Configuration:
    """The visible part of the configuration in force.

    Operators get the text, with the line numbers of the source; others get the parts that they may see.
    """
    with connect(home=home, url=url) as client:
        answer = client.config()
    text = answer.get("text") or yaml_writer.to_yaml(answer["config"])
    file = answer.get("source") or f"version {answer['version']}"
    return validate.parse(text, file, answer["version"])
