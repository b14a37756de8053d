"""What of the configuration somebody may see: nothing that belongs to other VOs."""

from collections.abc import Mapping

from cs_config.configuration import Configuration
from cs_config.rights import Rights
from cs_config.sections import Leaf, Section, plain

_VOS = "VOs"


def tree(config: Configuration, rights: Rights) -> Mapping[str, object]:
    """The tree without what other VOs own.

    Left out are their `VOs/<vo>` values at every level, their `Operations`, and in the `Registry` they
    themselves and their groups.
    """
    if rights.everything:
        return config.tree
    shown = plain(_section(config, rights, config.root, ()))
    return shown if isinstance(shown, dict) else {}


def _section(config: Configuration, rights: Rights, section: Section, names: tuple[str, ...]) -> Section:
    entries: dict[str, Leaf | Section] = {}
    for name, entry in section.entries.items():
        here = (*names, name)
        if rights.sees_path(config, here):
            shown = _section(config, rights, entry, here) if isinstance(entry, Section) else entry
            if not (name == _VOS and _is_emptied(entry, shown)):
                entries[name] = shown
    return Section(section.line, entries)


def _is_emptied(entry: Leaf | Section, shown: Leaf | Section) -> bool:
    """Whether all that stands in a section is others': that it is there would tell that they have values."""
    return isinstance(shown, Section) and not shown.entries and entry != shown
