"""The document of DiracX's match-making specification in a description: requirements, sites, banned sites.

Each field is a keyword of descriptions, so a document and a JDL of the same job have the same requirement
class. The document is stored as it is written.

Source: the match-making specification of DiracX, v0.2, section 5.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, TypeGuard

from cs_config.options import bounds
from requirements.diracx.cpu_levels import LEVELS
from requirements.diracx.specification import DOCUMENT, GPU_VENDORS
from requirements.errors import Problem, did_you_mean
from requirements.quantities import DETAILS, QUANTITIES
from requirements.values import MAX_INTEGER, fold

#: Top-level names of a document.
REQUIREMENTS: Final = DOCUMENT
SITES: Final[Mapping[str, str]] = {"sites": "Site", "banned_sites": "BannedSites"}
#: The keyword of each field.
FIELDS: Final[Mapping[str, str]] = {
    "system/name": "System",
    "cpu_work_db12": "CPUWorkDB12",
    "wall_time": "WallTime",
    "cpu/num_cores/min": "MinNumberOfProcessors",
    "cpu/num_cores/max": "MaxNumberOfProcessors",
    "cpu/ram_mb/request/overhead": "MinRAM",
    "cpu/ram_mb/request/per_core": "MinRAMPerCore",
    "cpu/architecture/name": "Architecture",
    "cpu/architecture/level": "CPULevel",
    "cpu/architecture/profile": "CPULevel",
    "cpu/architecture/required_features": "CPUFeatures",
    **{each.field: each.keyword for each in DETAILS},
    **{f"{each.field}/min": each.keyword for each in QUANTITIES},
    **{f"{each.field}/max": f"Max{each.keyword}" for each in QUANTITIES},
    "io/scratch_mb": "MinScratch",
    "tags": "TagExpression",
}
_LIMIT: Final = "cpu/ram_mb/limit"
_REQUEST: Final = "cpu/ram_mb/request"
#: The keywords of what is requested of the parts of an amount of memory.
MEMORY: Final[Mapping[str, str]] = {each: FIELDS[f"{_REQUEST}/{each}"] for each in ("overhead", "per_core")}
#: Fields that are checked and kept, but are no requirement.
_KEPT: Final = tuple(f"{_LIMIT}/{part}" for part in MEMORY)
_AMOUNT: Final = f"from 0 to {MAX_INTEGER}"
_LEAVES: Final = (*FIELDS, *_KEPT)
_SECTIONS: Final = frozenset(
    "/".join(parts[:depth])
    for path in _LEAVES
    for parts in [path.split("/")]
    for depth in range(1, len(parts))
)
_TOP: Final = frozenset(path.split("/")[0] for path in _LEAVES)
#: The field that selects what else a section has, and its values that we know.
_BRANCHES: Final[Mapping[str, tuple[str, frozenset[str]]]] = {
    "cpu/architecture": ("name", frozenset(LEVELS)),
    "gpu": ("vendor", frozenset(GPU_VENDORS)),
}
#: Keyword of the level of an architecture, whose field is another one for each.
LEVEL: Final = "CPULevel"
#: The level of each architecture, by its field; the other one is not for it.
_LEVELS: Final = {"x86_64": "level", "aarch64": "profile"}
#: Sections and lists within one another, also of a branch that is only kept.
_DEEPEST: Final = 20
#: The problem's code for programs, as the specification has it.
INVALID: Final = "invalid_spec"


def is_document(name: str, value: object, *, is_required: bool, is_stored: bool) -> bool:
    """Whether the value of `requirements` is a document, not a record of Requirements.

    A document has sections, which no record has. Without any it is one where the VO requires documents; a
    stored description has a record under another spelling.
    """
    if not isinstance(value, Mapping):
        return False
    if any(isinstance(each, Mapping) for each in value.values()):
        return True
    return (is_stored and name == REQUIREMENTS) or (is_required and bool(value) and is_like_document(value))


def is_like_document(names: Iterable[str]) -> bool:
    """Whether all names are those of fields or sections of a document."""
    return _TOP.issuperset(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document as it is written, and the attributes of a description that it states."""

    written: Mapping[str, object]  #: by its top-level names; plain JSON
    attributes: frozenset[str]


@dataclass(slots=True)
class DocumentReader:
    """Finds the fields of a document; collects the problems."""

    problems: list[Problem] = field(default_factory=list)
    plain: dict[str, object] = field(default_factory=dict)  #: the document as plain JSON
    misplaced: set[str] = field(default_factory=set)  #: keywords whose field is not for the architecture

    def read(self, written: Mapping[str, object]) -> Mapping[str, tuple[str, object]]:
        """The keyword and the value of each stated field, by its path."""
        try:
            self.plain = {
                name if name in SITES else REQUIREMENTS: to_plain(value) for name, value in written.items()
            }
        except ValueError as error:
            self.report("", str(error))
            return {}
        requirements = self.plain[REQUIREMENTS]
        sections = requirements if isinstance(requirements, Mapping) else {}
        found = dict(self._walk(sections, ""))
        self._check_limit(found)
        self._check_level(found)
        self._check_quantities(sections, found)
        most = found.get("cpu/num_cores/max")
        if isinstance(most, int) and most > bounds.PROCESSORS:  # no pilot has more
            found["cpu/num_cores/max"] = bounds.PROCESSORS
        sites = {name: self.plain[name] for name in SITES if self.plain.get(name) is not None}
        if len(sites) > 1:
            message = "are stated beside sites: a job states one of the two"
            self.problems.append(Problem(path="banned_sites", message=message, code=INVALID))
        fields = {f"{REQUIREMENTS}/{path}": (FIELDS[path], found[path]) for path in found if path in FIELDS}
        return fields | {name: (SITES[name], value) for name, value in sites.items()}

    def report(self, path: str, message: str, suggestion: str | None = None) -> None:
        """Add a problem at a field."""
        where = f"{REQUIREMENTS}/{path}".rstrip("/")
        self.problems.append(Problem(path=where, message=message, suggestion=suggestion, code=INVALID))

    def _walk(self, section: Mapping[str, object], path: str) -> Iterator[tuple[str, object]]:
        if self._is_unknown_branch(section, path):
            name = _BRANCHES[path][0]
            section = {each: value for each, value in section.items() if each in (name, "count")}
        for name, value in section.items():
            here = f"{path}/{name}" if path else name
            if value is None:
                continue
            if here in _LEAVES:
                yield here, value
            elif here not in _SECTIONS:
                self._report_unknown(here, path, name)
            elif isinstance(value, Mapping):
                yield from self._walk(value, here)
            else:
                self.report(here, f"{value!r:.60}, a section is needed here")

    def _report_unknown(self, here: str, section: str, name: str) -> None:
        start = f"{section}/" if section else ""
        names = {each.removeprefix(start).split("/")[0] for each in _LEAVES if each.startswith(start)}
        self.report(here, f"is unknown, there are {', '.join(sorted(names))}", did_you_mean(name, names))

    def _is_unknown_branch(self, section: Mapping[str, object], path: str) -> bool:
        """Whether a release that knows it has to read the section: it is kept, and the job waits."""
        name, known = _BRANCHES.get(path, ("", frozenset[str]()))
        value = section.get(name)
        return isinstance(value, str) and fold(value.strip()) not in known

    def _check_limit(self, found: Mapping[str, Any]) -> None:
        is_needed = any(path.startswith((_REQUEST, _LIMIT)) for path in found)
        for part in MEMORY:
            most = found.get(f"{_LIMIT}/{part}")
            if most is not None and not is_amount(most):
                self.report(f"{_LIMIT}/{part}", f"{most!r:.60}, allowed is a whole number {_AMOUNT}")
            elif most is None and is_needed and not found.get(f"{_REQUEST}/{part}"):
                self.report(
                    f"{_LIMIT}/{part}", "is missing: where the request is 0, no limit follows from it"
                )

    def _check_quantities(self, sections: Mapping[str, object], found: Collection[str]) -> None:
        for each in QUANTITIES:
            name = each.field.partition("/")[0]
            is_there = isinstance(sections.get(name), Mapping)
            if is_there and not any(path.startswith(f"{name}/") for path in found):
                self.report(each.field, f"is missing; a job without any has no section {name}")

    def _check_level(self, found: dict[str, Any]) -> None:
        name = found.get("cpu/architecture/name")
        wanted = _LEVELS.get(fold(name.strip())) if isinstance(name, str) else None
        for other in _LEVELS.values():
            path = f"cpu/architecture/{other}"
            if wanted and other != wanted and path in found:
                self.report(path, f"is not for {name}, which has {wanted}")
                self.misplaced.add(FIELDS[path])
                del found[path]


def is_amount(value: object) -> TypeGuard[float]:
    """Whether a value is an amount of memory: a whole number of MB."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= MAX_INTEGER and (isinstance(value, int) or value.is_integer())


def path_of(keyword: str) -> str:
    """The field of a document for a keyword; the keyword itself if there is none."""
    found = next((path for path, name in FIELDS.items() if name == keyword), None)
    if found is not None:
        return f"{REQUIREMENTS}/{found}"
    return next((name for name, site in SITES.items() if site == keyword), keyword)


#: The names down to a field of a stored description, from the top.
FieldPath = tuple[str, ...]


def find_place(body: Mapping[str, object], keyword: str) -> FieldPath:
    """Where the document of a stored description states a keyword; empty: it does not, or there is none."""
    if not isinstance(body.get(REQUIREMENTS), Mapping):
        return ()
    places: list[FieldPath] = [(REQUIREMENTS, *path.split("/")) for path in FIELDS if FIELDS[path] == keyword]
    places += [(name,) for name in SITES if SITES[name] == keyword]
    return next((each for each in places if read_field(body, each) is not None), ())


def read_stated(body: Mapping[str, object], keyword: str) -> object:
    """What the document of a stored description states for a keyword; None: nothing."""
    place = find_place(body, keyword)
    return read_field(body, place) if place else None


def read_field(body: Mapping[str, object], place: FieldPath) -> object:
    """The value at a place; None: there is none."""
    found: object = body
    for name in place:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def find_new_place(body: Mapping[str, object], place: FieldPath) -> FieldPath:
    """Where a new value of a field is written: the level of each architecture has a field of its own."""
    name = read_field(body, (*place[:-1], "name"))
    level = _LEVELS.get(fold(name.strip())) if isinstance(name, str) else None
    return (*place[:-1], level) if level and FIELDS.get("/".join(place[1:])) == LEVEL else place


def write_field(body: Mapping[str, object], place: FieldPath, value: object) -> dict[str, object]:
    """A stored description with another value at a place; None: without it, and sections that are empty then.

    Without any section a document would be none.
    """
    written = _write(body, place, value)
    if place[0] == REQUIREMENTS and value is None:
        left = written.get(REQUIREMENTS, {})
        if isinstance(left, Mapping) and not any(isinstance(each, Mapping) for each in left.values()):
            return {**written, REQUIREMENTS: {**left, "cpu": {}}}
    return written


def _write(body: Mapping[str, object], place: FieldPath, value: object) -> dict[str, object]:
    name, *rest = place
    if rest:
        section = body.get(name)
        value = _write(section if isinstance(section, Mapping) else {}, tuple(rest), value) or None
    kept = {each: old for each, old in body.items() if each != name or value is not None}
    return kept if value is None else {**kept, name: value}


def place_limit(part: str) -> FieldPath:
    """The place of a part of the limit of memory."""
    return (REQUIREMENTS, *_LIMIT.split("/"), part)


def find_grown_limits(
    before: Mapping[str, object], after: Mapping[str, object], defaults: Mapping[str, object]
) -> Iterator[tuple[FieldPath, int]]:
    """The limits of memory that grow with what a changed description requests, and their new numbers.

    A lower one than the request is refused, and a job that was ended at its limit would reach it again. A
    part of which nothing is requested grows as the other one. `defaults` are the VO's, by keyword.
    """
    requests = {
        part: tuple(_find_request(body, part, defaults) for body in (before, after)) for part in MEMORY
    }
    if not all(is_amount(each) for request in requests.values() for each in request):
        return
    together = max(filter(all, requests.values()), key=lambda each: each[1] / each[0], default=(1, 1))
    for part, request in requests.items():
        old, new = request if any(request) else together
        most: Any = read_field(after, place_limit(part))
        if is_amount(most) and (grown := max(request[1], ceil(most * new / old) if old else most)) > most:
            yield place_limit(part), grown


def _find_request(body: Mapping[str, object], part: str, defaults: Mapping[str, object]) -> Any:
    """The memory that a stored description requests, in its document or beside it, or by default."""
    stated = {each: body.get(each, read_stated(body, each)) for each in MEMORY.values()}
    is_default = all(each is None for each in stated.values())
    return (defaults if is_default else stated).get(MEMORY[part]) or 0


def to_plain(value: object, depth: int = 0) -> object:
    """A value as plain JSON; raises ValueError for anything else, such as an expression."""
    if depth > _DEEPEST:
        raise ValueError(f"is nested too deeply, allowed are {_DEEPEST} levels")
    match value:
        case Mapping():
            return {str(name): to_plain(each, depth + 1) for name, each in value.items()}
        case list() | tuple():
            return [to_plain(each, depth + 1) for each in value]
        case None | bool() | int() | float() | str():
            return value
    raise ValueError(f"{value!r:.60} is no value of a document")
