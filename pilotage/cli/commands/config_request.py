"""What a command line or a file wants of the configuration, as the service takes it.

Changes of the configuration as lines: `+` is new, `-` goes, `~` becomes another.

The configuration in force, asked of the service; or that of a file, where one is named.
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
    changed: bool  #: whether it is another text at all
    differences: tuple[Difference, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether it is a whole text, which only operators may send."""
        return "text" in self.body


def change_from_file(client: Client, file: Path) -> ConfigChange:
    """A file in place of what is in force, as far as we see that.

    Who is shown a part of the tree sends what is another in that part.

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
    """Edits that are written `PATH=VALUE`, and paths to be removed.

    Raises:
        WrongUsage: There is nothing to do, or a word is none.
    """
    if not words and not removed:
        raise WrongUsage("say PATH=VALUE, or --remove PATH")
    body = {"set": dict(map(_edit, words)), "remove": list(removed)}
    return ConfigChange(body=body, version=int(client.config()["version"]), changed=True)


def _edit(word: str) -> tuple[str, object]:
    path, equals, written = word.partition("=")
    if not path.strip() or not equals:
        raise WrongUsage(f"{word!r}: write PATH=VALUE, as Resources/Sites/LCG.CERN.ch/MaxRAM=8000")
    return path.strip(), parse_value(written, path.strip())


def parse_value(written: str, path: str) -> object:
    """What is written as it would be in the file: `8000`, `[el8, el9]`, `{Policy: level0}`, `null`.

    Raises:
        WrongUsage: It is not one value.
    """
    try:
        return yaml_writer.read_value(written, path)
    except InvalidRequest as error:
        raise WrongUsage(str(error)) from error


def list_changes(found: Iterable[Difference]) -> list[dict[str, object]]:
    """Differences as the service answers them."""
    return [each.as_json() for each in found]


#: What the service answers.
Answer = dict[str, Any]

#: Lines that are printed; machines get all.
_MOST = 100


def change_lines(changes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each change."""
    for change in changes[:_MOST]:
        yield _line(change)
    if len(changes) > _MOST:
        yield f"… and {len(changes) - _MOST} more (--json tells all)"


def _line(change: Mapping[str, Any]) -> str:
    path = change["path"]
    if change["change"] == "removed":
        return f"- {path} = {format_value(change['before'])}"
    if change["change"] == "added":
        return f"+ {path} = {format_value(change['after'])}"
    return f"~ {path} = {format_value(change['after'])} (was {format_value(change['before'])})"


def format_value(value: Any) -> str:
    """A value or a whole section in one line, as it may stand in the file."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {format_value(below)}' for name, below in value.items())}}}"
    return show.format_value(value)


#: Of commands that look into a configuration.
InsteadOfRunning = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="Look into this file instead of asking the service."),
]


def configuration_from(file: Path | None, *, home: Path | None, url: str | None) -> Configuration:
    """The configuration of a file; without one that in force."""
    return validate.load_file(file) if file else fetch_configuration(home=home, url=url)


def fetch_configuration(*, home: Path | None, url: str | None) -> Configuration:
    """The configuration in force, as far as the service shows it to us.

    Operators get the text, so that lines are those of the source; others get what they may see.
    """
    with connect(home=home, url=url) as client:
        answer = client.config()
    text = answer.get("text") or yaml_writer.to_yaml(answer["config"])
    file = answer.get("source") or f"version {answer['version']}"
    return validate.parse(text, file, answer["version"])
