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
from cs_config.versions.diff import ABSENT, Difference
from cs_config.versions.proposals import Proposal
from pilotage.cli.connection import ServiceOptions
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
    return ConfigChange(body=_edits(found), version=version, changed=bool(found), differences=found)


def change_from_proposal(client: Client, proposal: Proposal) -> ConfigChange:
    """The change that stores a proposal; as differences, if the caller sees only a part of the tree."""
    whole = {"text": proposal.after.source, "source": proposal.after.file}
    body = _edits(proposal.differences) if client.config().get("text") is None else whole
    return ConfigChange(body=body, version=proposal.before.version, changed=True)


def _edits(differences: Sequence[Difference]) -> dict[str, object]:
    values, removed = patch.edits_from_differences(differences)
    return {"set": values, "remove": removed}


def change_from_words(client: Client, words: Sequence[str], removed: Sequence[str]) -> ConfigChange:
    """The change made of `PATH=VALUE` words and paths to remove."""
    if not words and not removed:
        raise WrongUsage("give PATH=VALUE, or --remove PATH")
    body = {"set": dict(map(_parse_edit, words)), "remove": list(removed)}
    return ConfigChange(body=body, version=int(client.config()["version"]), changed=True)


def _parse_edit(word: str) -> tuple[str, object]:
    path, equals, written = word.partition("=")
    path = path.strip()
    if not path or not equals:
        raise WrongUsage(f"{word!r}: write PATH=VALUE, as Resources/Sites/LCG.CERN.ch/MaxRAM=8000")
    try:
        return path, yaml_writer.read_value(written, path)
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
        before = ABSENT if change["change"] == "added" else change["before"]
        after = ABSENT if change["change"] == "removed" else change["after"]
        yield change_line(change["path"], before, after)
    if len(changes) > _MOST:
        yield f"… and {len(changes) - _MOST} more (--json lists all)"


def change_line(name: str, before: Any, after: Any) -> str:
    """A line for one change; `ABSENT`: no value."""
    if after is ABSENT:
        return f"- {name} = {_format(before)}"
    if before is ABSENT:
        return f"+ {name} = {_format(after)}"
    return f"~ {name} = {_format(after)} (was {_format(before)})"


def _format(value: Any) -> str:
    """A value or a whole section in one line of YAML."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_format(below)}' for name, below in value.items())}}}"
    return show.format_value(value)


#: Option of commands that only read a configuration.
InsteadOfRunning = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="Read this file instead of the configuration in force."),
]


def configuration_from(file: Path | None, service: ServiceOptions) -> Configuration:
    """The configuration of a file, or without one the configuration in force."""
    return validate.load_file(file) if file else fetch_configuration(service)


def fetch_configuration(service: ServiceOptions) -> Configuration:
    """The visible part of the configuration in force.

    Operators get the text, with the line numbers of the source; others get the parts that they may see.
    """
    with service.connect() as client:
        answer = client.config()
    text = answer.get("text") or yaml_writer.to_yaml(answer["config"])
    file = answer.get("source") or f"version {answer['version']}"
    return validate.parse(text, file, answer["version"])
