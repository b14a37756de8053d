"""Validation: converts a text to a configuration, or to the list of its problems."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from cs_config import gc_pause
from cs_config.errors import ConfigError, one_problem
from cs_config.options import bounds, keywords, operations, place_limits, registry
from cs_config.options.options import VoOptions
from cs_config.options.place_limits import RunningLimit
from cs_config.source import yaml_reader
from cs_config.source.sections import Leaf, LineOrigins, Section, as_list
from cs_config.source.yaml_reader import YamlReading
from cs_config.tree import expiry, resources
from cs_config.tree.configuration import Configuration
from cs_config.tree.inheritance import Level
from cs_config.tree.resources import ResourceReader
from requirements.errors import Problem, did_you_mean
from requirements.values import advise_quotes, fold

#: The sections at the top.
TOP = ("Resources", "Operations", "Registry")
_RESOURCES = ("Sites", "Computing")
_COMPUTING = ("OSCompatibility", expiry.SETTING)
#: Options with limits on jobs of a kind, most warnings of them, most unknown names that are compared with the
#: known ones (which takes most of the time), and attributes whose values must be known.
_LIMITS = ("RunningLimit", "MatchingDelay")
_MOST_LIMITS = bounds.NAMED
_MOST_COMPARED = 100
_MUST_BE_KNOWN = ("VO", "Site")
#: Names among those with a value instead of a section.
_VALUES = (expiry.SETTING,)


#: Paths of values that may be too long for expressions, or beyond a bound that an earlier release did not
#: have, since it has stored them; None: any.
Kept = Collection[str] | None
NOTHING_KEPT: Kept = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of reading a text."""

    errors: tuple[Problem, ...]  #: any error keeps the text from becoming a version
    warnings: tuple[Problem, ...]  #: allowed, but probably a mistake
    configuration: Configuration | None  #: None if there are errors


def parse(
    text: str | bytes | YamlReading,
    file: str = "config",
    version: int = 0,
    author: str = "",
    origins: LineOrigins | None = None,
    *,
    kept: Kept = NOTHING_KEPT,
    earlier: Configuration | None = None,
) -> Configuration:
    """The configuration of a text, which may have been read; ConfigError has every problem.

    `origins`: of an edited text. `earlier`: a version whose options and registry are used where the text has
    the same.
    """
    found = report(text, file, version, author, origins, kept=kept, earlier=earlier)
    if found.configuration is None:
        raise ConfigError(found.errors)
    return found.configuration


def load_file(path: Path) -> Configuration:
    """The configuration in a file, which may be in force already."""
    return parse(read_bytes(path), path.name, kept=None)


def read_bytes(path: Path) -> bytes:
    """The content of a configuration file; ConfigError if it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(yaml_reader.MAX_BYTES + 1)
    except OSError as error:
        raise one_problem(str(path), f"cannot be read: {error.strerror or error}") from error


@gc_pause.pause_collection()
def report(
    text: str | bytes | YamlReading,
    file: str,
    version: int = 0,
    author: str = "",
    origins: LineOrigins | None = None,
    *,
    kept: Kept = NOTHING_KEPT,
    earlier: Configuration | None = None,
) -> Report:
    """All errors and warnings of a text, and the configuration if there are no errors."""
    reading = text if isinstance(text, YamlReading) else yaml_reader.read_yaml(text, file)
    root = reading.root
    origins = origins or LineOrigins.from_file(file)
    options = operations.read_operations(root.section("Operations"), file, earlier)
    of_registry = root.section("Registry")
    if earlier is not None and earlier.has_section("Registry", of_registry):
        entries, wrong_entries = earlier.registry, list[Problem]()
    else:
        entries, wrong_entries = registry.read_registry(of_registry, file)
    compatibility, wrong_platforms = resources.read_platforms(root, file)
    dynamic, wrong_names = expiry.read_dynamic(root, file)
    declared = _declared(options.every)
    tree = resources.read_resources(root, file, text=reading.text, origins=origins, declared=declared)
    seen = tree.parameters
    wrong_levels = _unknown_levels(root, file)
    misspelled_vos = _misspelled_vos(root, entries.all_vos() | seen.vos, file)
    vos = frozenset({*seen.vos, *entries.all_vos(), *options.of_vos})
    described = [each.job_description for each in options.every]
    known = {
        "VO": vos,
        "Site": {*root.section("Resources").section("Sites").entries, place_limits.ALL_SITES},
        "OwnerGroup": entries.groups.keys(),
        "JobType": {name for each in described for name in each.allowed_job_types},
    }
    lone_times = expiry.warn_of_lone_times(tree.nodes.values())
    idle_limits = islice(_warn_of_idle_limits(root, known, file), _MOST_LIMITS)
    large_floors = _warn_of_large_floors(tree, file)
    new_excesses = [each for each in seen.excesses if kept is not None and each.path not in kept]
    known_excesses = [each for each in seen.excesses if each not in new_excesses]
    numbers = _warn_of_unquoted_defaults(root, file)
    of_vos = (*misspelled_vos, *numbers)
    warnings = (*known_excesses, *seen.warnings, *lone_times, *of_vos, *idle_limits, *large_floors)
    wrong = (*wrong_levels, *options.problems, *wrong_entries, *wrong_platforms, *wrong_names)
    errors = [*reading.problems, *wrong, *seen.errors, *new_excesses]
    if errors:
        errors.sort(key=lambda problem: problem.line or 0)
        return Report(errors=tuple(errors), warnings=warnings, configuration=None)
    configuration = Configuration(
        version=version,
        source=reading.text,
        file=file,
        author=author,
        origins=origins,
        root=root,
        levels=tree.queues,
        nodes=tree.nodes,
        throttles=tree.throttles,
        limits=tuple(tree.limits),
        vos=vos,
        default_operations=options.defaults,
        vo_operations=options.of_vos,
        registry=entries,
        os_compatibility=compatibility,
        dynamic=dynamic,
        warnings=warnings,
        kept_values=frozenset(each.path for each in seen.excesses),
    )
    return Report(errors=(), warnings=warnings, configuration=configuration)


def _declared(options: Iterable[VoOptions]) -> frozenset[str]:
    """Folded names that requirements or their resources are declared to have."""
    declarations = (each.job_description.declarations.declared for each in options)
    names = ((each.name, each.resource) for declared in declarations for each in declared)
    return frozenset(fold(name) for pair in names for name in pair if name)


def _misspelled_vos(root: Section, named: frozenset[str], file: str) -> Iterator[Problem]:
    """VOs with options whose name is almost that of a VO with resources or groups."""
    for vo, section in root.section("Operations").sections():
        suggestion = None if fold(vo) in named or vo == operations.DEFAULTS else did_you_mean(vo, named)
        if suggestion:
            message = "no resource and no group names this VO"
            path = f"Operations/{vo}"
            yield Problem(path=path, message=message, suggestion=suggestion, file=file, line=section.line)


def _warn_of_unquoted_defaults(root: Section, file: str) -> Iterator[Problem]:
    """Defaults that are numbers with a point where a text is read: their shortest one."""
    for vo, section in root.section("Operations").sections():
        for name, declared in section.section("JobDescription").sections():
            default, keyword = declared.entries.get("default"), keywords.find_keyword(name)
            if not isinstance(default, Leaf) or keyword is None or not keyword.reads_text("1.5"):
                continue
            for number in (each for each in as_list(default.value) if isinstance(each, float)):
                path = f"Operations/{vo}/JobDescription/{name}/default"
                yield Problem(path=path, message=advise_quotes(number), file=file, line=default.line)


def _warn_of_idle_limits(root: Section, known: Mapping[str, Collection[str]], file: str) -> Iterator[Problem]:
    """Limits of a VO or site that nothing names, and those of a group or type with almost a known name."""
    folded = {attribute: set(map(fold, names)) for attribute, names in known.items()}
    similar: dict[tuple[str, str], str | None] = {}
    for attribute, name, path, line in _find_limits(root):
        if not known.get(attribute) or fold(name) in folded[attribute]:
            continue
        if (attribute, name) not in similar and len(similar) < _MOST_COMPARED:
            similar[attribute, name] = did_you_mean(name, known[attribute])
        suggestion = similar.get((attribute, name))
        if suggestion or attribute in _MUST_BE_KNOWN:
            message = f"nothing else in the configuration names this {attribute}"
            yield Problem(path=path, message=message, suggestion=suggestion, file=file, line=line)


def _warn_of_large_floors(tree: ResourceReader, file: str) -> Iterator[Problem]:
    """Floors of a site that are more cores than its queues take, where all of them state how many pilots."""
    floors: Counter[str] = Counter()
    for each in tree.limits:
        if isinstance(each, RunningLimit) and each.floor is not None and each.floor.cores is not None:
            floors[each.scope] += each.floor.cores
    for site, cores in floors.items():
        queues = [levels for address, levels in tree.queues.items() if address.site == site]
        slots = [_find_number(levels, "maxtotaljobs", None) for levels in queues]
        sizes = [_find_number(levels, "numberofprocessors", 1) for levels in queues]
        most = sum(number * size for number, size in zip(slots, sizes, strict=True) if number and size)
        if slots and None not in slots and cores > most:
            message = f"the floors are {cores} cores together, pilots of its queues have {most} at most"
            hint = " (MaxTotalJobs, NumberOfProcessors)"
            yield Problem(path=f"Resources/Sites/{site}/Floors", message=message + hint, file=file, line=None)


def _find_number(levels: Sequence[Level], name: str, default: int | None) -> int | None:
    """A number that the levels of a queue state for all VOs, the deepest first."""
    stated = next((found for level in reversed(levels) if (found := level.plain.get(name))), None)
    return default if stated is None or not isinstance(stated.value, int) else stated.value


def _find_limits(root: Section) -> Iterator[tuple[str, str, str, int]]:
    """Attribute (also `Site`), value, path and line of each limit, delay and floor."""
    places = {
        f"Operations/{vo}/JobScheduling": section.section("JobScheduling")
        for vo, section in root.section("Operations").sections()
    }
    for path, scheduling in places.items():
        for option in _LIMITS:
            for site, entry in scheduling.section(option).entries.items():
                yield "Site", site, f"{path}/{option}/{site}", entry.line
    for site, node in root.section("Resources").section("Sites").sections():
        places[f"Resources/Sites/{site}"] = node
        ces = node.section("CEs").sections()
        places |= {f"Resources/Sites/{site}/CEs/{ce}": below for ce, below in ces}
    for path, place in places.items():
        for option, section in place.sections():
            if option in _LIMITS:
                yield from _list_values(section, f"{path}/{option}")
            elif option == "Floors":
                yield from (
                    ("VO", vo, f"{path}/{option}/{vo}", entry.line) for vo, entry in section.entries.items()
                )


def _list_values(section: Section, path: str) -> Iterator[tuple[str, str, str, int]]:
    for name, below in section.sections():
        if name in place_limits.ATTRIBUTES:
            for value, entry in below.entries.items():
                yield name, value, f"{path}/{name}/{value}", entry.line
        else:
            yield from _list_values(below, f"{path}/{name}")


def _unknown_levels(root: Section, file: str) -> Iterator[Problem]:
    """Unknown sections at the top, and values where sections are needed."""
    resources_section = root.section("Resources")
    for path, section, allowed in (
        ("", root, TOP),
        ("Resources/", resources_section, _RESOURCES),
        ("Resources/Computing/", resources_section.section("Computing"), _COMPUTING),
        ("Registry/", root.section("Registry"), registry.LEVELS),
    ):
        for name, entry in section.entries.items():
            where = Problem(path=f"{path}{name}", message="", file=file, line=entry.line)
            if name not in allowed:
                message = f"unknown level, allowed here are {', '.join(allowed)}"
                yield replace(where, message=message, suggestion=did_you_mean(name, allowed))
            elif isinstance(entry, Leaf) and entry.value is not None and name not in _VALUES:
                yield replace(where, message=f"{entry.value!r:.60} is a value, a section is needed here")
