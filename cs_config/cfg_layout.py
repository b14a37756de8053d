"""The layouts of DIRAC's configuration, brought into ours: today's, and the one of RFC #5.

Today's: `Resources/Sites/<Grid>/<Grid.Name.cc>`. RFC #5: `Resources/Sites/<Name>` with `Domains`, `Country`
and `Computing/<CE>/Queues`, sections named after VOs for their values, and `Communities` for who may come.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from cs_config import cfg_defaults, cfg_values, freshness
from cs_config.sections import Leaf, Section
from requirements.problem import Problem
from requirements.values import fold

_OURS = ("Resources", "Operations", "Registry")
#: What each of them may have here.
_BELOW = {"Resources": ("Sites", "Computing"), "Registry": ("VO", "Groups")}
_COMPUTING = ("OSCompatibility", freshness.SETTING)
_OF_QUEUES = ("CEs", "Queues", "VOs", "Throttle", "NodeAttributes", "Forwarding")
_COMMUNITIES = "communities"


@dataclass(slots=True, kw_only=True)
class Layout:
    """Brings a text into our layout, and gathers what has no place there."""

    file: str
    vos: frozenset[str] = frozenset()  #: known VOs, folded: sections of RFC #5 that are named after one
    notes: list[Problem] = field(default_factory=list)

    def ours(self, root: Section) -> dict[str, object]:
        """The tree in our layout, values read."""
        tree: dict[str, object] = {}
        for name, entry in root.entries.items():
            if name not in _OURS or isinstance(entry, Leaf):
                self._note(name, entry.line, "not carried over: it is no matter of this system")
            elif name == "Resources":
                tree[name] = self._resources(entry)
            else:
                tree[name] = self._values(self._only(entry, name, _BELOW.get(name)), name)
        return tree

    def _resources(self, section: Section) -> dict[str, object]:
        self.vos |= _communities(section)
        tree: dict[str, object] = {}
        for name, entry in self._only(section, "Resources", (*_BELOW["Resources"], "Domains")).sections():
            if name == "Sites":
                tree[name] = dict(self._sites(entry))
            elif name == "Computing":
                ours = {each: below for each, below in entry.entries.items() if each in _COMPUTING}
                tree[name] = self._values(Section(entry.line, dict(ours)), "")
            else:
                message = "not carried over: attributes of a domain, which sites name"
                self._note("Resources/Domains", entry.line, message)
        self._defaults_of_ces(section.section("Computing"), tree.get("Sites"))
        return tree

    def _defaults_of_ces(self, computing: Section, sites: object) -> None:
        """Write what is said of all CEs, or of those of a type, at the CEs of this text."""
        left = {name: entry for name, entry in computing.entries.items() if name not in _COMPUTING}
        options = {
            name: self._values(Section(entry.line, dict(entry.leaves())), "")
            for name, entry in left.items()
            if isinstance(entry, Section)
        }
        used = cfg_defaults.write(sites, options) if isinstance(sites, dict) else frozenset()
        for name in sorted(left.keys() - used):
            message = "not carried over: it is said of no CE of this text"
            self._note(f"Resources/Computing/{name}", left[name].line, message)

    def _only(self, section: Section, path: str, allowed: tuple[str, ...] | None) -> Section:
        """The section without what has no place here."""
        if allowed is None:
            return section
        for name, entry in section.entries.items():
            if name not in allowed:
                self._note(f"{path}/{name}", entry.line, "not carried over: it is no matter of this system")
        kept = {name: entry for name, entry in section.entries.items() if name in allowed}
        return Section(section.line, kept)

    def _sites(self, section: Section) -> Iterator[tuple[str, dict[str, object]]]:
        for name, entry in section.entries.items():
            path = f"Resources/Sites/{name}"
            if isinstance(entry, Leaf):
                self._note(path, entry.line, "not carried over: a value where sites stand")
            elif _is_of_rfc5(entry):
                yield self._site_of_rfc5(name, entry)
            elif _is_grid(entry):
                yield from ((site, self._site(below)) for site, below in entry.sections())
            else:
                yield name, self._site(entry)

    def _site(self, section: Section) -> dict[str, object]:
        """A site of today's layout: options beside the CEs are defaults for each of them."""
        ces = section.section("CEs")
        defaults = {name: leaf for name, leaf in ces.leaves() if name not in section.entries}
        entries = {**section.entries, **defaults}
        if "CEs" in entries:
            entries["CEs"] = Section(ces.line, dict(ces.sections()))
        for name, leaf in ces.leaves():
            if name not in defaults:
                message = "not carried over: the site says it as well, and its CEs get it from there"
                self._note(f"CEs/{name}", leaf.line, message)
        return self._values(Section(section.line, dict(entries)), "")

    def _site_of_rfc5(self, short: str, section: Section) -> tuple[str, dict[str, object]]:
        domains = _items(section, "Domains")
        country = _items(section, "Country")
        names = [domains[0] if domains else "", short, country[0].lower() if country else ""]
        if len(domains) > 1:
            others = ", ".join(domains[1:])
            self._note(short, section.line, f"only its name in {domains[0]} is carried over, not in {others}")
        tree = self._node(section, short, {"Computing": ("CEs", "Queues")})
        return ".".join(filter(None, names)), tree

    def _node(self, section: Section, path: str, below: dict[str, tuple[str, str]]) -> dict[str, object]:
        """A site, CE or queue of RFC #5, with what stands below it."""
        tree: dict[str, object] = {}
        for name, entry in section.entries.items():
            here = f"{path}/{name}"
            if isinstance(entry, Leaf):
                self._option(tree, "VO" if fold(name) == _COMMUNITIES else name, entry)
            elif name in below:
                ours, inner = below[name]
                children = {inner: (inner, "")} if inner else {}
                tree[ours] = {
                    child: self._node(node, f"{here}/{child}", children) for child, node in entry.sections()
                }
            elif name in _OF_QUEUES:
                tree[name] = self._values(entry, here)
            elif fold(name) in self.vos:
                of_vos = tree.setdefault("VOs", {})
                assert isinstance(of_vos, dict)  # noqa: S101  (made here)
                of_vos[name] = self._values(entry, here)
            else:
                self._note(here, entry.line, "not carried over: no computing, and no VO that is known")
        return tree

    def _values(self, section: Section, path: str) -> dict[str, object]:
        tree: dict[str, object] = {}
        for name, entry in section.entries.items():
            if isinstance(entry, Leaf):
                self._option(tree, name, entry)
            else:
                tree[name] = self._values(entry, f"{path}/{name}" if path else name)
        return tree

    def _option(self, tree: dict[str, object], name: str, leaf: Leaf) -> None:
        value = cfg_values.read(name, str(leaf.value or ""))
        if value is not None:  # an empty option says nothing
            tree[name] = value

    def _note(self, path: str, line: int, message: str) -> None:
        self.notes.append(Problem(path=path, message=message, file=self.file, line=line))


def _is_grid(section: Section) -> bool:
    """Whether it holds sites: nothing but sections, none of which belongs to a site."""
    return (
        bool(section.entries)
        and not any(section.leaves())
        and not any(name in _OF_QUEUES for name in section.entries)
    )


def _is_of_rfc5(section: Section) -> bool:
    return isinstance(section.entries.get("Computing"), Section) or "Domains" in section.entries


def _items(section: Section, name: str) -> list[str]:
    entry = section.entries.get(name)
    text = str(entry.value or "") if isinstance(entry, Leaf) else ""
    return [item.strip() for item in text.split(",") if item.strip()]


def _communities(section: Section) -> frozenset[str]:
    """Every VO that some `Communities` names, folded."""
    found: set[str] = set()
    for name, entry in section.entries.items():
        if isinstance(entry, Section):
            found |= _communities(entry)
        elif fold(name) == _COMMUNITIES:
            found |= {fold(item) for item in _items(section, name)}
    return frozenset(found)
