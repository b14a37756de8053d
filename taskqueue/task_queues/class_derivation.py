"""Derivation of requirement classes, from what jobs state and the defaults of their VO.

A class keeps what its jobs state, so that it can be derived again after a change of the defaults
(`reclassification`).
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any, Final

from cs_config.options import keywords
from cs_config.options.options import VoOptions
from requirements import images
from requirements.diracx import specification
from requirements.requirement_class import (
    SPECIFIC,
    RequirementClass,
    exclude_names,
    names_without_any,
    read_processors,
    round_to_segment,
    round_up,
)

#: Attributes that description and class have under the same name, with the default of the class.
_SAME: Final[Mapping[str, Any]] = {
    each.name: each.default
    for each in fields(RequirementClass)
    if each.name in keywords.BY_ATTRIBUTE and each.default is not MISSING
}
#: Attributes of a description that decide its class, each with the value where neither it nor the
#: configuration states one.
_ATTRIBUTES: Final[Mapping[str, Any]] = {
    **_SAME,
    **dict.fromkeys(("processors", "min_processors", "max_processors")),
    **dict.fromkeys(("min_ram_mb", "max_ram_mb", "min_ram_per_core_mb"), 0),
    "job_type": "",
    "cpu_time": 0,
}
#: Lengths, of which nearly equal ones share a class.
_ROUNDED: Final = frozenset({"cpu_work_db12", "wall_time"})
#: Orders the jobs of a task queue: a class only keeps whether it is stated.
PRIORITY: Final = "priority"
#: Every attribute that `RequirementClass.stated` may name.
CLASSIFIED: Final = frozenset({*_ATTRIBUTES, PRIORITY})


def derive_class(
    vo: str,
    stated: Mapping[str, Any],
    options: VoOptions,
    *,
    replicas: frozenset[frozenset[str]] = frozenset(),
    submit_pool: str | None = None,
) -> RequirementClass:
    """Derive the class of jobs from what they state, by attribute, and the defaults of their VO.

    Attributes that are not in `CLASSIFIED` are ignored. A job that excludes all its sites fits nowhere.
    """
    kept: dict[str, Any] = {
        name: frozenset(value) if isinstance(value, list | tuple) else value
        for name, value in stated.items()
        if name in CLASSIFIED
    }
    if PRIORITY in kept:
        kept[PRIORITY] = True
    if "image" in kept:
        kept["image"] = images.find_source(kept["image"])
    segments = options.job_scheduling.cpu_segments
    for name in _ROUNDED.intersection(kept):
        kept[name] = round_up(kept[name])
    if "cpu_time" in kept:  # not the job's own: jobs of nearly the same length share a class, as in DIRAC
        kept["cpu_time"] = round_to_segment(kept["cpu_time"], segments)
    asked = fill_in(kept, options)
    named, banned = (names_without_any(names) for names in (asked.sites, asked.banned_sites))
    sites = exclude_names(named, banned)
    cores = read_processors(asked)
    # A range from one core needs no pilot of several, unlike in DIRAC.
    needs_tags = cores.minimum > 1 or not options.job_description.is_specified(kept)
    read: dict[str, Any] = {
        "cpu_time": 0 if asked.cpu_time is None else round_to_segment(asked.cpu_time, segments),
        **{name: round_up(getattr(asked, name)) for name in _ROUNDED},
        "image": images.find_source(asked.image),
        "cpu_features": frozenset(asked.cpu_features),
        "sites": sites or named,
        "banned_sites": frozenset() if sites else banned,
        "grid_ces": names_without_any(asked.grid_ces),
        "platforms": names_without_any(asked.platforms),
        "job_types": frozenset({asked.job_type} - {""}),
        # The same set as in `stated`, if nothing is added: there may be very many tags.
        "tags": frozenset(asked.tags) | cores.tags if cores.tags and needs_tags else frozenset(asked.tags),
        "min_ram": asked.min_ram_mb,
        "max_ram": asked.max_ram_mb or None,
        "min_ram_per_core": asked.min_ram_per_core_mb,
        "processors_min": cores.minimum,
        "processors_max": cores.maximum,
        "whole_node": cores.whole_node,
    }
    return RequirementClass(
        vo=vo,
        **{name: getattr(asked, name) for name in _SAME} | read,
        replicas=replicas,
        submit_pool=submit_pool,
        stated=tuple(sorted(kept.items())),
        derived_with=options.class_digest,
    )


def derive_class_again(before: RequirementClass, options: VoOptions) -> RequirementClass:
    """Derive the class of the same jobs under other options of their VO."""
    if before.stated is None:
        return before
    return derive_class(
        before.vo, dict(before.stated), options, replicas=before.replicas, submit_pool=before.submit_pool
    )


def fill_in(stated: Mapping[str, Any], options: VoOptions) -> SimpleNamespace:
    """Return all attributes that decide a class: what is stated, else the defaults of the VO, else ours."""
    defaults = {
        keywords.BY_NAME[name].attribute: value for name, value in options.job_description.filled_in.items()
    }
    if options.job_description.is_specified(stated):
        return SimpleNamespace(**{**_ATTRIBUTES, **specification.complete(stated, defaults)})
    ours = {name: value for name, value in defaults.items() if name not in SPECIFIC}
    return SimpleNamespace(**{**_ATTRIBUTES, **ours, **stated})
