"""Rules of DiracX's match-making specification for the attributes of one job.

They hold for jobs that state one of `SPECIFIC`, and for all where the VO requires it
(`JobDescriptionOptions.is_specified`).

Source: the match-making specification of DiracX, v0.2, sections 5 and 7.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from requirements.diracx import tag_expression
from requirements.diracx.cpu_levels import LEVELS
from requirements.errors import did_you_mean
from requirements.images import CONTAINERS
from requirements.quantities import DETAILS, QUANTITIES

#: Attribute and message.
Conflict = tuple[str, str]

#: The tag with which the site of a GPU pilot lets jobs without a GPU use it; such a job must require it, too.
OPPORTUNISTIC: Final = "gpu:opportunistic-cpu-ok"
#: Vendors of GPUs whose architectures can be compared; jobs for others wait.
GPU_VENDORS: Final = ("nvidia",)
#: GPUs of a job that states no upper bound, and leaves them idle.
MOST_GPUS: Final = 65_535
#: The family of operating systems of a job that states none.
SYSTEM: Final = "Linux"
#: An architecture that no processor has: of a job whose VO no longer states the default that it relies on.
NO_ARCHITECTURE: Final = "unstated"
_SM: Final = re.compile(r"sm_([1-9][0-9]{1,3})")
_VERSION: Final = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4}){0,2}")
_OTHER_ARCHITECTURE: Final = "arch:"
#: Words of the tags whose prefix the specification reserves; those of `cvmfs:` and `arch:` are names.
RESERVED: Final[Mapping[str, tuple[str, ...]]] = {
    "os": ("el9", "el10", "ubuntu22", "ubuntu24", "ubuntu26", "debian12"),
    "network": ("10gbe", "25gbe", "100gbe", "infiniband", "lhcopn", "lhcone", "wan-degraded"),
    "hostfeat": ("fuse_overlayfs", "io_uring", "ptrace", "net_admin", "nested_userns"),
    "gpu": ("opportunistic-cpu-ok",),
}
#: Prefixes of tags that pilots measure at their nodes.
MEASURED_TAGS: Final = ("cvmfs:", "hostfeat:")
#: Attributes whose defaults count together, where a job states none of them.
_TOGETHER: Final = (
    frozenset({"processors", "min_processors", "max_processors"}),
    frozenset({"min_ram_mb", "min_ram_per_core_mb"}),
)
#: Tags of what has a field of its own, by the field.
_OF_FIELDS: Final[Mapping[str, re.Pattern[str]]] = {
    "sites or banned_sites": re.compile(r"sites?:.*"),
    "cpu.architecture.name": re.compile(rf"(?:cpu|architecture):.*|arch:(?:{'|'.join(LEVELS)})"),
    "cpu.architecture.level or profile": re.compile(
        r"(?:level|profile):.*|(?:arch:)?(?:x86-64-v\d|armv\d\.\d-a)"
    ),
    "gpu.vendor": re.compile(r"(?:gpu-)?vendor:.*|gpu:(?:nvidia|amd|intel)"),
    "gpu.arch": re.compile(r"(?:gpu:)?sm_\d+"),
    "cpu.num_cores": re.compile(r"(?:num_)?cores:.*|\d+processors|multiprocessor", re.IGNORECASE),
}


#: What a job has only if it states it.
_WITHOUT_DEFAULT: Final = frozenset({"cpu_time", "gpus"})
#: What only jobs have that require GPUs.
_OF_GPUS: Final = frozenset((*(each.upper for each in QUANTITIES), *(each.name for each in DETAILS)))
#: Attributes whose default depends on what else a job states.
CONDITIONAL_DEFAULTS: Final = _WITHOUT_DEFAULT.union(*_TOGETHER)
#: The name of the document in descriptions.
DOCUMENT: Final = "requirements"


def complete(stated: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a job: what it states, else fitting defaults of its VO, else the specification's.

    It has no length but that of the specification, and runs on no pilot with GPUs unless it requires one.
    """
    fitting = select_defaults(stated, defaults)
    architecture = stated.get("architecture") or fitting.get("architecture", NO_ARCHITECTURE)
    gpus_max = 0 if "gpus" not in stated else None if stated["gpus"] else MOST_GPUS
    unstated = {"cpu_time": None, "system": SYSTEM, "architecture": architecture, "gpus_max": gpus_max}
    return unstated | fitting | dict(stated)


def select_defaults(stated: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of a VO, by attribute, that nothing excludes of what a job states."""
    unfit = set(_WITHOUT_DEFAULT).union(*(group for group in _TOGETHER if not group.isdisjoint(stated)))
    if not stated.get("gpus"):
        unfit |= _OF_GPUS
    fitting = {name: value for name, value in defaults.items() if name not in unfit}
    is_own = _has_own_architecture(stated.get("tag_expression", fitting.get("tag_expression", "")))
    if is_own:
        fitting["architecture"] = ""
    architecture = stated.get("architecture") or fitting.get("architecture", NO_ARCHITECTURE)
    is_x86 = architecture == "x86_64"  # where a level and features exclude each other
    replaces_level = is_x86 and stated.get("cpu_features")
    if replaces_level or fitting.get("cpu_level") not in LEVELS.get(architecture, ()):
        fitting.pop("cpu_level", None)
    has_level = stated.get("cpu_level") or "cpu_level" in fitting
    if is_own or (is_x86 and has_level) or architecture != defaults.get("architecture", architecture):
        fitting.pop("cpu_features", None)
    return fitting


def find_conflicts(asked: Mapping[str, Any]) -> Iterator[Conflict]:
    """What a submission must not state, or leave out, by attribute; of a job that is complete."""
    if not asked.get("cpu_work_db12") and not asked.get("wall_time"):
        yield "cpu_work_db12", "is missing, and so is wall_time: one of the two is needed"
    yield from _check_architecture(asked)
    yield from _check_gpus(asked)
    expression = asked.get("tag_expression", "")
    for tag in sorted(tag_expression.list_tags(expression)) if expression else ():
        for field, pattern in _OF_FIELDS.items():
            if pattern.fullmatch(tag):
                yield "tag_expression", f"{tag}: has a field of its own, {field}"


def architecture_number(name: str) -> int:
    """The number of a GPU's architecture such as `sm_89`, by which they are compared; 0: it is none."""
    found = _SM.fullmatch(name)
    return int(found[1]) if found else 0


def is_version(text: str) -> bool:
    """Whether a text is a version of up to three numbers."""
    return _VERSION.fullmatch(text) is not None


def version_number(version: str) -> int:
    """A number by which versions of up to three parts are compared; 0: none."""
    parts = [int(part) for part in version.split(".") if part]
    return sum(part * 10_000 ** (2 - place) for place, part in enumerate(parts))


def format_version(number: int) -> str:
    """The version of a number of `version_number`, with two parts at least."""
    major, rest = divmod(number, 10_000**2)
    minor, patch = divmod(rest, 10_000)
    return f"{major}.{minor}" + (f".{patch}" if patch else "")


def _check_architecture(asked: Mapping[str, Any]) -> Iterator[Conflict]:
    name, level, features = (asked.get(each) for each in ("architecture", "cpu_level", "cpu_features"))
    if _has_own_architecture(asked.get("tag_expression", "")):
        stated = {"architecture": name, "cpu_level": level, "cpu_features": ", ".join(features or ())}
        for attribute, value in stated.items():
            if value:
                yield attribute, f"{value}: the tags require an architecture as well, only one may"
        return
    if not name or name == NO_ARCHITECTURE:
        yield "architecture", "is missing, and the VO has no default: x86_64 or aarch64, or a tag arch:NAME"
        return
    levels = LEVELS.get(name)
    if levels is None:
        return  # kept, for a release that knows it
    if level and level not in levels:
        yield "cpu_level", f"{level} is none of {name}, allowed are {', '.join(levels)}"
    elif name == "x86_64" and level and features:
        yield "cpu_features", f"are stated beside the level {level}: a job states one of the two"
    elif not level and not (features and name == "x86_64"):
        yield "architecture", f"{name} needs a level, and the VO has no default: {', '.join(levels)}"


def _check_gpus(asked: Mapping[str, Any]) -> Iterator[Conflict]:
    least, most = asked.get("gpus") or 0, asked.get("gpus_max")
    details = [each.name for each in DETAILS]
    if most and asked.get("gpus") is None:
        yield "gpus", f"is missing beside at most {most}; 0 also allows pilots without any"
    if most is not None and least > most:
        yield "gpus_max", f"{most} is less than {least}, which it requires"
    known = (asked.get("gpu_vendor") or GPU_VENDORS[0]) in GPU_VENDORS
    if least and known:
        for name in details[:2]:
            if not asked.get(name):
                yield name, "is missing: a job with GPUs states it"
    elif most == 0:
        for name in details:
            if asked.get(name):
                yield name, f"{asked[name]}: the job has no GPU, state how many it requires"
    if known and (model := asked.get("gpu_architecture")) and not architecture_number(model):
        yield "gpu_architecture", f"{model}, allowed is sm_ and a number, such as sm_89"


def list_unknown_tags(expression: str, known: Collection[str]) -> Iterator[tuple[str, str | None]]:
    """The tags with a reserved prefix whose word is none of its own, each with the one probably meant.

    `known` are further tags that a VO uses.
    """
    reserved = {f"{prefix}:{word}" for prefix, words in RESERVED.items() for word in words}
    words = reserved.union(known, {CONTAINERS})
    for tag in sorted(tag_expression.list_tags(expression) - words):
        prefix = tag.partition(":")[0]
        if tag != prefix and prefix in RESERVED:
            yield tag, did_you_mean(tag, sorted(each for each in words if each.startswith(f"{prefix}:")))


def _has_own_architecture(expression: str) -> bool:
    """Whether the tags require an architecture that has no field."""
    return bool(expression) and tag_expression.requires_one(expression, _is_architecture)


def _is_architecture(tag: str) -> bool:
    return tag.startswith(_OTHER_ARCHITECTURE)
