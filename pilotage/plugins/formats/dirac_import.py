"""Import of DIRAC's configuration: the changes that it would make in the tree.

Two layouts are read. Today's: `Resources/Sites/<Grid>/<Grid.Name.cc>`. RFC #5: `Resources/Sites/<Name>` with
`Domains`, `Country` and `Computing/<CE>/Queues`, sections named after VOs for their values, and `Communities`
as access lists. A node with a restriction that our tree cannot represent is disabled.

Defaults for all CEs, or for those of a type, are written to each CE. They never widen the access to a CE: of
the VOs in a default, only those that the site lists too are kept.

Source: DIRAC's `Resources/Computing/CEDefaults` and `Resources/Computing/<CEType>`.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final, NoReturn

from cs_config import validate
from cs_config.errors import ConfigError
from cs_config.formats import dirac_text, importers
from cs_config.formats.importers import ImportedConfiguration
from cs_config.options import option_model, registry
from cs_config.options.operations import DEFAULTS
from cs_config.source.diff import ABSENT
from cs_config.source.sections import Leaf, Section, as_list
from cs_config.tree import address, expiry
from cs_config.tree.configuration import Configuration
from pilotage.plugins.formats import dirac_options
from requirements.errors import Problem
from requirements.values import fold

#: The section for CEs of all types.
FOR_ALL: Final = "CEDefaults"
_SITES: Final = "/".join(address.SITES)
_TYPE: Final = "cetype"
_VO: Final = "vo"
_ENABLED: Final = "enabled"
#: Parameters whose values are united over the levels.
_UNITED: Final = frozenset({"tag", "requiredtag"})

_Options = Mapping[str, object]


def write_defaults(
    sites: Mapping[str, object], defaults: Mapping[str, _Options]
) -> Mapping[str, Sequence[str]]:
    """Write the defaults, by type of CE, to every CE that neither sets them nor gets them from its site.

    `sites`, in our layout, is modified. Returns the types whose defaults each CE gets, by its path; the first
    one counts.
    """
    used: dict[str, Sequence[str]] = {}
    of_all = _value(defaults.get(FOR_ALL, {}), _TYPE)
    for path, site, ce in _ces(sites):
        own = fold(_value(ce, _TYPE) or _value(site, _TYPE) or of_all)
        kinds = [kind for kind in defaults if kind != FOR_ALL and fold(kind) == own]
        kinds += [FOR_ALL] if FOR_ALL in defaults else []  # defaults of a type take precedence
        used[path] = kinds
        for kind in kinds:
            fill(ce, site, defaults[kind])
    return used


def _ces(sites: Mapping[str, object]) -> Iterator[tuple[str, _Options, dict[str, object]]]:
    for name, site in sites.items():
        ces = site.get("CEs") if isinstance(site, dict) else None
        for ce_name, ce in ces.items() if isinstance(ces, dict) else ():
            if isinstance(site, dict) and isinstance(ce, dict):
                yield f"{_SITES}/{name}/CEs/{ce_name}", site, ce


def _value(options: _Options, folded: str) -> str:
    return next((str(value) for name, value in options.items() if fold(name) == folded), "")


def fill(node: dict[str, object], above: _Options, defaults: _Options) -> None:
    """Add to a node the defaults that neither it nor the node above it sets."""
    spelled = {fold(name): name for name in node}
    of_above = {fold(name): value for name, value in above.items()}
    for name, value in defaults.items():
        folded = fold(name)
        here = spelled.get(folded)
        if folded in _UNITED:
            own = _split_items(node.get(here or name))
            node[here or name] = own + [each for each in _split_items(value) if each not in own]
        elif here is not None:
            continue
        elif folded == _VO:
            node[name] = shared(value, of_above[_VO]) if _VO in of_above else deepcopy(value)
        elif folded not in of_above or (folded == _ENABLED and value is not True):
            node[name] = deepcopy(value)


def shared(value: object, other: object) -> list[object]:
    """The VOs in both lists."""
    allowed = {fold(str(each)) for each in _split_items(other)}
    return [each for each in _split_items(value) if fold(str(each)) in allowed]


def _split_items(value: object) -> list[object]:
    return [] if value is None else as_list(value)


#: Allowed names in each of these sections.
_BELOW = {"Resources": ("Sites", "Computing"), "Registry": registry.LEVELS}
#: Options of a user or host that are carried over.
_OF_MEMBERS = {"Users": ("DN",), "Hosts": ("DN", "Properties")}
_SUSPENDED: Final = "Suspended"
#: Sections of options, and those of them that are true or false.
_OF_OPTIONS: Final = ("Operations", "Registry")
_FLAGS: Final = option_model.list_flags()
_VALUE_OF_SECTION: Final = "a value where a section stands"
#: Below `Computing`; DIRAC's own example has it beside that.
_OS_COMPATIBILITY: Final = "OSCompatibility"
_COMPUTING = (_OS_COMPATIBILITY, expiry.SETTING)
#: RFC #5 has the first; DIRAC's own examples of it the second.
_DOMAINS = ("Domains", "Domain")
_OF_QUEUES = (
    "CEs",
    "Queues",
    "VOs",
    "Throttle",
    "RunningLimit",
    "MatchingDelay",
    "NodeAttributes",
    "Forwarding",
)
_COMMUNITIES = "communities"
#: Kinds of resources of RFC #5 that have no queues.
_OTHER_RESOURCES = ("Storage", "Catalog", "Transfer", "CommunityManagement", "DBServer")
#: Restrictions of a CE that apply in addition to those of its site.
_BESIDE_THE_SITE = frozenset({"vo", "enabled", "requiredtag"})


@dataclass(slots=True, kw_only=True)
class DiracLayout:
    """Converts a text to our layout, and collects what the layout cannot represent."""

    file: str
    vos: frozenset[str] = frozenset()  #: known VOs, folded: RFC #5 names sections after them
    notes: list[Problem] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  #: keys of users and hosts, which are many
    #: File and line of values and sections by their paths in our layout, and by those in DIRAC's.
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    repeated: dirac_text.RepeatedOptions = field(default_factory=dict)
    #: Paths in our layout of options that are stated again with another value, by the line that counts.
    ambiguous: dict[int, list[str]] = field(default_factory=dict)

    def to_our_layout(self, root: Section) -> dict[str, object]:
        """The tree in our layout, with parsed values."""
        tree: dict[str, object] = {}
        self._note_repeated()
        self._place_operations(root)
        for name, entry in root.entries.items():
            self._place(name, entry)
            if name not in validate.TOP or isinstance(entry, Leaf):
                self._note(name, entry.line, "not carried over: it is not part of this system")
            elif name == "Resources":
                tree[name] = self._resources(entry)
            elif name == "Operations":
                setup, setups = dirac_options.find_setups(root)
                tree[name] = dirac_options.convert_operations(
                    self._values(entry, name), setup=setup, setups=setups, note=self._note_path
                )
            elif name == "Registry":
                tree[name] = self._registry(entry)
            else:
                tree[name] = self._values(self._select_allowed(entry, name, _BELOW.get(name)), name)
        read, default = tree.get("Registry"), root.section("Registry").entries.get("DefaultGroup")
        if isinstance(read, dict) and isinstance(default, Leaf):
            dirac_options.set_default_groups(read, dirac_text.read_value("", str(default.value or "")))
        for note in importers.list_left_out(self.left_out, self.file):
            self._note(note.path, None, note.message)
        return tree

    def _place(self, path: str, entry: Leaf | Section) -> None:
        """Record the place of a value, or of a section with all below it, unless one is known already."""
        self.places.setdefault(path, (self.file, entry.line))
        if entry.line in self.ambiguous:
            self.ambiguous[entry.line].append(path)
        for name, below in entry.entries.items() if isinstance(entry, Section) else ():
            self._place(f"{path}/{name}", below)

    def _note_repeated(self) -> None:
        """Note options that are stated again; one that keeps jobs out of all sites is refused."""
        for path, leaves in self.repeated.items():
            *lines, line = (leaf.line for leaf in leaves)
            message = f"stated again in line {line}, which counts, not in {', '.join(map(str, lines))}"
            self._note(path, line, message)
            if len({leaf.value for leaf in leaves if leaf.value} | {leaves[-1].value}) > 1:
                self.ambiguous[line] = []
                top, *names = path.split("/")
                if top == "Operations" and any(importers.restricts_jobs(each, None) for each in names):
                    self._refuse(path, line, f"{message}: without one of them more jobs may be allowed")

    def _close_ambiguous(self, sites: object) -> None:
        """Disable nodes of which a restriction is stated again with another value."""
        nodes = dict(importers.nodes(sites))
        checks = importers.checks(sites)
        for line, paths in self.ambiguous.items():
            for path in paths:
                names = path.split("/")
                place = importers.node_of(names) or ()
                does_count = self._find_line(path) == line or fold(names[-1]) in _UNITED
                if place in nodes and does_count and _is_within_restriction(names[len(place) :], checks):
                    importers.close(nodes[place])
                    message = f"closed, {importers.ENABLED}: false, because {names[-1]} is stated again"
                    self._note("/".join(place), line, f"{message} with another value")

    def _place_values(self, path: str, defaults: Section) -> None:
        """Record the places of defaults, from which a section may have values."""
        for name, leaf in defaults.leaves():
            self._place(f"{path}/{name}", leaf)

    def _place_operations(self, root: Section) -> None:
        """Record options that stand elsewhere than in our layout: below setups, and as `MaxCPUTime`."""
        setup, _ = dirac_options.find_setups(root)
        scopes = sorted(root.section("Operations").sections(), key=lambda each: each[0] != setup)
        for scope, options in scopes:  # options of the setup come before those of `Defaults`
            ours = f"Operations/{DEFAULTS if scope == setup else scope}"
            levels = [options.section(each) for each in (setup, DEFAULTS) if each]
            for level in (*levels, options):
                for name, leaf in level.section("JobDescription").leaves():
                    if declared := dirac_options.find_declaration(name):
                        keyword, side = declared
                        self._place(f"{ours}/JobDescription/{keyword}/{side}", leaf)
                        self._place(f"{ours}/JobDescription/{keyword}", leaf)  # for a fault of what it lacks
                for name, entry in level.entries.items():
                    self._place(f"{ours}/{name}", entry)

    def _registry(self, section: Section) -> dict[str, object]:
        allowed = self._select_allowed(section, "Registry", _BELOW["Registry"])
        rest = {name: entry for name, entry in allowed.entries.items() if name not in _OF_MEMBERS}
        tree = self._values(Section(allowed.line, rest), "Registry")
        for level, names in _OF_MEMBERS.items():
            if found := dict(self._members(allowed.section(level), f"Registry/{level}", names)):
                tree[level] = found
        return tree

    def _members(
        self, section: Section, path: str, names: tuple[str, ...]
    ) -> Iterator[tuple[str, dict[str, object]]]:
        """Users or hosts with their certificates; those of suspended ones are removed."""
        for name, leaf in section.leaves():
            self._leave_out(f"{path}/{name}", leaf, _VALUE_OF_SECTION)
        for name, member in section.sections():
            if _list_items(member, _SUSPENDED):
                self._note(f"{path}/{name}", member.line, "not carried over: it is suspended")
                yield name, {"DN": ABSENT}
                continue
            for each in sorted(member.entries.keys() - {*names, _SUSPENDED}):
                self.left_out.append(f"{path}/*/{each}")
                self._place(f"{path}/*/{each}", member.entries[each])
            if listed := {each: found for each in names if (found := _list_items(member, each))}:
                if "DN" in listed:
                    listed["DN"] = _join_names(listed["DN"])
                yield name, dict(listed)

    def _resources(self, section: Section) -> dict[str, object]:
        self.vos |= _communities(section)
        tree: dict[str, object] = {}
        allowed = (*_BELOW["Resources"], "Domains", _OS_COMPATIBILITY)
        for name, entry in self._select_allowed(section, "Resources", allowed).entries.items():
            if isinstance(entry, Leaf):
                self._leave_out(f"Resources/{name}", entry, _VALUE_OF_SECTION)
            elif name == "Sites":
                tree[name] = self._all_sites(entry)
            elif name == "Computing":
                if ours := {each: below for each, below in entry.entries.items() if each in _COMPUTING}:
                    tree[name] = self._values(Section(entry.line, dict(ours)), "")
            elif name == "Domains":
                self._domains(entry)
        beside = section.entries.get(_OS_COMPATIBILITY)
        if isinstance(beside, Section) and isinstance(computing := tree.setdefault("Computing", {}), dict):
            computing.setdefault(_OS_COMPATIBILITY, self._values(beside, ""))
            self._place(f"Resources/Computing/{_OS_COMPATIBILITY}", beside)
        self._defaults_of_ces(section.section("Computing"), tree.get("Sites"))
        self._leave_out_nodes(tree.get("Sites"))
        self._close_for_foreign(tree.get("Sites"))
        self._close_ambiguous(tree.get("Sites"))
        self._drop_placeholders(tree.get("Sites"))
        return tree

    def _domains(self, section: Section) -> None:
        for name, domain in section.sections():
            if _restricts(domain):
                message = "a restriction of a domain cannot be imported: set it at the sites"
                self._refuse(f"Resources/Domains/{name}", domain.line, message)
        message = "not carried over: attributes of a domain, which sites name"
        self._note("Resources/Domains", section.line, message)

    def _leave_out_nodes(self, sites: object) -> None:
        """Leave out sites, CEs and queues whose names cannot be part of an address."""
        levels: list[tuple[tuple[str, ...], object]] = [(address.SITES, sites)]
        levels += [
            ((*names, level), node.get(level))
            for names, node in importers.nodes(sites)
            for level in ("CEs", "Queues")
        ]
        for names, nodes in levels:
            if isinstance(nodes, dict):
                for name in [each for each in nodes if not address.NAME.fullmatch(each)]:
                    del nodes[name]
                    path, line = (
                        "/".join((*names, f"{name!r:.80}")),
                        self._find_line("/".join((*names, name))),
                    )
                    self._note(path, line, f"not carried over: allowed in a name are {address.NAME_ALLOWED}")

    def _close_for_foreign(self, sites: object) -> None:
        """Disable nodes with access restrictions that our layout cannot represent."""
        for names, node in list(importers.nodes(sites)):
            for name in [name for name in node if importers.is_foreign(name, node[name])]:
                path, value = "/".join((*names, name)), node.pop(name)
                importers.close(node)
                message = f"{value!r:.60} may restrict access and cannot be imported: {names[-1]} is closed"
                self._note(path, None, f"{message}, {importers.ENABLED}: false")

    def _drop_placeholders(self, sites: object) -> None:
        """Leave out limits and sizes that state none: for 0 minutes no job is eligible.

        DIRAC's agent copies them from information systems.
        """
        for names, node in importers.nodes(sites):
            for name in [each for each in node if importers.states_none(each, node[each])]:
                path = "/".join((*names, name))
                self._note(path, None, f"not carried over: {node.pop(name)} states no number")

    def _defaults_of_ces(self, computing: Section, sites: object) -> None:
        """Write the defaults for all CEs, or for those of a type, to the CEs of this text."""
        left = {name: entry for name, entry in computing.entries.items() if name not in _COMPUTING}
        options = {
            name: self._values(Section(entry.line, dict(entry.leaves())), "")
            for name, entry in left.items()
            if isinstance(entry, Section)
        }
        for kind, entry in left.items():
            for name, below in entry.sections() if isinstance(entry, Section) else ():
                path = f"Resources/Computing/{kind}/{name}"
                if importers.is_restriction(name) or _restricts(below):
                    message = "a restriction in a section of CE defaults: set it at the CEs"
                    self._refuse(path, below.line, message)
                self._note(path, below.line, "not carried over: a section among the defaults of CEs")
        used = write_defaults(sites, options) if isinstance(sites, dict) else {}
        for path, kinds in used.items():
            for kind in kinds:
                self._place_values(path, computing.section(kind))
        for name in sorted(left.keys() - set[str]().union(*used.values())):
            self._leave_out(f"Resources/Computing/{name}", left[name], "it applies to no CE of this text")

    def _select_allowed(self, section: Section, path: str, allowed: tuple[str, ...] | None) -> Section:
        """The section without entries that our layout does not have."""
        if allowed is None:
            return section
        for name, entry in section.entries.items():
            if name not in allowed and f"{path}/{name}" != "Registry/DefaultGroup":
                self._leave_out(f"{path}/{name}", entry, "it is not part of this system")
        kept = {name: entry for name, entry in section.entries.items() if name in allowed}
        return Section(section.line, kept)

    def _all_sites(self, section: Section) -> dict[str, object]:
        found: dict[str, object] = {}
        for name, site in self._sites(section):
            if name in found:
                message = "the site is defined twice, and each definition may restrict access"
                self._refuse(f"Resources/Sites/{name}", section.line, message)
            found[name] = site
        return found

    def _sites(self, section: Section) -> Iterator[tuple[str, dict[str, object]]]:
        for name, entry in section.entries.items():
            path = f"Resources/Sites/{name}"
            if isinstance(entry, Leaf):
                self._leave_out(path, entry, "a value where sites stand")
            elif _is_of_rfc5(entry):
                yield self._site_of_rfc5(name, entry)
            elif _is_grid(entry):
                yield from ((site, self._site(site, below)) for site, below in entry.sections())
            else:
                yield name, self._site(name, entry)

    def _site(self, site: str, section: Section) -> dict[str, object]:
        """A site of today's layout; options beside the CEs are defaults for each of them."""
        path = f"{_SITES}/{site}"
        self._place(path, section)
        ces = section.section("CEs")
        stated = set(map(fold, section.entries))
        defaults = {name: leaf for name, leaf in ces.leaves() if fold(name) not in stated}
        entries = {**section.entries, **defaults}
        if "CEs" in entries:
            entries["CEs"] = Section(ces.line, dict(ces.sections()))
        tree = self._values(Section(section.line, dict(entries)), "")
        said_twice = {name: leaf for name, leaf in ces.leaves() if name not in defaults}
        restricting = {n: each for n, each in said_twice.items() if fold(n) in _BESIDE_THE_SITE}
        of_ces = self._values(Section(ces.line, dict(restricting)), "")
        self._place_values(path, ces)
        for ce in write_defaults({site: tree}, {FOR_ALL: of_ces}):
            self._place_values(ce, ces)
        for name in said_twice.keys() - restricting.keys():
            message = "not carried over: the site sets it too, and its CEs inherit that value"
            if importers.is_restriction(name):
                importers.close(tree)
                message = f"not carried over: the site sets it too; {site} is closed, Enabled: false"
            self._note(f"{path}/CEs/{name}", said_twice[name].line, message)
        return tree

    def _site_of_rfc5(self, short: str, section: Section) -> tuple[str, dict[str, object]]:
        domains = next(filter(None, (_list_items(section, each) for each in _DOMAINS)), [])
        country = _list_items(section, "Country")
        names = [domains[0] if domains else "", short, country[0].lower() if country else ""]
        if len(domains) > 1:
            others = ", ".join(domains[1:])
            self._note(
                f"Resources/Sites/{short}",
                section.line,
                f"only its name in {domains[0]} is carried over, not in {others}",
            )
        name = ".".join(filter(None, names))
        levels = {"Computing": ("CEs", "Queues")}
        return name, self._node(section, f"{_SITES}/{short}", f"{_SITES}/{name}", levels)

    def _node(
        self, section: Section, path: str, to: str, below: dict[str, tuple[str, str]]
    ) -> dict[str, object]:
        """A site, CE or queue of RFC #5, with its children; `to` is its path in our layout."""
        tree: dict[str, object] = {}
        self._options_of_rfc5(tree, section, to)
        is_closed = False
        for name, entry in section.sections():
            here = f"{path}/{name}"
            if name in below:
                ours, inner = below[name]
                children = {inner: (inner, "")} if inner else {}
                of_vos = {each: vo for each, vo in entry.sections() if self._is_of_vos(each, vo, inner)}
                self._sections_of_vos(tree, of_vos, to)
                nodes = {
                    child: self._node(node, f"{here}/{child}", f"{to}/{ours}/{child}", children)
                    for child, node in entry.sections()
                    if child not in of_vos
                }
                for child, node in nodes.items():
                    defaults: dict[str, object] = {}
                    self._options_of_rfc5(defaults, entry, f"{to}/{ours}/{child}")
                    fill(node, tree, defaults)
                tree[ours] = nodes
            elif name in _OF_QUEUES and name != "VOs":
                tree[name] = self._values(entry, here)
                self._place(f"{to}/{name}", entry)
            elif name == "VOs" or fold(name) in self.vos:
                self._sections_of_vos(tree, {name: entry}, to)
            else:
                message = "not carried over: no computing, and no VO that is known"
                if name not in _OTHER_RESOURCES and _restricts(entry):
                    is_closed = True
                    message = f"{message}; it restricts something, so {path} is closed, Enabled: false"
                self._note(here, entry.line, message)
        if is_closed:
            importers.close(tree)
        return tree

    def _options_of_rfc5(self, tree: dict[str, object], section: Section, to: str) -> None:
        is_closed = False
        self.places.setdefault(to, (self.file, section.line))
        for name, leaf in section.leaves():
            self._place(f"{to}/{'VO' if fold(name) == _COMMUNITIES else name}", leaf)
            if fold(name) not in (_COMMUNITIES, "vo"):
                self._option(tree, name, leaf)
                continue
            listed: dict[str, object] = {}
            self._option(listed, "VO", leaf)
            if "VO" in listed and "VO" in tree:
                tree["VO"] = shared(listed["VO"], tree["VO"])
                # Closed whatever lists are below it: one of the two may be unreadable.
                is_closed = is_closed or not tree["VO"]
            else:
                tree |= listed
        if is_closed:  # after an option that enables it
            importers.close(tree)

    def _is_of_vos(self, name: str, section: Section, inner: str) -> bool:
        """Whether a section among CEs or queues holds values of VOs; a queue may be named like a VO."""
        return name == "VOs" or (bool(inner) and fold(name) in self.vos and inner not in section.entries)

    def _sections_of_vos(self, tree: dict[str, object], sections: dict[str, Section], to: str) -> None:
        for name, entry in sections.items():
            of_all = entry if name == "VOs" else Section(entry.line, {name: entry})
            self._place(f"{to}/VOs", of_all)
            self._vos_of_rfc5(tree, self._values(of_all, ""), f"{to}/VOs")

    def _vos_of_rfc5(self, tree: dict[str, object], vos: dict[str, object], path: str) -> None:
        """Values of VOs, which may be in one section for all of them or in one section each."""
        known = tree.setdefault("VOs", {})
        if not isinstance(known, dict):  # an option of that name, which closes the node
            return
        for vo, settings in vos.items():
            before = known.setdefault(vo, settings)
            if before is not settings and isinstance(before, dict):
                importers.close(before)
                message = "defined twice, and each may restrict something: closed for this VO, Enabled: false"
                self._note(f"{path}/{vo}", None, message)

    def _values(self, section: Section, path: str) -> dict[str, object]:
        tree: dict[str, object] = {}
        for name, entry in section.entries.items():
            if isinstance(entry, Leaf):
                self._option(tree, name, entry, _FLAGS if path.startswith(_OF_OPTIONS) else frozenset())
            else:
                tree[name] = self._values(entry, f"{path}/{name}" if path else name)
        return tree

    def _option(
        self, tree: dict[str, object], name: str, leaf: Leaf, flags: frozenset[str] = frozenset()
    ) -> None:
        value = dirac_text.read_value(name, str(leaf.value or ""), flags)
        if value is not None:  # an empty option is ignored
            tree[name] = value

    def _leave_out(self, path: str, entry: Leaf | Section, why: str) -> None:
        """Record an entry that cannot be imported; a restriction of all sites is refused."""
        name = path.rpartition("/")[2]
        is_of_resources = isinstance(entry, Leaf) and path.startswith("Resources/")
        if is_of_resources and _restricts(Section(0, {name: entry})):
            self._refuse(path, entry.line, "a restriction that cannot be imported: set it at the sites")
        self._note(path, entry.line, f"not carried over: {why}")

    def _find_line(self, path: str) -> int | None:
        place = importers.find_place(self.places, path)
        return place and place[1]

    def _note_path(self, path: str, message: str) -> None:
        self._note(path, None, message)

    def _refuse(self, path: str, line: int, message: str) -> NoReturn:
        raise ConfigError([Problem(path=path, message=message, file=self.file, line=line)])

    def _note(self, path: str, line: int | None, message: str) -> None:
        """Record what is left out; without a line with that of the value or the section around it."""
        line = self._find_line(path) if line is None else line
        self.notes.append(Problem(path=path, message=message, file=self.file, line=line))


def _restricts(section: Section) -> bool:
    """Whether a section has a restriction of its own, not only in sections below."""
    stated = {name: leaf.value for name, leaf in section.leaves() if leaf.value}
    return importers.restricts_directly(stated)


def _is_within_restriction(names: Sequence[str], checks: frozenset[str]) -> bool:
    return any(importers.is_restriction(each, checks) or importers.is_foreign(each, "") for each in names)


def _is_grid(section: Section) -> bool:
    """Whether a section groups sites: only subsections, none of which belongs to a site."""
    return (
        bool(section.entries)
        and not any(section.leaves())
        and not any(name in _OF_QUEUES for name in section.entries)
    )


def _is_of_rfc5(section: Section) -> bool:
    return isinstance(section.entries.get("Computing"), Section) or not section.entries.keys().isdisjoint(
        _DOMAINS
    )


def _list_items(section: Section, name: str) -> list[str]:
    entry = section.entries.get(name)
    text = str(entry.value or "") if isinstance(entry, Leaf) else ""
    return [item.strip() for item in text.split(",") if item.strip()]


def _join_names(parts: list[str]) -> list[str]:
    """Names in certificates, of a list that was split at their commas too."""
    joined: list[str] = []
    for part in parts:
        if part.startswith("/") or not joined:
            joined.append(part)
        else:
            joined[-1] += f", {part}"
    return joined


def _communities(section: Section) -> frozenset[str]:
    found: set[str] = set()
    for name, entry in section.entries.items():
        if isinstance(entry, Section):
            found |= _communities(entry)
        elif fold(name) == _COMMUNITIES:
            found |= {fold(item) for item in _list_items(section, name)}
    return frozenset(found)


def propose_dirac(
    config: Configuration, files: Mapping[str, str], *, site: str | None = None
) -> ImportedConfiguration:
    """Merge a DIRAC configuration into the current one; sites have their names in it."""
    file, text = importers.require_one(files, site)
    repeated: dirac_text.RepeatedOptions = {}
    root = dirac_text.read_text(text, file, repeated)
    vos = frozenset(map(fold, root.section("Registry").section("VO").entries))
    layout = DiracLayout(file=file, vos=config.vos | vos, repeated=repeated)
    tree = layout.to_our_layout(root)
    return importers.merge_import(config, tree, layout.notes, file, layout.places)
