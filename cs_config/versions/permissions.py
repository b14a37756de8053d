"""Permissions: which parts of the tree a caller may see and change.

Sections of other VOs are invisible.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import Final

from cs_config.options import bounds
from cs_config.options.operations import DEFAULTS, options_for
from cs_config.options.registry import DEFAULT_SHARE, Registry
from cs_config.source.sections import Leaf, Section, Tree, to_plain
from cs_config.tree import admission, inheritance, node_attributes, parameters
from cs_config.tree.address import NODES, node_depth
from cs_config.tree.configuration import Configuration
from cs_config.tree.parameters import VoRight
from cs_config.versions import diff, patch
from cs_config.versions.diff import ABSENT, Difference, list_leaves
from cs_config.versions.patch import Edit
from requirements.errors import NotAllowed
from requirements.values import Value, fold

_VO_SECTION: Final = "VOs"
_ENABLED: Final = "enabled"
#: Two names of one parameter.
_GPUS, _OTHER_GPUS = "gpus", "numberofgpus"
#: Parameters of slots, folded: there 0 states that the number is not known.
_SLOT: Final = frozenset({"numberofprocessors", _GPUS, _OTHER_GPUS})
#: Names below `VOs/<vo>`, folded, that are the site's: access, which a VO cannot give itself, and the use of
#: its batch system.
_SITE_PATHS: Final = (
    admission.ACCESS
    | {fold(each.name) for each in parameters.KNOWN if each.right is VoRight.NONE}
    | {fold(node_attributes.FORWARDING)}
)
#: Sections below `Operations/<vo>`, folded, that the installation grants or that refer to its own machines.
_INSTALLATION_PATHS: Final = (("limits",), ("jobscheduling", "inputdatacatalogue"))
#: Options below `Operations/<vo>`, folded, that a VO sets only to smaller values: the installation keeps
#: data that long; with the attributes of `VoOptions`.
_LOWERED_OPTIONS: Final[Mapping[tuple[str, ...], Callable[[object], float]]] = {
    ("retention", "jobs"): attrgetter("retention.jobs"),
    ("retention", "outputs"): attrgetter("retention.outputs"),
    ("retention", "sandboxes"): attrgetter("retention.sandboxes"),
    ("retention", "logs"): attrgetter("retention.logs"),
    ("pools", "gracetime"): attrgetter("pools.grace_time"),
}
#: Options that a VO sets to no less than the installation does by default: what agents and optimizers do
#: again and again for its jobs keeps them from those of others.
_FLOORED_OPTIONS: Final[Mapping[tuple[str, ...], Callable[[object], float]]] = {
    ("pools", "refreshinterval"): attrgetter("pools.refresh_interval"),
    ("leases", "time"): attrgetter("leases.time"),
    ("leases", "stalledtime"): attrgetter("leases.stalled_time"),
    ("jobscheduling", "holdtime"): attrgetter("job_scheduling.hold_time"),
}
#: Values of an owner group, folded, that an admin of its VO may change; `VO` only of a new group.
_GROUP_VALUES: Final = frozenset({"users", "jobshare", "allowbackgroundtqs", "vo"})
_GROUPS: Final = ("Registry", "Groups")
#: Of a new group: `<vo>_<word>`, so that no VO takes the name of a group of another.
_NEW_GROUP: Final = re.compile(r"(.+)_[a-z0-9.+-]+")
#: Maximum number of paths in a message.
_MAX_PATHS: Final = 5


class EditNotAllowed(NotAllowed):
    """An edit outside the sections that its author may change, or beyond the values allowed there."""

    code = "not_allowed"

    def __init__(self, paths: Collection[str], *, reason: str, allowed: str) -> None:
        more = f" and {len(paths) - _MAX_PATHS} more" if len(paths) > _MAX_PATHS else ""
        super().__init__(f"{', '.join(list(paths)[:_MAX_PATHS])}{more}: {reason}; {allowed}")
        self.paths = tuple(paths)
        self.reason = reason  #: the same for each path
        self.details = {"paths": list(paths)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """The permissions of a caller on the configuration."""

    everything: bool = False
    sees: frozenset[str] = frozenset()  #: VOs whose parts are visible, lower case
    vos: frozenset[str] = frozenset()  #: VOs whose parts may be changed, lower case
    sites: frozenset[str] = frozenset()  #: sites that may be changed outside `VOs`, and are fully visible
    groups: Mapping[str, str | None] = field(
        default_factory=dict
    )  #: folded name of each owner group to its VO
    #: Paths of limits that may be lifted, to restore what was there before the VO lowered them for a time.
    restores: frozenset[str] = frozenset()

    @property
    def edits(self) -> bool:
        """Whether any part may be changed."""
        return self.everything or bool(self.vos or self.sites)

    @property
    def allowed(self) -> str:
        """The changeable sections as a sentence."""
        return f"allowed is {', '.join(self.sections) or 'nothing'}"

    @property
    def sections(self) -> tuple[str, ...]:
        """The changeable sections, if not all are."""
        of_vos = (f"Operations/{vo} and VOs/{vo} of sites, CEs and queues" for vo in sorted(self.vos))
        of_groups = (
            f"Users, JobShare and AllowBackgroundTQs of the groups of {vo} in Registry/Groups"
            for vo in sorted(self.vos)
        )
        of_sites = (f"Resources/Sites/{site} outside VOs" for site in sorted(self.sites))
        return (*of_vos, *of_groups, *of_sites)

    def may_change(self, names: tuple[str, ...]) -> bool:
        """Whether a path may be changed, whether or not it exists."""
        return (
            self.everything
            or self._may_change_vo(names)
            or self._may_change_site(names)
            or self._may_change_group(names)
        )

    def _may_change_group(self, names: tuple[str, ...]) -> bool:
        """Whether a path is a group of an own VO, there or new, or one of the values that are the VO's."""
        if names[:2] != _GROUPS or not 3 <= len(names) <= 4:
            return False
        return self._vo_of_group(names[2]) in self.vos and (
            len(names) == 3 or fold(names[3]) in _GROUP_VALUES
        )

    def _vo_of_group(self, name: str) -> str | None:
        """The VO of a group, there or new."""
        return self.groups[fold(name)] if fold(name) in self.groups else _first_part(name)

    def _may_change_vo(self, names: tuple[str, ...]) -> bool:
        if names[0] == "Operations" and len(names) > 1 and fold(names[1]) in self.vos:
            below = tuple(map(fold, names[2:]))
            return not any(below[: len(kept)] == kept for kept in _INSTALLATION_PATHS)
        vo, rest = _values_of_vo(names)
        return vo is not None and vo in self.vos and not (rest and fold(rest[0]) in _SITE_PATHS)

    def _may_change_site(self, names: tuple[str, ...]) -> bool:
        return bool(node_depth(names)) and names[2] in self.sites and _depth_of_vos(names) is None

    def owner_of(self, names: tuple[str, ...]) -> str | None:
        """The site or VO of the author to which a changeable path belongs; None: it may not be changed."""
        if self._may_change_site(names):
            return f"the site {names[2]}"
        if self._may_change_vo(names):
            vo = fold(names[1]) if names[0] == "Operations" else _values_of_vo(names)[0]
            return f"the VO {vo}"
        return f"the VO {self._vo_of_group(names[2])}" if self._may_change_group(names) else None

    def sees_path(self, config: Configuration, names: tuple[str, ...]) -> bool:
        """Whether a path is visible: paths of other VOs are not."""
        if self.everything or len(names) < 2:
            return True
        if names[0] == "Operations":
            return names[1] == DEFAULTS or fold(names[1]) in self.sees
        if names[0] == "Registry":
            return self._sees_registry(config, names)
        if node_depth(names) and names[2] in self.sites:
            return True
        named = (below for name, below in pairwise(names) if name == _VO_SECTION)
        return all(fold(vo) in self.sees for vo in named)

    def _sees_registry(self, config: Configuration, names: tuple[str, ...]) -> bool:
        if len(names) < 3 or names[1] not in ("VO", "Groups"):
            return names[1] in ("VO", "Groups")
        if names[1] == "VO":
            return fold(names[2]) in self.sees
        group = config.registry.groups.get(names[2])
        return group is not None and group.vo in self.sees


def rights_on(
    registry: Registry,
    *,
    everything: bool = False,
    sees: frozenset[str] = frozenset(),
    vos: frozenset[str] = frozenset(),
    sites: frozenset[str] = frozenset(),
) -> Rights:
    """The rights of an author on a configuration with these owner groups."""
    if everything:
        return Rights(everything=True)
    groups = {fold(name): group.vo for name, group in registry.groups.items()}
    return Rights(sees=sees, vos=vos, sites=sites, groups=groups)


def _values_of_vo(names: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """The VO to whose section below a site, CE or queue a path belongs, if any, and the rest of it."""
    depth = _depth_of_vos(names)
    if depth is None or names[depth] != _VO_SECTION or len(names) <= depth + 1:
        return None, ()
    return fold(names[depth + 1]), names[depth + 2 :]


def _depth_of_vos(names: tuple[str, ...]) -> int | None:
    """The number of names before the section of VOs, in any case of letters, on a path below a site."""
    depth = node_depth(names)
    return depth if depth and fold("".join(names[depth : depth + 1])) == fold(_VO_SECTION) else None


def check_edits(rights: Rights, edits: Iterable[Edit]) -> None:
    """Refuse edits of others' sections, before any check whose result could reveal their content."""
    _refuse(rights, (edit.path for edit in edits if not rights.may_change(edit.names)))


def check_differences(config: Configuration, rights: Rights, differences: Iterable[Difference]) -> None:
    """Refuse differences from the current configuration beyond the permissions, with all their paths.

    A VO may set values only at existing sites, CEs and queues.
    """
    if rights.everything:
        return
    changed = list(differences)
    _refuse(rights, _list_refused(config, rights, changed))
    if below := list(_list_below_floor(config, rights, changed)):
        reason = "has to be a number, no less than the default"
        raise EditNotAllowed(below, reason=reason, allowed="an operator may set less")


def check_groups(config: Configuration, rights: Rights, tree: Tree) -> None:
    """Refuse a tree in which a group changes its VO, or the groups of a VO have larger shares together.

    They may have what they have now, or up to `Limits/JobShares`, so that a VO takes nothing from others. The
    group of jobs that name none counts with the default share, even if it is not configured.
    """
    if rights.everything:
        return
    before, after = _groups(config.tree), _groups(tree)
    moved = [
        "/".join((*_GROUPS, name, "VO"))
        for name, entry in after.items()
        if entry != before.get(name) and _vo_of(entry) != rights.groups.get(fold(name), _first_part(name))
    ]
    _refuse(rights, moved)
    for vo in rights.vos:
        now, then = (_sum_of_shares(each, vo) for each in (before, after))
        most = max(now, options_for(config, vo).limits.job_shares)
        if then > most:
            message = f"the JobShare of the groups of {vo} would be {then:g} together, allowed are {most:g}"
            raise NotAllowed(f"{message} (Operations/{vo}/Limits/JobShares)")


def check_amount(config: Configuration, rights: Rights, tree: Tree) -> None:
    """Refuse a tree in which a site or VO of the author has more values than now, if these are too many."""
    if rights.everything:
        return
    before, after = (_count_values(each, rights) for each in (config.tree, tree))
    for owner, number in after.items():
        if number > max(bounds.OWN_VALUES, before[owner]):
            message = f"{owner} would have {number} values in the configuration, allowed are"
            raise NotAllowed(f"{message} {bounds.OWN_VALUES}")


def _count_values(tree: Tree, rights: Rights) -> Counter[str]:
    """The number of values of each site and VO of the author."""
    found = Counter[str]()
    for names, value in diff.iterate_leaves(tree):
        if (owner := rights.owner_of(names)) is not None:
            found[owner] += diff.count_values(value)
    return found


def _groups(tree: Tree) -> Mapping[str, Tree]:
    """The owner groups of a tree; one without values is empty."""
    entry = patch.find_entry(tree, _GROUPS)
    listed = entry if isinstance(entry, dict) else {}
    return {name: each if isinstance(each, dict) else {} for name, each in listed.items()}


def _first_part(name: str) -> str | None:
    found = _NEW_GROUP.fullmatch(fold(name))
    return found and found[1]


def _vo_of(group: Tree) -> str | None:
    return next((fold(str(each)) for name, each in group.items() if fold(name) == "vo"), None)


def _sum_of_shares(groups: Mapping[str, Tree], vo: str) -> float:
    own = [
        {fold(name): each for name, each in group.items()} for group in groups.values() if _vo_of(group) == vo
    ]
    shares = [group.get("jobshare", DEFAULT_SHARE) for group in own]
    if f"{vo}_user" not in map(fold, groups):
        shares.append(DEFAULT_SHARE)
    return sum(each for each in shares if isinstance(each, int | float))


def _list_refused(config: Configuration, rights: Rights, differences: Iterable[Difference]) -> Iterator[str]:
    for difference in differences:
        for names in list_leaves(difference):
            vo, _ = _values_of_vo(names)
            is_there = vo is None or "/".join(names[: _depth_of_vos(names)]) in config.nodes
            path = "/".join(names)
            is_raised = path not in rights.restores and _raises(config, names, difference)
            if not (rights.may_change(names) and is_there) or is_raised:
                yield path


def _list_below_floor(
    config: Configuration, rights: Rights, differences: Iterable[Difference]
) -> Iterator[str]:
    for difference in differences:
        for names in list_leaves(difference):
            path = "/".join(names)
            if path not in rights.restores and _is_below_floor(config, names, difference):
                yield path


def _raises(config: Configuration, names: tuple[str, ...], difference: Difference) -> bool:
    """Whether a VO would lift a limit: enable a node, allow itself more pilots, have data kept longer."""
    if names[0] == "Operations":
        return _raises_option(config, names, difference)
    vo, rest = _values_of_vo(names)
    if vo is None or not rest or parameters.find_right(fold(rest[0])) is not VoRight.LOWER:
        return False
    after = _value_after(names, difference)
    if isinstance(after, bool) or fold(rest[0]) == _ENABLED:
        return after is not ABSENT and after is not False
    if fold(rest[0]) in _SLOT and after == 0:
        return True
    node = names[: _depth_of_vos(names)]
    before = _effective_value(config, node, vo, fold(rest[0]))
    if before is None and fold(rest[0]) == _GPUS:
        before = _effective_value(config, node, vo, _OTHER_GPUS)
    if not isinstance(before, int | float):
        return False
    return not (isinstance(after, int | float) and after <= before)


def _raises_option(config: Configuration, names: tuple[str, ...], difference: Difference) -> bool:
    read = _LOWERED_OPTIONS.get(tuple(map(fold, names[2:])))
    if read is None:
        return False
    after = _value_after(names, difference)
    if after is ABSENT:
        after = read(options_for(config, None))
    return not (isinstance(after, int | float) and after <= read(options_for(config, names[1])))


def _is_below_floor(config: Configuration, names: tuple[str, ...], difference: Difference) -> bool:
    read = _FLOORED_OPTIONS.get(tuple(map(fold, names[2:]))) if names[0] == "Operations" else None
    after = _value_after(names, difference)
    if read is None or after is ABSENT:
        return False
    # Less than the default only if an operator has set it so.
    floor = min(read(options_for(config, None)), read(options_for(config, names[1])))
    return not (isinstance(after, int | float) and after >= floor)


def _value_after(names: tuple[str, ...], difference: Difference) -> object:
    after = difference.after
    for name in names[len(difference.names) :]:
        after = after.get(name, ABSENT) if isinstance(after, dict) else ABSENT
    return after


def _effective_value(config: Configuration, names: tuple[str, ...], vo: str, folded: str) -> Value | None:
    levels = tuple(config.nodes["/".join(names[:depth])] for depth in NODES if depth <= len(names))
    found = inheritance.effective_parameters(levels, vo)
    return next((each.value for name, each in found.items() if fold(name) == folded), None)


def _refuse(rights: Rights, paths: Iterable[str]) -> None:
    if refused := list(paths):
        raise EditNotAllowed(refused, reason="not yours to change", allowed=rights.allowed)


def visible_tree(config: Configuration, rights: Rights) -> Mapping[str, object]:
    """The tree without the parts of other VOs.

    Omitted are their `VOs/<vo>` values at every level, their `Operations`, and in the `Registry` their
    entries and groups.
    """
    if rights.everything:
        return config.tree
    shown = to_plain(_visible_section(config, rights, config.root, ()))
    return shown if isinstance(shown, dict) else {}


def _visible_section(
    config: Configuration, rights: Rights, section: Section, names: tuple[str, ...]
) -> Section:
    entries: dict[str, Leaf | Section] = {}
    for name, entry in section.entries.items():
        here = (*names, name)
        if rights.sees_path(config, here):
            shown = _visible_section(config, rights, entry, here) if isinstance(entry, Section) else entry
            if not (name == _VO_SECTION and _is_emptied(entry, shown)):
                entries[name] = shown
    return Section(section.line, entries)


def _is_emptied(entry: Leaf | Section, shown: Leaf | Section) -> bool:
    """Whether all entries of a section are hidden: showing the empty section would reveal that they exist."""
    return isinstance(shown, Section) and not shown.entries and entry != shown
