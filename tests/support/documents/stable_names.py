"""Names that stay stable (docs/operator/stability.md), as the program has them now.

python -m tests.support.documents.stable_names      adds new ones to the list that a test compares with
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from typer.main import get_command

import pilotage
from cs_config.options.options import VoOptions
from cs_config.options.registry import Registry
from cs_config.tree import parameters
from pilotage.cli import application
from pilotage.cli.settings import model_with_plugins
from pilotage.fabric.batch.settings import SystemSettings
from pilotage.fabric.director.configuration import DirectorQueue
from pilotage.service import app

ROOT = Path(__file__).parents[3]
LISTED = ROOT / "tests" / "data" / "stable_names.txt"


def read_listed() -> frozenset[str]:
    """The names that were released, or are about to be."""
    return frozenset(LISTED.read_text().splitlines())


def find_names() -> frozenset[str]:
    """All names of today, each with its kind in front."""
    return frozenset(
        [
            *_walk_commands("command", get_command(application.application())),
            *_list_operations(),
            *(f"setting {name}" for name in model_with_plugins().model_fields),
            *_walk_schema("option Operations", VoOptions.model_json_schema(by_alias=True)),
            *_walk_schema("option Registry", Registry.model_json_schema(by_alias=True)),
            *(f"parameter {each.name}" for each in parameters.KNOWN),
            *_walk_schema("director queues", DirectorQueue.model_json_schema(by_alias=True)),
            *_walk_schema("batch system", SystemSettings.model_json_schema(by_alias=True)),
            *_list_dirac_methods(),
            *(f"python pilotage.{name}" for name in pilotage.__all__),
            *_list_entry_points(),
        ]
    )


def _walk_commands(path: str, command: Any) -> Iterator[str]:
    yield path
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from _walk_commands(f"{path} {name}", each)
    else:
        for each in command.params:
            yield from (f"{path} {word}" for word in each.opts if word.startswith("--"))


def _list_operations() -> Iterator[str]:
    for path, operations in app.ServiceApplication(routes=app.list_routes()).openapi()["paths"].items():
        for method, each in operations.items():
            named = f"operation {each['operationId']}"
            yield f"{named} {method.upper()} {path}"
            yield from (f"{named} {parameter['name']}" for parameter in each.get("parameters", ()))


def _walk_schema(path: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """The names of a model, and of those that it has."""
    yield from _walk(path, schema, schema.get("$defs", {}), frozenset())


def _walk(
    path: str, part: Mapping[str, Any], defined: Mapping[str, Any], above: frozenset[str]
) -> Iterator[str]:
    for each in (
        *part.get("anyOf", ()),
        *part.get("allOf", ()),
        part.get("items"),
        part.get("additionalProperties"),
    ):
        if isinstance(each, Mapping):
            yield from _walk(path, each, defined, above)
    if (name := part.get("$ref", "").rpartition("/")[2]) and name not in above:
        yield from _walk(path, defined[name], defined, above | {name})
    for name, each in part.get("properties", {}).items():
        yield f"{path}/{name}"
        yield from _walk(f"{path}/{name}", each, defined, above)


def _list_dirac_methods() -> Iterator[str]:
    from pilotage.plugins.dirac.app import SERVICES  # a plug-in, which may be left out

    return (f"dirac {path[1:]}.{name}" for path, methods in SERVICES.items() for name in methods)


def _list_entry_points() -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group, names in project["entry-points"].items():
        yield from (f"plug-in {group} {name}" for name in names)


def main() -> None:
    """Add the names of today to the list."""
    known = read_listed() if LISTED.exists() else frozenset()
    LISTED.write_text("\n".join(sorted(known | find_names())) + "\n")


if __name__ == "__main__":
    main()
