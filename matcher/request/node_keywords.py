"""Keywords of a request for what DiracX's match-making specification has more of a node than DIRAC.

A value that cannot be used is left out with a warning, as unknown keywords are: pilots had other meanings
for these names before. Measurements of the node (`NodeFacts`) count where a keyword is not stated.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from cs_config.options import bounds
from requirements.cpu_levels import normalise_features
from requirements.nodes.node_facts import Facts
from requirements.specification import architecture_number, is_version, version_number
from requirements.values import fold

Read = TypeVar("Read")

#: Keyword to attribute of a resource.
KEYWORDS: Final[Mapping[str, str]] = {
    "WallTime": "wall_time",
    "CPUPowerDB12": "cpu_power_db12",
    "MaxScratch": "scratch_mb",
    "System": "system",
    "Architecture": "architecture",
    "CPUFeature": "cpu_features",
    "CPUFlag": "cpu_features",
    "GPUVendor": "gpu_vendor",
    "GPUArchitecture": "gpu_architecture",
    "GPUMemory": "gpu_memory_mb",
    "GPURuntime": "gpu_runtime",
}
#: Facts that have another name than the keyword has.
_FACTS: Final = {"cpu_features": "CPUFlags"}


class NodeKeywords:
    """The stated values by attribute, with their spelling; and the warnings."""

    def __init__(self, stated: Mapping[str, tuple[str, object]], facts: Facts) -> None:
        self._facts = {fold(name): (f"NodeFacts/{name}", value) for name, value in facts.items()}
        self._stated = stated
        self.warnings: list[str] = []

    def read(self, *, has_gpus: bool) -> dict[str, Any]:
        """The attributes of the resource; those of GPUs only where there are some."""
        return {
            "wall_time": self._find("WallTime", _read_amount, None),
            "cpu_power_db12": self._find("CPUPowerDB12", _read_power, None),
            "scratch_mb": self._find("MaxScratch", _read_amount, None),
            "system": self._find("System", _read_name, "linux"),
            "architecture": self._find("Architecture", _read_name, "", is_measured=True),
            "cpu_features": self._find("CPUFeature", _read_features, frozenset[str](), is_measured=True),
            **(self._read_gpus() if has_gpus else {}),
        }

    def _read_gpus(self) -> dict[str, Any]:
        return {
            "gpu_vendor": self._find("GPUVendor", _read_name, ""),
            "gpu_architecture": self._find("GPUArchitecture", _read_architecture, 0),
            "gpu_memory_mb": self._find("GPUMemory", _read_amount, 0.0, is_measured=True),
            "gpu_runtime": self._find("GPURuntime", _read_version, 0),
        }

    def _find(
        self,
        keyword: str,
        read: Callable[[object], Read | None],
        otherwise: Read,
        *,
        is_measured: bool = False,
    ) -> Read:
        attribute = KEYWORDS[keyword]
        found = self._stated.get(attribute)
        if found is None and is_measured:
            found = self._facts.get(fold(_FACTS.get(attribute, keyword)))
        if found is None or found[1] is None:
            return otherwise
        name, value = found
        if (known := read(value)) is not None:
            return known
        self.warnings.append(f"{name}: {str(value)[:40]} is left out, {_ALLOWED[read]} is needed")
        return otherwise


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
    return version_number(value) if isinstance(value, str) and is_version(value) else None


_ALLOWED: Final[Mapping[Callable[[object], object], str]] = {
    _read_amount: "a number from 0",
    _read_power: f"a number from 0 to {bounds.POWER}",
    _read_name: "a text",
    _read_features: "a list of texts",
    _read_architecture: "a text such as sm_89",
    _read_version: "a version such as 12.4, as a text,",
}
