"""What of the configuration somebody of certain VOs may see: nothing that belongs to other VOs."""

from collections.abc import Callable, Collection, Mapping

from cs_config.configuration import Configuration
from cs_config.operations import DEFAULTS
from cs_config.sections import Leaf, Section, plain
from requirements.values import fold

#: Whether an entry is shown, by its name.
_Shown = Callable[[str], bool]

_VALUES_OF_VOS = "VOs"


def tree(config: Configuration, vos: Collection[str]) -> Mapping[str, object]:
    """The tree without what other VOs own.

    Left out are their `VOs/<vo>` values at every level, their `Operations`, and in the `Registry` they
    themselves and their groups.
    """
    own = frozenset(fold(vo) for vo in vos)
    root = dict(config.root.entries)
    for name, filtered in (("Resources", _resources), ("Operations", _operations)):
        if isinstance(entry := root.get(name), Section):
            root[name] = filtered(entry, own)
    if isinstance(registry := root.get("Registry"), Section):
        root["Registry"] = _registry(config, registry, own)
    shown = plain(Section(config.root.line, root))
    return shown if isinstance(shown, dict) else {}


def _resources(section: Section, own: frozenset[str]) -> Section:
    entries: dict[str, Leaf | Section] = {}
    for name, entry in section.entries.items():
        if isinstance(entry, Section) and name == _VALUES_OF_VOS:
            entries[name] = _only(entry, lambda vo: fold(vo) in own)
        else:
            entries[name] = _resources(entry, own) if isinstance(entry, Section) else entry
    return Section(section.line, entries)


def _operations(section: Section, own: frozenset[str]) -> Section:
    return _only(section, lambda name: name == DEFAULTS or fold(name) in own)


def _registry(config: Configuration, section: Section, own: frozenset[str]) -> Section:
    groups = config.registry.groups
    shown: dict[str, _Shown] = {
        "VO": lambda vo: fold(vo) in own,
        "Groups": lambda name: name in groups and groups[name].vo in own,
    }
    return Section(
        section.line,
        {
            name: _only(entry, shown[name]) if isinstance(entry, Section) else entry
            for name, entry in section.entries.items()
            if name in shown
        },
    )


def _only(section: Section, shown: _Shown) -> Section:
    return Section(section.line, {name: entry for name, entry in section.entries.items() if shown(name)})
