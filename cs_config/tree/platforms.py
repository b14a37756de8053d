"""Platform compatibility: `Resources/Computing/OSCompatibility/<platform>` lists what its nodes can run."""

from collections.abc import Iterable

from cs_config.source.sections import Leaf, Section
from cs_config.tree.configuration import Configuration
from requirements.errors import Problem
from requirements.values import fold

_PATH = "Resources/Computing/OSCompatibility"


def read_platforms(root: Section, file: str) -> tuple[dict[str, tuple[str, ...]], list[Problem]]:
    """The platforms that the nodes of each platform can run, and the problems of the section."""
    section = root.section("Resources").section("Computing").section("OSCompatibility")
    found: dict[str, tuple[str, ...]] = {}
    problems: list[Problem] = []
    for name, entry in section.entries.items():
        platforms = _texts(entry)
        if platforms is None:
            message = "a list of the platforms that its nodes can run is needed here: [one, two]"
            problems.append(Problem(path=f"{_PATH}/{name}", message=message, file=file, line=entry.line))
        else:
            found[name] = platforms
    return found, problems


def _texts(entry: Leaf | Section) -> tuple[str, ...] | None:
    if isinstance(entry, Section):
        return None
    items = entry.value if isinstance(entry.value, list) else [entry.value]
    return (
        tuple(item for item in items if isinstance(item, str))
        if all(isinstance(i, str) for i in items)
        else None
    )


def list_compatible(config: Configuration, wanted: Iterable[str]) -> tuple[str, ...]:
    """The platforms whose nodes can run one of the wanted ones; those themselves first.

    Source: DIRAC, which writes the result into the job before it waits.
    """
    names = {fold(name): name for name in wanted}
    wanted_names = frozenset(names)
    for platform, runs in config.os_compatibility.items():
        if any(fold(each) in wanted_names for each in runs):
            names.setdefault(fold(platform), platform)
    return tuple(names.values())
