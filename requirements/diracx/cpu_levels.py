"""Levels and profiles of processors, as the features that each requires.

Features have the names of `/proc/cpuinfo`, except where people use another one (`_SPELLED`).

Source: the psABI of x86-64 (as in archspec 0.2.7); the Arm Architecture Reference Manual: the features that
a profile makes mandatory and that Linux reports (archspec has none).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

#: Features by other names: those of the kernel, and of compilers.
_SPELLED: Final = {"pni": "sse3", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "lzcnt": "abm", "neon": "asimd"}


def _extend(steps: Mapping[str, str], start: str = "") -> Iterator[tuple[str, frozenset[str]]]:
    """Levels, each with the features of those before it."""
    features = frozenset(start.split())
    for name, more in steps.items():
        features |= frozenset(more.split())
        yield name, features


_ARM_8_5 = (
    "asimd atomics asimdrdm crc32 dcpop jscvt fcma lrcpc asimddp flagm uscat ilrcpc dit flagm2 frint sb"
)
#: The levels of each architecture, in order, with their features.
LEVELS: Final[Mapping[str, Mapping[str, frozenset[str]]]] = {
    "x86_64": dict(
        _extend(
            {
                "x86-64-v1": "",
                "x86-64-v2": "cx16 lahf_lm mmx popcnt sse sse2 sse3 sse4_1 sse4_2 ssse3",
                "x86-64-v3": "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave",
                "x86-64-v4": "avx512bw avx512cd avx512dq avx512f avx512vl",
            }
        )
    ),
    "aarch64": dict(
        [
            *_extend(
                {
                    "armv8.0-a": "asimd",
                    "armv8.1-a": "atomics asimdrdm crc32",
                    "armv8.2-a": "dcpop",
                    "armv8.3-a": "jscvt fcma lrcpc",
                    "armv8.4-a": "asimddp flagm uscat ilrcpc dit",
                    "armv8.5-a": "flagm2 frint sb",
                    "armv8.6-a": "bf16 i8mm",
                }
            ),
            *_extend({"armv9.0-a": "sve sve2", "armv9.1-a": "bf16 i8mm"}, start=_ARM_8_5),
        ]
    ),
}
#: The features of each level, whatever the architecture.
FEATURES: Final = {name: features for levels in LEVELS.values() for name, features in levels.items()}


def normalise_features(names: Iterable[str]) -> frozenset[str]:
    """Features in one spelling."""
    return frozenset(_SPELLED.get(name, name) for name in map(str.lower, names))


def find_level(architecture: str, features: frozenset[str]) -> str | None:
    """The last level of an architecture all of whose features are among these; None: it has no levels."""
    levels = LEVELS.get(architecture, {})
    found = [name for name, needed in levels.items() if features and needed <= features]
    return found[-1] if found else None


def list_features(level: str, features: Iterable[str]) -> frozenset[str]:
    """What a job needs that states a level and features; the level may be empty."""
    return FEATURES.get(level, frozenset()) | normalise_features(features)
