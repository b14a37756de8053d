"""Keywords of a request for what DiracX's match-making specification has more of a node than DIRAC.

A value that cannot be used is left out with a warning, as unknown keywords are: pilots had other meanings
for these names before. Measurements of the node (`NodeFacts`) count where a keyword is not stated.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from cs_config.options import bounds, keywords
from requirements.classad.restrictions import version_of
from requirements.diracx.cpu_levels import normalise_features
from requirements.diracx.specification import architecture_number, version_number
from requirements.nodes.node_facts import Facts
from requirements.quantities import DETAILS
from requirements.values import fold

#: Keyword to attribute of a resource.
KEYWORDS: Final[Mapping[str, str]] = {
    "WallTime": "wall_time",
    "CPUPowerDB12": "cpu_power_db12",
    "MaxScratch": "scratch_mb",
    "System": "system",
    "Architecture": "architecture",
    "CPUFeature": "cpu_features",
    "CPUFlag": "cpu_features",
    **{each.keyword: each.name for each in DETAILS},
}
#: Measurement, folded, to the same attributes.
_MEASURED: Final[Mapping[str, str]] = {
    "architecture": "architecture",
    "cpuflags": "cpu_features",
    "cpupowerdb12": "cpu_power_db12",
    **{fold(each.keyword): each.name for each in DETAILS},
}


def read_node(
    stated: Mapping[str, tuple[str, object]], facts: Facts, *, left_out: Collection[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """The attributes of a resource, and the warnings.

    Args:
        stated: Keywords of the request by attribute, each as it is spelled, and its value.
        facts: Measurements of the node.
        left_out: Attributes that are not read: details of what the resource has none of.
    """
    values = dict(stated)
    for fact, measured in facts.items():
        attribute = _MEASURED.get(fold(fact))
        if attribute and measured is not None:
            values.setdefault(attribute, (f"NodeFacts/{fact}", measured))
    found = {name: value for name, value in UNSTATED.items() if name not in left_out}
    warnings = []
    for attribute in [each for each in found if each in values]:
        (name, value), kind = values[attribute], _KINDS[attribute]
        known = kind.read(value)
        if known is None:
            warnings.append(f"{name}: {str(value)[:40]} is left out, {kind.allowed} is needed")
        else:
            found[attribute] = known
    return found, warnings


def _read_amount(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= bounds.MEGABYTES else None  # type: ignore[operator, return-value]


def _read_power(value: object) -> float | None:
    power = _read_amount(value)
    return power if power is not None and power <= bounds.POWER else None


def _read_name(value: object) -> str | None:
    return fold(value.strip()) if isinstance(value, str) and value.strip() else None


def _read_features(value: object) -> frozenset[str] | None:
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(each, str) for each in words):
        return None
    return normalise_features(words)


def _read_architecture(value: object) -> int | None:
    return architecture_number(value) or None if isinstance(value, str) else None


def _read_version(value: object) -> int | None:
    try:
        # A number is one as well: so YAML and JSON have what is written without quotes.
        return version_number(keywords.version(version_of(value)))
    except keywords.UnfitValueError:
        return None


class _Kind(NamedTuple):
    """What an attribute is read from."""

    read: Callable[[object], object]  #: None: not usable
    allowed: str
    unstated: object  #: where it is not stated


_KINDS: Final[Mapping[str, _Kind]] = {
    "wall_time": _Kind(_read_amount, "a number from 0", None),
    "cpu_power_db12": _Kind(_read_power, f"a number from 0 to {bounds.POWER}", None),
    "scratch_mb": _Kind(_read_amount, "a number from 0", None),
    "system": _Kind(_read_name, "a text", "linux"),
    "architecture": _Kind(_read_name, "a text", ""),
    "cpu_features": _Kind(_read_features, "a list of texts", frozenset[str]()),
    "gpu_vendor": _Kind(_read_name, "a text", ""),
    "gpu_architecture": _Kind(_read_architecture, "a text such as sm_89", 0),
    "gpu_memory_mb": _Kind(_read_amount, "a number from 0", 0.0),
    "gpu_runtime": _Kind(_read_version, "a version such as 12.4", 0),
}
#: The value of each attribute that is not stated.
UNSTATED: Final[Mapping[str, Any]] = {name: kind.unstated for name, kind in _KINDS.items()}
