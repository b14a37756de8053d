"""Replica catalogues: locations of input files. Built in is a catalogue in a YAML or JSON file.

Replicas:
  /vo/path/file: [CERN-disk, LCG.PIC.es]     # storage elements or sites

Others are found by entry point `pilotage.replica_catalogues`: a callable that takes the text after `name:` in
the setting `InputDataCatalogue` and returns a `ReplicaCatalogue`.

The parameter `SE` of a site lists the storage elements near it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import yaml

from cs_config.source.yaml_reader import syntax_problem

#: A larger file takes minutes to read; a catalogue of that size should be a service.
MOST_BYTES = 32 * 2**20


class CatalogueUnavailableError(Exception):
    """The catalogue cannot be read now."""


class FileCatalogue:
    """Replicas listed in one file, which is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def replicas(self, files: Sequence[str], vo: str) -> Mapping[str, frozenset[str]]:  # noqa: ARG002
        """Return the locations of those of `files` that the file lists."""
        try:
            state = self._path.stat()
            if state.st_size > MOST_BYTES:
                raise ValueError(f"has {state.st_size:,} bytes, allowed are {MOST_BYTES:,}")  # noqa: TRY301
            known = _read_catalogue(self._path, state.st_mtime_ns, state.st_size)
        except (OSError, ValueError) as error:
            first_line = (str(error) or type(error).__name__).splitlines()[0]
            raise CatalogueUnavailableError(f"{self._path}: {first_line}") from error
        return {file: known[file] for file in files if file in known}


class _CatalogueLoader(yaml.CSafeLoader):
    """Limits the nesting depth: a thousand nested lists would take seconds."""

    _deepest = 4
    _depth = 0

    def descend_resolver(self, current_node: yaml.Node | None, current_index: object) -> None:
        self._depth += 1
        if self._depth > self._deepest:
            raise ValueError("lists or records inside each other, allowed is a list of places for each file")
        super().descend_resolver(current_node, current_index)

    def ascend_resolver(self) -> None:
        self._depth -= 1
        super().ascend_resolver()


@lru_cache(maxsize=8)
def _read_catalogue(path: Path, _changed_ns: int, _size: int) -> Mapping[str, frozenset[str]]:
    text = path.read_text(encoding="utf-8")
    try:
        tree = yaml.load(text, Loader=_CatalogueLoader)  # noqa: S506, a safe one
    except yaml.YAMLError as error:
        problem = syntax_problem(error, text, str(path))
        raise ValueError(f"line {problem.line}: {problem.message}") from error
    replicas = tree.get("Replicas") if isinstance(tree, dict) else None
    if not isinstance(replicas, dict):
        raise ValueError("has no section Replicas")  # noqa: TRY004, what is wrong is the file
    return {
        str(file).removeprefix("LFN:"): _locations(str(file), places) for file, places in replicas.items()
    }


def _locations(file: str, places: object) -> frozenset[str]:
    listed = [places] if isinstance(places, str) else places
    if not isinstance(listed, list) or not all(isinstance(place, str) for place in listed):
        raise ValueError(f"Replicas/{file}: {places!r}, allowed is a list of storage elements or sites")
    return frozenset(listed)


class ReplicaCatalogue(Protocol):
    """Locations of the replicas of files."""

    def replicas(self, files: Sequence[str], vo: str) -> Mapping[str, frozenset[str]]:
        """Return the locations of each file: storage elements or sites; without replicas it may be left out.

        Files are logical names without `LFN:`, beginning with `/`; the VO is in lower case. Raises
        CatalogueUnavailableError for a temporary failure: the job waits.
        """
        ...


CatalogueOpener = Callable[[str], ReplicaCatalogue]


@cache
def installed_catalogues() -> Mapping[str, CatalogueOpener]:
    """The installed plug-ins by name."""
    points = entry_points(group="pilotage.replica_catalogues")
    return MappingProxyType({point.name: point.load() for point in points})


def open_catalogue(setting: str, plugins: Mapping[str, CatalogueOpener]) -> ReplicaCatalogue:
    """Open the catalogue of a setting: `plug-in:argument`, or the path of a file."""
    name, colon, argument = setting.partition(":")
    if colon and name in plugins:
        return plugins[name](argument)
    return FileCatalogue(Path(setting))
