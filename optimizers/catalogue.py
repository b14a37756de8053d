"""Where the replicas of input files are: a seam, with the implementation that reads a file.

Others are found by entry point `pilotage.replica_catalogues`: a callable that takes the text after
`name:` in the setting `InputDataCatalogue` and returns a `ReplicaCatalogue`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from optimizers.catalogue_file import CatalogueUnavailableError, FileCatalogue

__all__ = ["CatalogueOpener", "CatalogueUnavailableError", "ReplicaCatalogue", "installed", "open_catalogue"]


class ReplicaCatalogue(Protocol):
    """Says where files have replicas."""

    def replicas(self, files: Sequence[str], vo: str) -> Mapping[str, frozenset[str]]:
        """For each file its locations: storage elements or sites. A file without replica may be left out.

        Args:
            files: Logical file names without `LFN:`, beginning with `/`.
            vo: Lower case.

        Raises:
            CatalogueUnavailableError: It cannot say now; the job waits.
        """
        ...


CatalogueOpener = Callable[[str], ReplicaCatalogue]


@cache
def installed() -> Mapping[str, CatalogueOpener]:
    """The plug-ins of this installation by name."""
    points = entry_points(group="pilotage.replica_catalogues")
    return MappingProxyType({point.name: point.load() for point in points})


def open_catalogue(setting: str, plugins: Mapping[str, CatalogueOpener]) -> ReplicaCatalogue:
    """The catalogue that a setting names: `plug-in:argument`, or the path of a file.

    Raises:
        CatalogueUnavailableError: It cannot be opened.
    """
    name, colon, argument = setting.partition(":")
    if colon and name in plugins:
        return plugins[name](argument)
    return FileCatalogue(Path(setting))
