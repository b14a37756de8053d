"""Reader of `Operations`: the options of each VO merged over the defaults."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from cs_config.cache import derived
from cs_config.options.options import VoOptions as Operations
from cs_config.source import sections
from cs_config.source.sections import Leaf, Section, find_line, merge_sections, model_section
from cs_config.tree.address import NAME, NAME_ALLOWED, is_slip
from cs_config.tree.configuration import Configuration
from requirements.errors import InvalidInput, Problem
from requirements.values import fold

#: The section of the defaults.
DEFAULTS = "Defaults"


def options_for(config: Configuration, vo: str | None) -> Operations:
    """The effective options of a VO; the defaults for None, and for a VO without options of its own."""
    if vo is None:
        return config.default_operations
    return config.vo_operations.get(fold(vo), config.default_operations)


@derived
def managed_types(config: Configuration) -> frozenset[tuple[str | None, frozenset[str]]]:
    """The job types that only job managers handle, of VOs that differ, and of all others (None)."""
    common = config.default_operations.managed_types
    own = ((vo, each.managed_types) for vo, each in config.vo_operations.items())
    return frozenset({(None, common), *((vo, types) for vo, types in own if types != common)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOperations:
    """The options of a configuration, and what is wrong with them."""

    defaults: Operations
    of_vos: Mapping[str, Operations]  #: by VO in lower case
    problems: Sequence[Problem] = ()

    @property
    def every(self) -> list[Operations]:
        """The defaults, and the options of each VO."""
        return [self.defaults, *self.of_vos.values()]


def read_operations(section: Section, file: str, earlier: Configuration | None) -> ReadOperations:
    """Read the options; those that an earlier version has in the same words are not read again."""
    if earlier is not None and earlier.has_section("Operations", section):
        return ReadOperations(defaults=earlier.default_operations, of_vos=earlier.vo_operations)
    problems = list(_misplaced(section, file))
    defaults = section.section(DEFAULTS)
    common = _validated(defaults, f"Operations/{DEFAULTS}", file, problems)
    found: dict[str, Operations] = {}
    wrong_already = {(problem.line, problem.message) for problem in problems}
    for vo, own in section.sections():
        if vo == DEFAULTS:
            continue
        new: list[Problem] = []
        found[fold(vo)] = _validated(merge_sections(own, defaults), f"Operations/{vo}", file, new)
        # Problems of inherited values are reported once, at the defaults.
        problems += (problem for problem in new if (problem.line, problem.message) not in wrong_already)
    return ReadOperations(defaults=common, of_vos=found, problems=problems)


def _misplaced(section: Section, file: str) -> Iterator[Problem]:
    for name, entry in section.entries.items():
        path = f"Operations/{name}"
        if isinstance(entry, Leaf) and entry.value is not None:
            message = "options stand in a section Defaults or in one named after a VO"
            yield Problem(path=path, message=message, file=file, line=entry.line)
        elif not NAME.fullmatch(name):
            message = f"{name!r} is not a valid name of a VO, allowed are {NAME_ALLOWED}"
            yield Problem(path=path, message=message, file=file, line=entry.line)
        elif is_slip(name, DEFAULTS) or (fold(name) == fold(DEFAULTS) and name != DEFAULTS):
            yield Problem(path=path, message="unknown level", suggestion=DEFAULTS, file=file, line=entry.line)


def _validated(section: Section, path: str, file: str, problems: list[Problem]) -> Operations:
    try:
        options = Operations.model_validate(_model_input(section))
        _ = options.job_description.declarations
    except ValidationError as error:
        found = sections.list_problems(
            error, Operations, section, path=path, file=file, place=_place_in_section
        )
        problems += (_explain_declaration(problem, f"{path}/JobDescription") for problem in found)
    except InvalidInput:
        pass  # names that differ in case only: reported by the reader already
    else:
        wrong = list(options.job_description.wrong_defaults())
        refused = [
            (name, f"{message}; jobs that leave {name} out would be refused") for name, message in wrong
        ]
        unfit = () if wrong else options.job_description.unfit_default_rules()
        refused += options.job_description.excess_defaults()
        faults = [_wrong_default(name, message, section, path, file) for name, message in (*refused, *unfit)]
        problems += faults
        if not faults:
            return options
    return Operations()


def _wrong_default(name: str, message: str, section: Section, path: str, file: str) -> Problem:
    """Describe a default out of bounds: possibly the built-in one, if only bounds are configured."""
    place = ("JobDescription", name, "default")
    return Problem(
        path="/".join((path, *place)),
        message=message,
        file=file,
        line=find_line(section, place),
    )


def _explain_declaration(problem: Problem, described: str) -> Problem:
    """Add a hint to the problem of a name that is declared by a plain value."""
    if problem.message != "unknown option" or problem.path.rpartition("/")[0] != described:
        return problem
    message = "unknown option; to declare a name, make it a section: {type: number, unit: MB}"
    return replace(problem, message=message)


def _model_input(section: Section) -> dict[str, object]:
    """The section as model input: declared names separate from options, lists as tuples."""
    described = section.section("JobDescription")
    tree = model_section(section)
    if isinstance(section.entries.get("JobDescription"), Section):
        options = model_section(Section(described.line, dict(described.leaves())))
        options["Declared"] = {name: model_section(below) for name, below in described.sections()}
        tree["JobDescription"] = options
    return tree


def _place_in_section(location: tuple[str, ...]) -> tuple[str, ...]:
    if location[:2] == ("JobDescription", "Declared"):
        return "JobDescription", *location[2:]
    return location
