"""Permissions: which parts of the tree a caller may see and change.

Sections of other VOs are invisible.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import Final

from cs_config.editing import patch
from cs_config.editing.patch import Edit
from cs_config.options import bounds, place_limits
from cs_config.options.operations import DEFAULTS, options_for
from cs_config.options.registry import DEFAULT_SHARE, Registry
from cs_config.source import diff
from cs_config.source.diff import ABSENT, Difference, list_leaves
from cs_config.source.sections import Leaf, Section, Tree, to_plain
from cs_config.tree import admission, inheritance, node_attributes, parameters
from cs_config.tree.address import NODES, SITES, node_depth
from cs_config.tree.configuration import Configuration
from cs_config.tree.inheritance import Parameter
from cs_config.tree.parameters import VoRight
from requirements.errors import NotAllowed
from requirements.quantities import QUANTITIES
from requirements.values import fold

_VO_SECTION: Final = "VOs"
_ENABLED: Final = "enabled"
#: The other name of a parameter that has two, folded.
_OTHER_NAME: Final = {
    fold(name): fold(other)
    for each in QUANTITIES
    for name, other in (each.parameters, reversed(each.parameters))
}
#: Parameters of slots, folded: there 0 states that the number is not known.
_SLOT: Final = frozenset({"numberofprocessors", *_OTHER_NAME})
#: Names below `VOs/<vo>`, folded, that are the site's: access, which a VO cannot give itself, and the use of
#: its batch system.
_SITE_PATHS: Final = (
    admission.ACCESS
    | {fold(each.name) for each in parameters.KNOWN if each.right is VoRight.NONE}
    | {fold(node_attributes.FORWARDING)}
)
#: Sections below `Operations/<vo>`, folded, that the installation grants or that refer to its own machines.
_INSTALLATION_PATHS: Final = (
    *(("limits",), ("jobscheduling", "inputdatacatalogue")),
    ("retention", "dayrecords"),  # of all VOs together
)
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
#: again and again for its jobs, and its heartbeats, keep them from those of others.
_FLOORED_OPTIONS: Final[Mapping[tuple[str, ...], Callable[[object], float]]] = {
    ("pools", "refreshinterval"): attrgetter("pools.refresh_interval"),
    ("leases", "time"): attrgetter("leases.time"),
    ("leases", "stalledtime"): attrgetter("leases.stalled_time"),
    ("leases", "heartbeattime"): attrgetter("leases.heartbeat_time"),
    ("leases", "longestheartbeattime"): attrgetter("leases.longest_heartbeat_time"),
    ("jobscheduling", "holdtime"): attrgetter("job_scheduling.hold_time"),
}
#: Values of an owner group, folded, that an admin of its VO may change; `VO` only of a new group.
_GROUP_VALUES: Final = frozenset({"users", "jobshare", "allowbackgroundtqs", "vo"})
_GROUPS: Final = ("Registry", "Groups")
#: Of a new group: `<vo>_<word>`, so that no VO takes the name of a group of another.
_NEW_GROUP: Final = re.compile(r"(.+)_[a-z0-9.+-]+")
#: Names in the path of a floor, `Resources/Sites/<site>/Floors/<vo>`.
_FLOOR_DEPTH: Final = 5
#: Why a path is refused: outside the own sections; in them, where others set it, or at no place that exists.
_OF_OTHERS: Final = "not yours to change"
_OF_OPERATORS: Final = "set by operators only"
_OF_SITES: Final = "set by the admins of the site only"
_NOWHERE: Final = "there is no such site, CE or queue"
#: What the parts of an administrator consist of, each with a bound of its own.
_OWN: Final = "values in the configuration"
_INHERITED: Final = "values that queues inherit, each counted for each queue"
#: Maximum number of paths in a message.
_MAX_PATHS: Final = 5
#: Characters of a value in a message.
_MAX_SHOWN: Final = 60


class EditNotAllowed(NotAllowed):
    """An edit outside the sections that its author may change, or beyond the values allowed there."""

    code = "not_allowed"

    def __init__(self, reasons: Mapping[str, str], *, allowed: str) -> None:
        """The reason for each path, and what is allowed instead."""
        paths: defaultdict[str, list[str]] = defaultdict(list)
        for path in list(reasons)[:_MAX_PATHS]:
            paths[reasons[path]].append(path)
        shown = [f"{', '.join(these)}: {reason}" for reason, these in paths.items()]
        shown += [f"and {len(reasons) - _MAX_PATHS} more"] if len(reasons) > _MAX_PATHS else []
        super().__init__("; ".join([*shown, allowed]))
        self.reasons = reasons
        self.details = {"paths": list(reasons)}


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
    #: The configuration with what comes back of the author's temporary values, up to which limits may be
    #: set; None: that in force.
    returning: Configuration | None = None

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
        of_floors = (f"less for {vo} in Floors of sites" for vo in sorted(self.vos))
        of_groups = (
            f"Users, JobShare and AllowBackgroundTQs of the groups of {vo} in Registry/Groups"
            for vo in sorted(self.vos)
        )
        of_sites = (f"Resources/Sites/{site} outside VOs" for site in sorted(self.sites))
        return (*of_vos, *of_floors, *of_groups, *of_sites)

    def may_change(self, names: tuple[str, ...]) -> bool:
        """Whether a path may be changed, whether or not it exists."""
        return (
            self.everything
            or self._may_change_vo(names)
            or self._may_change_site(names)
            or self._may_change_group(names)
            or self._find_vo_of_floor(names) is not None
        )

    def _find_vo_of_floor(self, names: tuple[str, ...]) -> str | None:
        """The own VO whose floor at a site a path is: it may give up some of it; None: it is no such path."""
        is_floor = len(names) == _FLOOR_DEPTH and names[:2] == SITES and names[3] == "Floors"
        return fold(names[-1]) if is_floor and fold(names[-1]) in self.vos else None

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

    def is_of_own_vo(self, names: tuple[str, ...]) -> bool:
        """Whether a path is in a section of an own VO, where some values are granted by others."""
        vo = fold(names[1]) if names[0] == "Operations" and len(names) > 1 else _values_of_vo(names)[0]
        return vo in self.vos

    def _may_change_vo(self, names: tuple[str, ...]) -> bool:
        if not self.is_of_own_vo(names):
            return False
        if names[0] == "Operations":
            below = tuple(map(fold, names[2:]))
            return not any(below[: len(kept)] == kept for kept in _INSTALLATION_PATHS)
        _, rest = _values_of_vo(names)
        return not (rest and fold(rest[0]) in _SITE_PATHS)

    def _may_change_site(self, names: tuple[str, ...]) -> bool:
        return bool(node_depth(names)) and names[2] in self.sites and _depth_of_vos(names) is None

    def gives_up_floor(self, names: tuple[str, ...]) -> bool:
        """Whether a path is the floor of an own VO, and may be changed for no other reason."""
        return self._find_vo_of_floor(names) is not None and not self._may_change_site(names)

    def owner_of(self, names: tuple[str, ...]) -> str | None:
        """The site or VO of the author to which a changeable path belongs; None: it may not be changed."""
        if self._may_change_site(names):
            return f"the site {names[2]}"
        if self._may_change_vo(names):
            vo = fold(names[1]) if names[0] == "Operations" else _values_of_vo(names)[0]
            return f"the VO {vo}"
        if (vo := self._find_vo_of_floor(names)) is not None:
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


def check_change(
    config: Configuration,
    rights: Rights,
    tree: Tree,
    differences: Iterable[Difference],
    *,
    restoring: bool,
    advice: str,
) -> None:
    """Refuse differences from the current configuration beyond the permissions, with all their paths.

    A VO may set values only at existing sites, CEs and queues.
    `restoring`: it brings back what was there, which may be more values than are allowed at once. `advice` is
    for values beyond the bounds of what is the VO's.
    """
    if rights.everything:
        return
    changed = [(names, each) for each in differences for names in list_leaves(each)]
    _refuse(rights, ("/".join(names) for names, _ in changed if not _may_set(config, rights, names)))
    bounded = rights.returning or config
    beyond = {
        "/".join(names): reason
        for names, difference in changed
        if (reason := _find_excess(bounded, rights, names, _value_after(names, difference)))
        and "/".join(names) not in rights.restores
    }
    if beyond:
        raise EditNotAllowed(beyond, allowed=advice)
    _check_groups(config, rights, tree)
    if not restoring:
        _check_amount(config, rights, tree)


def _check_groups(config: Configuration, rights: Rights, tree: Tree) -> None:
    """Refuse a tree in which a group changes its VO, or the groups of a VO have larger shares together.

    They may have what they have now, or up to `Limits/JobShares`, so that a VO takes nothing from others. The
    group of jobs that name none counts with the default share, even if it is not configured.
    """
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


def check_default_groups(before: Registry, rights: Rights, after: Registry) -> None:
    """Refuse users of the default group of another VO in that of an own one.

    With both, a proxy that names no group has none: `dirac-door` would refuse it.
    """
    if rights.everything:
        return
    named = {each.default_group for each in after.vo.values() if each.default_group is not None}
    defaults = named & after.groups.keys()
    reasons: dict[str, str] = {}
    for name in sorted(name for name in defaults if after.groups[name].vo in rights.vos):
        known = before.groups[name].users if name in before.groups else ()
        others = {user for other in defaults - {name} for user in after.groups[other].users}
        if taken := sorted((set(after.groups[name].users) - set(known)) & others):
            reasons["/".join((*_GROUPS, name, "Users"))] = (
                f"{', '.join(taken)}: in the default group of another VO already, so that a proxy without a "
                "group would be refused"
            )
    if reasons:
        raise EditNotAllowed(reasons, allowed="put such users into another group of your VO")


def _check_amount(config: Configuration, rights: Rights, tree: Tree) -> None:
    """Refuse a tree in which a site or VO of the author has more values than now, if these are too many."""
    before, after = (_count_values(each, rights) for each in (config.tree, tree))
    for (owner, what), number in after.items():
        most = bounds.OWN_VALUES if what is _OWN else bounds.INHERITED_VALUES
        if number > max(most, before[owner, what]):
            raise NotAllowed(f"{owner} would have {number} {what}, allowed are {most}")


def _count_values(tree: Tree, rights: Rights) -> Counter[tuple[str, str]]:
    """The numbers of values of each site and VO of the author, and of those that queues inherit from them."""
    queues, found = _count_queues(tree), Counter[tuple[str, str]]()
    for names, value in diff.iterate_leaves(tree):
        number, owner, depth = diff.count_values(value), rights.owner_of(names), node_depth(names)
        if owner is not None:
            found[owner, _OWN] += number
        if owner is None and depth and names[2] in rights.sites:
            owner = f"the site {names[2]}"  # values of VOs, which the site's queues inherit as well
        if owner is not None and (below := queues[names[:depth]]):
            found[owner, _INHERITED] += number * below
    return found


def _count_queues(tree: Tree) -> Counter[tuple[str, ...]]:
    """The number of queues below each site and CE, by its path."""
    found = Counter[tuple[str, ...]]()
    for site, node in _list_below(tree, SITES):
        for ce, below in _list_below(node, ("CEs",)):
            number = len(_list_below(below, ("Queues",)))
            found.update({(*SITES, site): number, (*SITES, site, "CEs", ce): number})
    return found


def _list_below(tree: object, names: tuple[str, ...]) -> Collection[tuple[str, object]]:
    """The names in a section with what they have; none if it is no section."""
    listed = patch.find_entry(tree, names) if isinstance(tree, dict) else None
    return listed.items() if isinstance(listed, dict) else ()


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


def _may_set(config: Configuration, rights: Rights, names: tuple[str, ...]) -> bool:
    vo, _ = _values_of_vo(names)
    is_there = vo is None or "/".join(names[: _depth_of_vos(names)]) in config.nodes
    return rights.may_change(names) and is_there


def _find_excess(config: Configuration, rights: Rights, names: tuple[str, ...], after: object) -> str | None:
    """Why a value is beyond what a VO may set, with the bound and its path; None: it is not."""
    if names[0] == "Operations":
        return _find_excess_of_option(config, names, after)
    if rights.gives_up_floor(names):
        return _find_excess_of_floor(config, names, after)
    vo, rest = _values_of_vo(names)
    if vo is None or not rest or parameters.find_right(fold(rest[0])) is not VoRight.LOWER:
        return None
    if isinstance(after, bool) or fold(rest[0]) == _ENABLED:
        is_lower = after is ABSENT or after is False
        return None if is_lower else f"{_format(after)}: a VO may set only false, to use a queue no more"
    before = _find_effective(config, names[: _depth_of_vos(names)], vo, fold(rest[0]))
    if fold(rest[0]) in _SLOT and after == 0:
        return "0 would be no limit: a VO may only lower it"
    if before is None and (other := _OTHER_NAME.get(fold(rest[0]))) is not None:
        before = _find_effective(config, names[: _depth_of_vos(names)], vo, other)
    if before is None or not isinstance(before.value, int | float):
        return None
    return _compare_with(after, most=before.value, where=before.path)


def _find_excess_of_floor(config: Configuration, names: tuple[str, ...], after: object) -> str | None:
    """Why a VO may not set its floor at a site to a value: it gives up some of it, or all."""
    entry = config.root
    for name in names[:-1]:
        entry = entry.section(name)
    before = entry.entries.get(names[-1])
    if after is ABSENT:
        return None
    if before is None or isinstance(before, Section):
        return f"{_format(after)}: the site gives a VO its floor"
    try:
        [was], [will] = (
            place_limits.read_floors_at(names[2], {names[-1]: each}) for each in (before.value, after)
        )
    except ValueError:
        return None  # told by the check of the whole
    if was.floor is not None and will.floor is not None and will.floor.is_within(was.floor):
        return None
    return f"{_format(after)}: a VO sets no more than the site, {was.floor}"


def _find_excess_of_option(config: Configuration, names: tuple[str, ...], after: object) -> str | None:
    option = tuple(map(fold, names[2:]))
    own, default = options_for(config, names[1]), options_for(config, None)
    if (read := _LOWERED_OPTIONS.get(option)) is not None:
        after = read(default) if after is ABSENT else after
        return _compare_with(after, most=read(own), where=_find_option(config, names[1], option))
    if (read := _FLOORED_OPTIONS.get(option)) is None or after is ABSENT:
        return None
    # Less than the default only if an operator has set it so.
    least = min(read(default), read(own))
    if isinstance(after, int | float) and after >= least:
        return None
    where = _find_option(config, names[1] if read(own) < read(default) else DEFAULTS, option)
    return f"{_format(after)}: a VO sets no less than {least:g} ({where})"


def _compare_with(after: object, *, most: float, where: str) -> str | None:
    if isinstance(after, int | float) and after <= most:
        return None
    seen = "without a value it would be more" if after is ABSENT else _format(after)
    return f"{seen}: a VO sets no more than {most:g} ({where})"


def _format(value: object) -> str:
    return json.dumps(value, default=str)[:_MAX_SHOWN]


def _find_option(config: Configuration, vo: str, option: tuple[str, ...]) -> str:
    """The path at which an option of a VO is set, folded: its own, or that of the defaults."""
    operations = patch.find_entry(config.tree, ("Operations",))
    entries = operations if isinstance(operations, dict) else {}
    paths = {tuple(map(fold, names)): "/".join(names) for names, _ in diff.iterate_leaves(entries)}
    found = (paths.get((fold(section), *option)) for section in (vo, DEFAULTS))
    return next((f"Operations/{path}" for path in found if path is not None), "built-in default")


def _value_after(names: tuple[str, ...], difference: Difference) -> object:
    after = difference.after
    for name in names[len(difference.names) :]:
        after = after.get(name, ABSENT) if isinstance(after, dict) else ABSENT
    return after


def _find_effective(config: Configuration, names: tuple[str, ...], vo: str, folded: str) -> Parameter | None:
    levels = tuple(config.nodes["/".join(names[:depth])] for depth in NODES if depth <= len(names))
    found = inheritance.effective_parameters(levels, vo)
    return next((each for name, each in found.items() if fold(name) == folded), None)


def _refuse(rights: Rights, paths: Iterable[str]) -> None:
    if reasons := {path: _find_reason(rights, tuple(path.split("/"))) for path in paths}:
        raise EditNotAllowed(reasons, allowed=rights.allowed)


def _find_reason(rights: Rights, names: tuple[str, ...]) -> str:
    """Why a path is refused."""
    if not rights.is_of_own_vo(names):
        return _OF_OTHERS
    if rights.may_change(names):
        return _NOWHERE
    return _OF_OPERATORS if names[0] == "Operations" else _OF_SITES


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
