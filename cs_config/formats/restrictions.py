"""Restrictions of a node: the parameters that keep VOs or jobs out, and how a node that lost one is disabled.

An import that dropped a restriction would open a node that its source keeps closed. So a node whose
restriction cannot be imported gets `Enabled: false`, until someone corrects the source or the tree.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from cs_config.options.options import SHIPPED_JOB_TYPES
from cs_config.source.sections import as_list
from cs_config.tree import address, admission, glue
from requirements.values import fold

ENABLED: Final = "Enabled"
#: Folded names of parameters and sections that restrict access.
_ACCESS: Final = admission.ACCESS | {"vos", "enabled", "requiredtag"}
#: Folded names of those that limit a rate or a number.
_AMOUNTS: Final = frozenset({"throttle", "maxtotaljobs", "maxwaitingjobs"})
#: Options, folded, by which other systems restrict access and which our tree does not have.
_FOREIGN: Final = frozenset(
    {
        *("allowedvo", "allowedvos", "supportedvo", "supportedvos", "community", "communities"),
        *("bannedvo", "bannedvos", "banned", "allowedgroups", "bannedgroups", "bannedusers"),
        *("owner", "ownerdn", "ownergroup", "ownergroups", "jobtype", "jobtypes", "bannedjobtypes"),
        *("submitpool", "submitpools", "pilottype", "status", "sitestatus", "state", "maskstatus"),
    }
)
_STATES: Final = frozenset({"status", "sitestatus", "state", "maskstatus"})
_OPEN: Final = frozenset({"active", "production", "ok", "up", "online", "enabled", "allowed", "true", "yes"})
#: Options of operations that restrict jobs; an installation without them accepts more jobs.
_OF_OPERATIONS: Final = frozenset({"allowedjobtypes", "runninglimit", "matchingdelay"})


def is_restriction(name: str, checks: frozenset[str] = frozenset()) -> bool:
    """Whether a parameter or section of this name, or of a check (folded), restricts its node."""
    return keeps_out(name) or fold(name) in _AMOUNTS or fold(name) in checks


def keeps_out(name: str) -> bool:
    """Whether a parameter of this name decides which VOs or jobs are admitted."""
    return fold(name) in _ACCESS


def is_restriction_of_ad(name: str, checks: frozenset[str] = frozenset()) -> bool:
    """Whether an attribute of this name restricts the queue of a CE ad."""
    return is_restriction(name, checks) or names_vos(name) or fold(name) == fold(glue.RULES)


def is_foreign(name: str, value: object) -> bool:
    """Whether another system's option of this name may restrict access.

    Exceptions are a status that means "in operation", and a `JobType` that names types of job managers: here
    it means that a job manager serves the queue.
    """
    folded = fold(name)
    if folded not in _FOREIGN or isinstance(value, dict):
        return False
    if folded == "jobtype":
        return not {fold(str(each)) for each in as_list(value)} <= set(SHIPPED_JOB_TYPES)
    return folded not in _STATES or fold(str(value)) not in _OPEN


def names_vos(name: str) -> bool:
    """Whether another system's option of this name lists allowed or forbidden VOs or users."""
    folded = fold(name)
    return folded in _FOREIGN and folded.startswith(("allowed", "banned", "supported"))


def restricts_directly(section: object) -> bool:
    """Whether a section has a restriction of its own, not only in sections below."""
    return isinstance(section, Mapping) and any(
        is_restriction(name) or is_foreign(name, value) for name, value in section.items()
    )


def restricts(section: object) -> bool:
    """Whether a section has a restriction, or one below it."""
    below = section.values() if isinstance(section, Mapping) else ()
    return restricts_directly(section) or any(map(restricts, below))


def restricts_jobs(name: str, entry: object) -> bool:
    """Whether an entry of the operations, or one below it, keeps jobs out."""
    below = entry.items() if isinstance(entry, Mapping) else ()
    return fold(name) in _OF_OPERATIONS or any(restricts_jobs(each, inner) for each, inner in below)


def checks(section: object) -> frozenset[str]:
    """Folded names of all that `Checks` at and below a section lists."""
    found: set[str] = set()
    for name, entry in section.items() if isinstance(section, Mapping) else ():
        if isinstance(entry, Mapping):
            found |= checks(entry)
        elif fold(name) == admission.CHECKS:
            found |= {fold(str(each)) for each in as_list(entry)}
    return frozenset(found)


def node_of(names: Sequence[str]) -> tuple[str, ...] | None:
    """The path of the site, CE or queue, or of its VO section, that contains a path, if any."""
    depth = address.node_depth(names)
    if depth and len(names) >= depth + 2 and names[depth] == "VOs":
        depth += 2
    return tuple(names[:depth]) or None


def nodes(
    section: object, path: tuple[str, ...] = address.SITES, below: Sequence[str] = ("CEs", "Queues")
) -> Iterator[tuple[tuple[str, ...], dict[str, object]]]:
    """Every site, CE and queue below all sites, and every VO there, with its path."""
    for name, node in section.items() if isinstance(section, dict) else ():
        if not isinstance(node, dict):
            continue
        here = (*path, name)
        yield here, node
        if path[-1] != "VOs":
            yield from nodes(node.get("VOs"), (*here, "VOs"), ())
        if below:
            yield from nodes(node.get(below[0]), (*here, below[0]), below[1:])


def close(node: dict[str, object], under: object = None) -> None:
    """Disable a node of an import, also for VOs for which it, or the node `under` it, is enabled."""
    _switch_off(node)
    own = node.get("VOs")
    before = under.get("VOs") if isinstance(under, Mapping) else None
    enabled = [
        name
        for vos in (own, before)
        for name, settings in (vos.items() if isinstance(vos, Mapping) else ())
        if isinstance(settings, Mapping) and any(fold(each) == fold(ENABLED) for each in settings)
    ]
    for name in dict.fromkeys(enabled):
        vos = node.setdefault("VOs", {})
        below = vos.setdefault(name, {}) if isinstance(vos, dict) else None
        if isinstance(below, dict):
            _switch_off(below)


def _switch_off(node: dict[str, object]) -> None:
    for name in [name for name in node if fold(name) == fold(ENABLED)]:
        del node[name]
    node[ENABLED] = False
