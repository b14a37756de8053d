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
from pilotage.cli.connection import ServiceOptions
from pilotage.cli.errors import WrongUsage
from pilotage.fabric.client import ServiceClient
from requirements.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A change, and the version that it starts from."""

    body: Mapping[str, object]  #: `text` with `source`, or `set` and `remove`
    version: int
    changed: bool
    differences: tuple[Difference, ...] = ()


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


def change_from_words(client: ServiceClient, words: Sequence[str], removed: Sequence[str]) -> ConfigChange:
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


#: A response of the service.
Answer = dict[str, Any]


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
