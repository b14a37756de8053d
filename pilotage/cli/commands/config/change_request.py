"""Configuration changes from words or files as requests to the service, and the configuration in force."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs_config import validate
from cs_config.source import yaml_writer
from cs_config.tree.configuration import Configuration
from cs_config.versions import diff, patch
from cs_config.versions.diff import Difference
from cs_config.versions.patch import BulkEdit
from pilotage.cli.commands import queue
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import WrongUsage
from pilotage.fabric.client import ServiceClient
from requirements.errors import InvalidInput, InvalidRequest

#: A response of the service.
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A change, and the version that it starts from."""

    body: Mapping[str, object]  #: `text` with `source`, or `set` and `remove`
    version: int
    changed: bool
    differences: tuple[Difference, ...] = ()
    is_bulk: bool = False  #: the paths were found by a pattern, so they are shown before they are changed


def change_from_file(client: ServiceClient, file: Path) -> ConfigChange:
    """The change that replaces the visible configuration by a file.

    A caller that sees only a part of the tree sends the differences in that part.
    """
    config = validate.load_file(file)
    answer = client.config()
    found = diff.compare(answer["config"], config.tree)
    version = int(answer["version"])
    if (text := answer.get("text")) is not None:
        whole = {"text": config.source, "source": file.name}
        return ConfigChange(body=whole, version=version, changed=text != config.source, differences=found)
    return ConfigChange(body=edits(found), version=version, changed=bool(found), differences=found)


def edits(differences: Sequence[Difference]) -> dict[str, object]:
    """Differences as the body of a request."""
    values, removed = patch.edits_from_differences(differences)
    return {"set": values, "remove": removed}


def change_from_words(
    client: ServiceClient, words: Sequence[str], removed: Sequence[str], where: Sequence[str] = ()
) -> ConfigChange:
    """The change made of `PATH=VALUE` words and paths to remove, at the places that `where` selects."""
    if not words and not removed:
        raise WrongUsage("give PATH=VALUE, or --remove PATH")
    edits = list(map(_parse_edit, words))
    answer = client.config()
    version = int(answer["version"])
    if where or not all(each.is_plain for each in edits):
        if removed:
            raise WrongUsage("--remove takes single paths; do not combine it with *, += or --where")
        try:
            values = patch.expand_edits(_configuration(answer), edits, queue.parse_selection(where))
        except InvalidInput as error:
            raise WrongUsage(str(error)) from error
        body: dict[str, object] = {"set": values, "remove": []}
        return ConfigChange(body=body, version=version, changed=bool(values), is_bulk=True)
    body = {"set": {each.pattern: each.value for each in edits}, "remove": list(removed)}
    return ConfigChange(body=body, version=version, changed=True)


def _parse_edit(word: str) -> BulkEdit:
    path, equals, written = word.partition("=")
    sign = path[-1:] if path[-1:] in ("+", "-") else ""
    path = path.removesuffix(sign).strip()
    if not path or not equals:
        raise WrongUsage(f"{word!r}: write PATH=VALUE, as Resources/Sites/LCG.CERN.ch/MaxRAM=8000")
    try:
        return BulkEdit(pattern=path, value=yaml_writer.read_value(written, path), operator=f"{sign}=")
    except InvalidRequest as error:
        raise WrongUsage(str(error)) from error


def configuration_from(file: Path | None, service: ServiceOptions) -> Configuration:
    """The configuration of a file, or without one the configuration in force."""
    return validate.load_file(file) if file else fetch_configuration(service)


def fetch_configuration(service: ServiceOptions) -> Configuration:
    """The visible part of the configuration in force.

    Operators get the text, with the line numbers of the source; others get the parts that they may see.
    """
    with service.connect() as client:
        return _configuration(client.config())


def _configuration(answer: Answer) -> Configuration:
    text = answer.get("text") or yaml_writer.to_yaml(answer["config"])
    file = answer.get("source") or f"version {answer['version']}"
    return validate.parse(text, file, answer["version"])
