"""Jobs of DIRAC and DiracX as documents of the match-making specification, and back.

DiracX takes jobs as JDL (`POST /api/jobs/jdl`), with DIRAC's keywords. What DIRAC has no keyword for is
written with ours: both keep keywords that they do not know, and match without them.

Source: DiracX, `diracx.logic.jobs.submission`, and what its branch for CWL writes for cores, memory and GPUs;
DIRAC 9.1, `JobDescription.py`; the match-making specification, v0.2, section 5.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from optimizers.description import document
from pilotage.plugins.dirac import dialect
from requirements.values import as_number, fold

#: DIRAC's keyword of a field, where it has one; else ours.
KEYWORDS: Final[Mapping[str, str]] = {
    **document.FIELDS,
    "cpu_work_db12": "CPUTime",
    "cpu/ram_mb/limit/overhead": "MaxRAM",
    "cpu/ram_mb/limit/per_core": "MaxRAMPerCore",
}
#: Keywords by which DIRAC matches; those of other fields it only keeps.
MATCHED: Final = frozenset(
    {"CPUTime", "MinNumberOfProcessors", "MaxNumberOfProcessors", "MinRAM", "MaxRAM", "Site", "BannedSites"}
)
#: Fields of text, which may look like numbers.
_TEXTS: Final = frozenset({"gpu/min_runtime_version", "tags"})
_LISTS: Final = frozenset({"cpu/architecture/required_features"})
_FIELDS: Final = {keyword: path for path, keyword in KEYWORDS.items() if keyword != "CPULevel"}
_NAME, _LEVELS = "cpu/architecture/name", ("cpu/architecture/level", "cpu/architecture/profile")
_LEAST, _MOST = "cpu/num_cores/min", "cpu/num_cores/max"
#: Platforms as LHCb names them: processor and operating system.
_PLATFORM: Final = re.compile(r"(x86_64(?:_v[2-9])?|armv\d\.\d_a)-(any|[a-z]+\d+)")
_CORE_TAG: Final = re.compile(r"(\d+)Processors|MultiProcessor")
_ATOM: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]*")
_LIMIT: Final = "cpu/ram_mb/limit/"
_OS: Final = "os:"
_WHOLE_NODE: Final = "WholeNode"
#: The tag of jobs for GPUs, and what it says: DIRAC and CWL mean CUDA, of any architecture.
GPU_TAG: Final = "GPU"
_ANY_GPU: Final = {"gpu/count/min": 1, "gpu/vendor": "nvidia", "gpu/arch": "sm_10"}

#: Names of a document beside the keywords of a description.
_TOP: Final = frozenset({document.REQUIREMENTS, *document.SITES})

#: Fields of requirements by their path.
Fields = dict[str, Any]


def read_jdl(text: str) -> dict[str, Any]:
    """The description with a document of a JDL of DIRAC or DiracX.

    Raises:
        InvalidJob: The text is no JDL.
    """
    stated = dialect.read_jdl(text)
    foreign = stated.pop(dialect.FOREIGN, {})
    keywords: dict[str, Any] = {**stated, **(foreign if isinstance(foreign, Mapping) else {})}
    sites = {name: keywords.pop(keyword, None) for name, keyword in document.SITES.items()}
    fields = dict(_take_fields(keywords))
    tags = [str(tag) for name in ("Tags", "Tag") for tag in _list_values(keywords.pop(name, ()))]
    tags += _read_platform(keywords, fields)
    if _WHOLE_NODE in tags:
        keywords["Tags"] = [_WHOLE_NODE]
    _read_cores(tags, keywords, fields)
    if GPU_TAG in tags and "gpu/count/min" not in fields:
        fields |= _ANY_GPU
    _read_tags([tag for tag in tags if tag not in (_WHOLE_NODE, GPU_TAG)], fields)
    _add_limit(fields)
    named = {name: found for name, value in sites.items() if (found := _list_sites(value))}
    return {**keywords, document.REQUIREMENTS: nest(fields), **named}


def _take_fields(keywords: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields of keywords that have one."""
    for keyword in [each for each in keywords if each in _FIELDS]:
        path, value = _FIELDS[keyword], keywords.pop(keyword)
        if path in _LISTS:
            yield path, _list_values(value)
        else:
            yield path, value if path in _TEXTS or isinstance(value, list) else as_number(value)
    if (level := keywords.pop("CPULevel", None)) is not None:
        yield _LEVELS[str(level).startswith("armv")], level


def _list_sites(value: object) -> list[Any]:
    sites = _list_values(value)
    return [] if "any" in map(fold, map(str, sites)) else sites


def _list_values(value: object) -> list[Any]:
    if value in (None, "", ()):
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _read_platform(keywords: dict[str, Any], fields: Fields) -> list[str]:
    """Read the processor of a platform; returns the tag of its operating system."""
    found = split_platform(str(keywords.get("Platform", "")))
    if found is None:
        return []
    del keywords["Platform"]
    name, level, tags = found
    fields |= {_NAME: name, _LEVELS[name == "aarch64"]: level}
    return tags


def split_platform(platform: str) -> tuple[str, str, list[str]] | None:
    """Architecture, level and tag of the operating system of a platform; None: it has another form."""
    found = _PLATFORM.fullmatch(platform)
    if found is None:
        return None
    processor, system = found.groups()
    tags = [] if system == "any" else [_OS + system]
    if processor.startswith("arm"):
        return "aarch64", processor.replace("_", "-"), tags
    version = processor.removeprefix("x86_64").removeprefix("_") or "v1"
    return "x86_64", f"x86-64-{version}", tags


def _read_cores(tags: list[str], keywords: dict[str, Any], fields: Fields) -> None:
    """Cores, of the number, else the range, else the tags."""
    of_tags = [found for tag in list(tags) if (found := _CORE_TAG.fullmatch(tag))]
    for found in of_tags:
        tags.remove(found[0])
    number = keywords.pop("NumberOfProcessors", None)
    counts = [int(found[1]) for found in of_tags if found[1]]
    if number is not None:
        fields |= dict.fromkeys((_LEAST, _MOST), as_number(str(number)))
    elif not {_LEAST, _MOST} & fields.keys() and of_tags:
        fields |= dict.fromkeys((_LEAST, _MOST), max(counts)) if counts else {_LEAST: 2}


def _read_tags(tags: list[str], fields: Fields) -> None:
    expression = fields.pop("tags", None)
    every = [*tags, f"({expression})" if expression and tags else expression]
    if tags or expression is not None:
        fields["tags"] = " & ".join(filter(None, every))


def _add_limit(fields: Fields) -> None:
    """A limit of 0 where the request is 0: the specification has it stated there."""
    memory = {path for path in fields if path.startswith("cpu/ram_mb/")}
    for part in ("overhead", "per_core") if memory else ():
        if not fields.get(f"cpu/ram_mb/request/{part}"):
            fields.setdefault(f"{_LIMIT}{part}", 0)


def nest(fields: Fields) -> dict[str, Any]:
    """The sections of fields by path."""
    nested: dict[str, Any] = {}
    for path, value in fields.items():
        *sections, name = path.split("/")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return nested


def write_jdl(description: Mapping[str, Any]) -> str:
    """The JDL for DIRAC or DiracX of a description with a document.

    Raises:
        InvalidJob: DIRAC's parser cannot read a value.
    """
    return dialect.format_jdl(_list_keywords(description))


def list_unmatched(description: Mapping[str, Any]) -> list[str]:
    """The keywords of its JDL that DIRAC keeps, but does not match by."""
    ours = {*KEYWORDS.values()} - MATCHED
    return sorted(ours.intersection(_list_keywords(description)))


def _list_keywords(description: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a description, those of its document with them."""
    others = {name: value for name, value in description.items() if name not in _TOP}
    fields = dict(_walk(description.get(document.REQUIREMENTS) or {}, ""))
    keywords = {document.SITES[name]: description[name] for name in document.SITES if description.get(name)}
    tags = [*_list_values(others.pop("Tags", ())), *_write_tags(fields)]
    if fields.get("gpu/count/min"):
        tags.append(GPU_TAG)
        if {name: value for name, value in fields.items() if name.startswith("gpu/")} == _ANY_GPU:
            fields = {name: value for name, value in fields.items() if name not in _ANY_GPU}
    keywords |= _write_platform(fields, tags)
    keywords |= _write_cores(fields)
    if tags:
        keywords["Tags"] = tags
    written = [path for path in KEYWORDS if path in fields and (fields[path] or not path.startswith(_LIMIT))]
    keywords |= {KEYWORDS[path]: fields[path] for path in written}
    return others | keywords


def _walk(section: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        here = f"{path}/{name}" if path else name
        if isinstance(value, Mapping):
            yield from _walk(value, here)
        elif value is not None and here in KEYWORDS:
            yield here, value


def _write_tags(fields: Fields) -> list[str]:
    """The tags of an expression that requires all of them; any other one stays."""
    atoms = [each.strip() for each in str(fields.get("tags", "")).split("&")]
    if not all(map(_ATOM.fullmatch, atoms)):
        return []
    del fields["tags"]
    return atoms


def _write_platform(fields: Fields, tags: list[str]) -> Fields:
    level = next((fields[path] for path in _LEVELS if path in fields), None)
    if level is None:
        return {}
    processor = str(level).replace("x86-64-v", "x86_64_v").replace("-a", "_a").removesuffix("_v1")
    systems = [tag for tag in tags if tag.startswith(_OS)]
    system = systems[0].removeprefix(_OS) if len(systems) == 1 else "any"
    if _PLATFORM.fullmatch(f"{processor}-{system}") is None:
        return {}
    for path in (_NAME, *_LEVELS):
        fields.pop(path, None)
    if system != "any":
        tags.remove(systems[0])
    return {"Platform": f"{processor}-{system}"}


def _write_cores(fields: Fields) -> Fields:
    if _LEAST in fields and fields[_LEAST] == fields.get(_MOST):
        del fields[_MOST]
        return {"NumberOfProcessors": fields.pop(_LEAST)}
    return {}
