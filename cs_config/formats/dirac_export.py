"""Export of the tree as DIRAC configuration in today's layout: sites grouped by the first part of the name.

Values of VOs, throttles and node attributes become sections that DIRAC ignores; an import reads them again. A
node with a restriction that cannot be represented is written as disabled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cs_config.formats import dirac_text, restrictions
from cs_config.source.sections import LeafValue, Tree
from requirements.values import fold

#: Group of the sites whose name has no dot.
NO_GRID = "DIRAC"
_SITES = ("Resources", "Sites")
_OFF = f"{restrictions.ENABLED} = False"
#: Sections that contain one section per name.
_OF_SECTIONS = frozenset({"Sites", "CEs", "Queues", "VOs", "VO", "Groups", "Operations"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedText:
    """An exported text, and losses of the export."""

    text: str
    left_out: tuple[str, ...]  #: a path each, with the reason


def export_dirac(tree: Tree) -> ExportedText:
    """Export a whole tree."""
    writer = _Writer(checks=restrictions.checks(tree))
    written = writer.section(tree, ())
    return ExportedText(
        text="\n".join([*dirac_text.write_text(written), ""]), left_out=tuple(writer.left_out)
    )


@dataclass(slots=True)
class _Writer:
    checks: frozenset[str]  #: folded names of attributes that are expressions about jobs
    left_out: list[str] = field(default_factory=list)
    restricted: set[tuple[str, ...]] = field(default_factory=set)  #: nodes that lost a restriction

    def section(self, tree: Mapping[str, object], names: tuple[str, ...]) -> dict[str, object]:
        """The tree with texts as values."""
        written: dict[str, object] = {}
        for name, entry in tree.items():
            path = (*names, name)
            if not dirac_text.is_name(name):
                self._leave_out(path, "a name with a character that has a meaning there")
                self._restrict(path, entry)
            elif path == _SITES and isinstance(entry, Mapping):
                written[name] = self._sites(entry)
            elif isinstance(entry, Mapping):
                written[name] = self.section(entry, path)
            elif entry is None and names[-1:] and names[-1] in _OF_SECTIONS:
                written[name] = {}  # a name without anything is an empty section
            else:
                self._option(written, path, entry)  # type: ignore[arg-type]  # what is no section is a value
        if names in self.restricted:
            restrictions.close(written)
        return written

    def _sites(self, sites: Mapping[str, object]) -> dict[str, object]:
        grids: dict[str, dict[str, object]] = {}
        for site, entry in sites.items():
            grid, dot, _ = site.partition(".")
            below = self.section({site: entry if isinstance(entry, Mapping) else {}}, _SITES)
            grids.setdefault(grid if dot else NO_GRID, {}).update(below)
        return dict(grids)

    def _option(self, written: dict[str, object], path: tuple[str, ...], value: LeafValue) -> None:
        text = dirac_text.write_value(path[-1], value)
        if fold(path[-1]) == "vo" and value == []:
            self._leave_out(path, f"an empty list admits all VOs there: written as {_OFF}")
            self._restrict(path, value)
        elif text is None:
            self._leave_out(path, _unsayable_reason(value))
            self._restrict(path, value)
        else:
            written[path[-1]] = text

    def _restrict(self, path: tuple[str, ...], entry: object) -> None:
        """Record the node that loses a restriction, unless the value enables it."""
        node = restrictions.node_of(path)
        if node is not None and entry is not None and restrictions.is_restriction(path[-1], self.checks):
            self.restricted.add(node)
            self.left_out.append(
                f"{'/'.join(node)}/{restrictions.ENABLED}: {_OFF}, because {path[-1]} is left out"
            )

    def _leave_out(self, path: tuple[str, ...], why: str) -> None:
        self.left_out.append(f"{'/'.join(path)}: {why}")


def _unsayable_reason(value: LeafValue) -> str:
    if value is None:
        return "an empty value removes nothing there"
    if value == []:
        return "an empty list is not a value there"
    shown = repr(value)
    return f"{shown[:60]} would be read as something else there"
