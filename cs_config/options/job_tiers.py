"""`JobPriorities`: the order of a VO's job types. An earlier tier always comes before a later one.

Source: section 9 of DiracX's match-making specification.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from random import Random
from typing import Final, NoReturn

from cs_config.options import bounds
from requirements.values import fold

#: A tier that is written in pieces, or without its braces, would be a type that no job has.
_LIKE_WEIGHTS: Final = re.compile(r"[{}]|:\s*[0-9.]+$")
_FORM: Final = "allowed are a job type, or '{type: weight, other type: weight}'"


@dataclass(frozen=True)
class JobTier:
    """Job types that come before those of later tiers; among them chance decides, by their weights."""

    weights: Mapping[str, float]  #: by type as it is written

    @cached_property
    def types(self) -> frozenset[str]:
        """The types, folded."""
        return frozenset(map(fold, self.weights))

    def find_weight(self, types: Collection[str]) -> float:
        """The weight of jobs with these types (one, or none); 0: they are not in this tier."""
        return sum(weight for name, weight in self.weights.items() if fold(name) in set(map(fold, types)))

    def draw_types(self, random: Random) -> list[str]:
        """The types, folded, in random order by weight.

        Those of them that have jobs come in the order in which they alone would be drawn: each waits for an
        exponential time of its own.
        """
        waits = sorted((random.expovariate(weight), fold(name)) for name, weight in self.weights.items())
        return [name for _, name in waits]

    def __str__(self) -> str:
        """The tier as it may be written, for people."""
        if len(self.weights) == 1:
            return next(iter(self.weights))
        return f"{{{', '.join(f'{name}: {weight:g}' for name, weight in self.weights.items())}}}"


JobTiers = tuple[JobTier, ...]


def find_tier(tiers: JobTiers, types: Collection[str]) -> int:
    """The number of the tier of jobs with these types (one, or none), from 1; types not listed come last."""
    folded = set(map(fold, types))
    found = (number for number, tier in enumerate(tiers, start=1) if not tier.types.isdisjoint(folded))
    return next(found, len(tiers) + 1)


def describe_tier(tiers: JobTiers, types: Collection[str]) -> str:
    """The tier of jobs with these types (one, or none), as text for people."""
    number = find_tier(tiers, types)
    if number <= len(tiers):
        return f"tier {number} of {len(tiers)}, {tiers[number - 1]}"
    return f"no tier, after all {len(tiers)}" if tiers else "no tier, as there are none"


def read_tiers(raw: object) -> JobTiers:
    """The tiers of a list of texts; ValueError if one is wrong."""
    stated = raw if isinstance(raw, tuple) else (raw,)
    tiers = tuple(each if isinstance(each, JobTier) else _read_tier(each) for each in stated)
    known: set[str] = set()
    for name in (name for tier in tiers for name in tier.weights):
        if fold(name) in known:
            _refuse(f"{name} is in it twice")
        known.add(fold(name))
    if len(known) > bounds.ORDERED_TYPES:
        _refuse(f"{len(known)} job types, {bounds.ORDERED_TYPES} are allowed")
    return tiers


def _read_tier(stated: object) -> JobTier:
    if not isinstance(stated, str) or not stated.strip():
        _refuse(f"{stated!r} is no tier, {_FORM}")
    text = stated.strip()
    if not (text.startswith("{") and text.endswith("}")):
        if _LIKE_WEIGHTS.search(text):
            _refuse(f"{text!r} is no tier, {_FORM}")
        return JobTier({text: 1.0})
    weights = dict[str, float]()
    for name, weight in _split_weights(text):
        if name in weights:
            _refuse(f"{name} is in it twice")
        weights[name] = weight
    return JobTier(weights)


def _split_weights(text: str) -> Iterator[tuple[str, float]]:
    for item in text[1:-1].split(","):
        name, colon, weight = (part.strip() for part in item.rpartition(":"))
        if not colon or not name:
            _refuse(f"{text!r}: {item.strip()!r} is no type with its weight, {_FORM}")
        yield name, _read_weight(weight, f"{text!r}: the weight of {name}")


def _read_weight(text: str, what: str) -> float:
    allowed = f"allowed are {bounds.SMALLEST_WEIGHT:g} to {bounds.SHARE:g}"
    try:
        weight = float(text)
    except ValueError:
        _refuse(f"{what}, {text!r}, is no number, {allowed}")
    if not isfinite(weight) or not bounds.SMALLEST_WEIGHT <= weight <= bounds.SHARE:
        _refuse(f"{what}, {text}, is out of bounds, {allowed}")
    return weight


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)
