"""What of the configuration somebody may see: nothing that belongs to other VOs."""

from collections.abc import Mapping

from cs_config.configuration import Configuration
from cs_config.rights import Rights
from cs_config.sections import Leaf, Section, plain


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
            entries[name] = _section(config, rights, entry, here) if isinstance(entry, Section) else entry
    return Section(section.line, entries)
