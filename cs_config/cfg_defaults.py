"""What DIRAC says of all CEs, or of those of a type, in one place: here each CE has it itself.

Source: DIRAC's `Resources/Computing/CEDefaults` and `Resources/Computing/<CEType>`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from requirements.values import fold

#: The section for CEs of all types.
FOR_ALL: Final = "CEDefaults"
_TYPE: Final = "cetype"
#: Sets that unite over the levels.
_UNITED: Final = frozenset({"tag", "requiredtag"})

_Options = Mapping[str, object]


def write(sites: dict[str, object], defaults: Mapping[str, _Options]) -> frozenset[str]:
    """Let every CE say the defaults that neither itself nor its site says otherwise.

    Args:
        sites: In our layout; they are changed.
        defaults: Options by the type of the CEs, or for all.

    Returns:
        The types that some CE has.
    """
    used: set[str] = set()
    for site, ce in _ces(sites):
        own = next((str(ce[name]) for name in ce if fold(name) == _TYPE), _value(site, _TYPE))
        kinds = [kind for kind in (own, FOR_ALL) if kind in defaults]  # what is said of a type goes first
        used.update(kinds)
        for kind in kinds:
            _fill(ce, site, defaults[kind])
    return frozenset(used)


def _ces(sites: Mapping[str, object]) -> Iterator[tuple[_Options, dict[str, object]]]:
    for site in sites.values():
        ces = site.get("CEs") if isinstance(site, dict) else None
        for ce in ces.values() if isinstance(ces, dict) else ():
            if isinstance(site, dict) and isinstance(ce, dict):
                yield site, ce


def _value(options: _Options, folded: str) -> str:
    return next((str(value) for name, value in options.items() if fold(name) == folded), "")


def _fill(ce: dict[str, object], site: _Options, defaults: _Options) -> None:
    spelled = {fold(name): name for name in ce}
    of_site = {fold(name) for name in site}
    for name, value in defaults.items():
        here = spelled.get(fold(name))
        if fold(name) in _UNITED:
            ce[here or name] = _items(ce.get(here or name)) + [
                each for each in _items(value) if each not in _items(ce.get(here or name))
            ]
        elif here is None and fold(name) not in of_site:
            ce[name] = value


def _items(value: object) -> list[object]:
    return [] if value is None else value if isinstance(value, list) else [value]
