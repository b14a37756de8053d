"""What DIRAC says of all CEs, or of those of a type, in one place: here each CE has it itself.

A default never opens a CE that it restricts: of the VOs that it lists those stay that the site lists too.

Source: DIRAC's `Resources/Computing/CEDefaults` and `Resources/Computing/<CEType>`.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Final

from requirements.values import fold

#: The section for CEs of all types.
FOR_ALL: Final = "CEDefaults"
_TYPE: Final = "cetype"
_VO: Final = "vo"
_ENABLED: Final = "enabled"
#: Sets that unite over the levels.
_UNITED: Final = frozenset({"tag", "requiredtag"})

_Options = Mapping[str, object]


def write(sites: Mapping[str, object], defaults: Mapping[str, _Options]) -> frozenset[str]:
    """Let every CE say the defaults that neither itself nor its site says otherwise.

    Args:
        sites: In our layout; they are changed.
        defaults: Options by the type of the CEs, or for all.

    Returns:
        The types that some CE has.
    """
    used: set[str] = set()
    of_all = _value(defaults.get(FOR_ALL, {}), _TYPE)
    for site, ce in _ces(sites):
        own = fold(_value(ce, _TYPE) or _value(site, _TYPE) or of_all)
        kinds = [kind for kind in defaults if kind != FOR_ALL and fold(kind) == own]
        kinds += [FOR_ALL] if FOR_ALL in defaults else []  # what is said of a type goes first
        used.update(kinds)
        for kind in kinds:
            fill(ce, site, defaults[kind])
    return frozenset(used)


def _ces(sites: Mapping[str, object]) -> Iterator[tuple[_Options, dict[str, object]]]:
    for site in sites.values():
        ces = site.get("CEs") if isinstance(site, dict) else None
        for ce in ces.values() if isinstance(ces, dict) else ():
            if isinstance(site, dict) and isinstance(ce, dict):
                yield site, ce


def _value(options: _Options, folded: str) -> str:
    return next((str(value) for name, value in options.items() if fold(name) == folded), "")


def fill(node: dict[str, object], above: _Options, defaults: _Options) -> None:
    """Add to a node the defaults that neither itself nor the node above it says otherwise."""
    spelled = {fold(name): name for name in node}
    of_above = {fold(name): value for name, value in above.items()}
    for name, value in defaults.items():
        folded = fold(name)
        here = spelled.get(folded)
        if folded in _UNITED:
            node[here or name] = _items(node.get(here or name)) + [
                each for each in _items(value) if each not in _items(node.get(here or name))
            ]
        elif here is not None:
            continue
        elif folded == _VO:
            node[name] = shared(value, of_above[_VO]) if _VO in of_above else deepcopy(value)
        elif folded not in of_above or (folded == _ENABLED and value is not True):
            node[name] = deepcopy(value)


def shared(value: object, other: object) -> list[object]:
    """The VOs that both of two lists have."""
    allowed = {fold(str(each)) for each in _items(other)}
    return [each for each in _items(value) if fold(str(each)) in allowed]


def _items(value: object) -> list[object]:
    return [] if value is None else value if isinstance(value, list) else [value]
