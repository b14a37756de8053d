"""Entry points: what installed packages register by name, in groups such as `pilotage.batch`.

An entry point whose module is absent belongs to a plug-in that was left out of this installation: it is
ignored, and listed by `pilotage doctor`. One that cannot be loaded is an error with its name.
"""

from collections.abc import Mapping
from importlib import util
from typing import TYPE_CHECKING, TypeVar

from requirements.errors import PilotageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_Kind = TypeVar("_Kind")

#: Groups whose entry points may be absent. Steps of the chain and replica catalogues may not: a job must not
#: pass because its check was left out.
GROUPS = ("pilotage.batch", "pilotage.formats", "pilotage.job_types", "pilotage.plugins")


class BrokenPlugin(PilotageError):
    """A plug-in is there, but cannot be loaded."""

    code = "broken_plugin"


def list_all(group: str) -> "list[EntryPoint]":
    """The entry points of a group, by name."""
    from importlib import metadata  # takes 0.03 s, for which most commands need not wait

    return sorted(metadata.entry_points(group=group), key=lambda point: point.name)


def list_present(group: str) -> "Mapping[str, EntryPoint]":
    """The entry points of a group whose module is there."""
    return {point.name: point for point in list_all(group) if not is_absent(point)}


def is_absent(point: "EntryPoint") -> bool:
    """Whether its module, or a package above it, is not installed; nothing but these packages is imported."""
    try:
        return util.find_spec(point.module) is None
    except ModuleNotFoundError as error:
        return error.name is not None and f"{point.module}.".startswith(f"{error.name}.")
    except Exception:  # noqa: BLE001 - other people's code; it is there, and `load` reports the error
        return False


def load(point: "EntryPoint", kind: type[_Kind]) -> _Kind:
    """The object that an entry point names.

    Raises:
        BrokenPlugin: It cannot be imported, or is of another kind.
    """
    try:
        found = point.load()
    except Exception as error:  # other people's code
        raise BrokenPlugin(
            f"{point.group}: {point.name} = {point.value} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, kind):
        raise BrokenPlugin(f"{point.group}: {point.name} = {point.value} is no {kind.__name__}")
    return found
