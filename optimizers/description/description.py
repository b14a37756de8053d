"""Description of one job, parsed and checked against the configuration of its VO.

`MY.X` in an expression refers to keyword X of the same description.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import PurePosixPath
from typing import Any, Final

from cs_config.options import keywords, relax_rules
from cs_config.options.keywords import Keyword, UnfitValueError, format_seen
from cs_config.options.options import SpecificationRule, VoOptions
from optimizers.description import document as documents
from optimizers.description import relax_changes, retry_changes
from optimizers.description.document import Document, DocumentReader
from requirements.canonical import Requirements
from requirements.classad.classad_files import Attributes
from requirements.classad.expression import Expression, OutOfScopeError, Own, parse_expression
from requirements.classad.parser import read_expression
from requirements.classad.restrictions import version_of
from requirements.classad.syntax_tree import SourceText
from requirements.diracx import specification
from requirements.errors import MOST_HINTS, MOST_PROBLEMS, InvalidInput, InvalidJob, Problem, did_you_mean
from requirements.quantities import VERSIONS, Quantities
from requirements.record import parse_record
from requirements.requirement_class import SPECIFIC, exclude_names, names_without_any
from requirements.values import Unevaluated, as_value, attribute_value, fold

_OWN: Final = re.compile(r"\b(?:my|self)\b", re.IGNORECASE)
#: Key of an expression in JSON: `{"expression": "…"}`.
EXPRESSION: Final = "expression"
#: Columns of the job, determined separately from the description.
_OWNERSHIP = frozenset({"owner", "owner_group", "vo"})
#: Attributes for which 0 means not stated.
_NOT_STATED = frozenset({"max_ram_mb", "cpu_work_db12", "wall_time", "scratch_mb", "gpu_memory_mb"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAttributes:
    """What a description states, for `MY.X` in its expressions."""

    stated: Mapping[str, object]  #: our keywords, by attribute
    others: Mapping[str, object]  #: by name

    def find(self, name: str) -> object:
        """The value or expression of a name; None: there is none."""
        keyword = keywords.find_keyword(name)
        others = {fold(other): value for other, value in self.others.items()}
        if keyword is None or fold(name) in others:
            return others.get(fold(name))
        if keyword.attribute in _OWNERSHIP:
            raise OutOfScopeError(f"MY.{name}: the owner of a job is not part of its description")
        value = self.stated.get(keyword.attribute, _OWN_DEFAULTS.get(keyword.attribute))
        is_nothing = value in ("", ()) or (value == 0 and keyword.attribute in _NOT_STATED)
        return None if is_nothing else attribute_value(keyword.name, value)


def may_refer_to_own(text: str) -> bool:
    """Whether a text may contain `MY.X`: then it is evaluated for each job."""
    return _OWN.search(text) is not None


def find_expressions(raw: Mapping[str, object]) -> list[str]:
    """The texts of Requirements and Rank of a parsed description that are expressions, not records.

    Those of other keywords are read only where one of these has `MY.X`.
    """
    read = (expression(value) for name, value in raw.items() if fold(name) in _EVALUATED)
    return [each.text for each in read if isinstance(each, Unevaluated)]


def expression(value: object) -> object:
    """Convert a value to an expression where one is required: a text is the expression's source.

    So is the text in `{"expression": "…"}`.
    """
    if isinstance(value, Mapping) and list(value) == [EXPRESSION] and isinstance(value[EXPRESSION], str):
        value = value[EXPRESSION]
    return Unevaluated(value) if isinstance(value, str) else value


def further_value(value: object, name: str) -> object:
    """Check the value of a keyword that only the configuration defines, a value or an expression."""
    if isinstance(value, Mapping):
        value = expression(value)
    if isinstance(value, Unevaluated):
        place = SourceText(text=value.text, path=name, file=value.file, line=value.line, column=value.column)
        read_expression(place)
    else:
        as_value(value, name)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDescription(Quantities):
    """Program and requirements of a job; each field is a keyword of `keywords.KEYWORDS`."""

    executable: str
    arguments: str = ""  #: one text; words are separated as in a shell
    image: str = ""  #: of the container that it runs in
    std_output: str = ""
    std_error: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    input_sandbox: tuple[str, ...] = ()
    output_sandbox: tuple[str, ...] = ()
    log_level: str = ""
    job_config_args: str = ""
    foreign: tuple[tuple[str, str], ...] = ()  #: keywords of another system, which it gets back
    job_name: str = ""
    job_type: str = ""
    job_group: str = ""
    after: tuple[str, ...] = ()  #: ids of jobs that it waits for, and names of jobs of its submission
    after_policy: str = "done"
    retry: tuple[str, ...] = ()  #: rules for when it fails
    relax: tuple[str, ...] = ()  #: rules for when it waits long
    owner: str = ""  #: empty: the submitter
    owner_group: str = ""  #: empty: the submitter's
    vo: str = ""  #: empty: the submitter's
    priority: float = 1.0
    waiting_ttl: int = 0  #: seconds that it may wait for a match; 0: as long as its VO allows
    job_path: tuple[str, ...] = ()  #: names of optimizers; empty: the configured ones
    input_data: tuple[str, ...] = ()  #: logical file names without `LFN:`
    input_data_policy: tuple[str, ...] = ()
    output_data: tuple[str, ...] = ()
    output_path: str = ""
    output_se: tuple[str, ...] = ()
    cpu_time: int  #: seconds
    max_wall_clock_time: int | None = None  #: seconds; None: no limit of its own
    sites: tuple[str, ...] = ()
    banned_sites: tuple[str, ...] = ()
    grid_ces: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    processors: int | None = None
    min_processors: int | None = None
    max_processors: int | None = None
    whole_node: bool = False
    min_ram_mb: int = 0
    max_ram_mb: int = 0  #: 0: not stated
    min_ram_per_core_mb: int = 0
    cpu_work_db12: int = 0  #: DB12 seconds, of all cores together; 0: not stated
    wall_time: int = 0  #: seconds that the pilot must have left
    scratch_mb: int = 0
    system: str = ""
    architecture: str = ""  #: as `uname -m` prints it
    cpu_level: str = ""
    cpu_features: tuple[str, ...] = ()
    gpus_max: int | None = None  #: of the pilot; None: no upper bound
    gpu_vendor: str = ""
    gpu_architecture: str = ""
    gpu_memory_mb: int = 0  #: of each GPU
    gpu_runtime: str = ""  #: a version
    tag_expression: str = ""
    local_jobs: int | None = None  #: of a grid job
    events: int | None = None
    events_per_job: int | None = None  #: per local job
    events_per_file: int | None = None  #: per output file of each phase
    first_event: int | None = None
    seed: int | None = None
    cpu_per_event: float | None = None  #: seconds
    requirements: Requirements | None = None
    rank: Expression | None = None  #: orders the eligible queues; None: all are equal
    document: Document | None = None  #: of DiracX's match-making specification
    extra: Mapping[str, object] = field(default_factory=dict)  #: keywords that only the configuration defines
    unused_priority: float | None = None  #: a stated one, where the VO does not use them
    #: The fields that were stated; the others have a default. None: all that differ from our own defaults.
    stated: frozenset[str] | None = field(default=None, compare=False)

    @property
    def relax_after(self) -> int | None:
        """Seconds until the first of its own rules of relaxation; 0: no rules, None: those of its VO."""
        return relax_rules.find_first(self.relax) if self.states("relax") else None

    def states(self, attribute: str) -> bool:
        """Whether the description itself states a keyword."""
        if self.stated is not None:
            return attribute in self.stated
        return bool(getattr(self, attribute) != _DEFAULT_VALUES.get(attribute))


_DEFAULTS = {each.name: each.default for each in fields(JobDescription)}
#: Values of keywords that are not stated.
_DEFAULT_VALUES = {name: default for name, default in _DEFAULTS.items() if default is not MISSING}
#: Values of `MY.X` for keywords that a description does not state; no configuration changes them.
_OWN_DEFAULTS = _DEFAULT_VALUES | {
    keywords.BY_NAME[name].attribute: value for name, value in keywords.DEFAULTS.items()
}
#: Keywords that split a grid job into local jobs.
_OF_GRID_JOBS = ("Events", "EventsPerJob", "EventsPerFile", "LocalJobs")
#: Placeholders that job managers replace in the arguments of each local job.
PLACES_OF_GRID_JOBS = (
    *("{events}", "{first_event}", "{seed}", "{files}", "{first_file}"),
    *("{local_job}", "{local_jobs}"),
)
#: Attributes that are checked in combination.
_CONTRADICTING = (
    *("min_processors", "max_processors", "processors", "min_ram_mb", "max_ram_mb", "min_ram_per_core_mb"),
    *("input_data", "job_type"),
)
#: Keywords, folded, of descriptions that make many jobs.
_OF_PARAMETERS = frozenset(map(fold, keywords.PARAMETRIC))
#: Keywords whose values are expressions, by folded spelling.
_EVALUATED = {"requirements": "requirements", "requirement": "requirements", "rank": "rank"}


def parse_description(
    raw: Mapping[str, object],
    operations: VoOptions,
    *,
    with_defaults: bool = True,
    is_accepted: bool = False,
) -> JobDescription:
    """Parse a description from JDL, YAML or JSON, without `Parameters`, and fill in configured defaults.

    That of a stored job `is_accepted`: the limits and declarations of the options have judged its submission,
    and no later ones do.

    Raises InvalidJob with every problem, and ConfigError for an invalid default.
    """
    reader = _Reader(operations=operations, problems=[], spelled={}, is_accepted=is_accepted)
    stated: dict[str, Any] = {}
    written = _find_document(raw, operations, is_accepted=is_accepted)
    if written:
        stated.update(reader.document(written))
    for name, value in raw.items():
        stated.update({} if name in written else reader.keyword(name, value))
        if len(reader.problems) >= MOST_PROBLEMS:
            break
    extra = reader.further_keywords() if reader.unknown else {}
    own = OwnAttributes(stated=stated, others={**extra, **reader.evaluated})
    defaults = reader.select_defaults(stated) if with_defaults else {"cpu_time": 0}
    values: dict[str, Any] = {**defaults, **stated, **reader.expressions(own.find)}
    if "executable" not in reader.spelled and "executable" not in values:
        reader.problem("Executable", "is missing: nothing would run")
    values.setdefault("executable", "")
    if not operations.job_scheduling.enable_user_priority:
        values |= {"priority": keywords.UNUSED_PRIORITY, "unused_priority": stated.get("priority")}
    description = JobDescription(
        **values, document=reader.found, extra=extra, stated=frozenset(reader.spelled)
    )
    for name, message in _contradictions(description, operations, is_accepted=is_accepted):
        reader.problem(reader.place(name), message)
    reader.check_limits(description)
    # They are judged together: one that cannot be read would count as missing.
    if not is_accepted and not reader.unread.intersection(SPECIFIC):
        for name, message in _find_unspecified(description, operations):
            reader.problem(reader.place(name), message, code=documents.INVALID)
    reader.check_rules(description)
    if reader.problems:
        raise InvalidJob(
            list(map(raw.placed, reader.problems)) if isinstance(raw, Attributes) else reader.problems
        )
    return description


def _find_document(
    raw: Mapping[str, object], operations: VoOptions, *, is_accepted: bool
) -> Mapping[str, object]:
    """The parts of a description that are a document, as they are written; empty: it has none."""
    is_required = operations.job_description.specification is SpecificationRule.REQUIRED
    for name, value in raw.items():
        if fold(name) == documents.REQUIREMENTS and documents.is_document(
            name, value, is_required=is_required, is_stored=is_accepted
        ):
            return {name: value, **{each: raw[each] for each in documents.SITES if each in raw}}
    return {}


def read_own(
    description: JobDescription, own: Mapping[str, object], operations: VoOptions
) -> Mapping[str, Any] | None:
    """Parse further keywords for an otherwise valid description; values by attribute, None if invalid."""
    values: dict[str, Any] = {}
    for name, value in own.items():
        keyword = keywords.BY_NAME[name]
        try:
            values[keyword.attribute], faults = operations.job_description.read(keyword, value)
        except UnfitValueError:
            return None
        if faults:
            return None
    # No other keyword that can differ between jobs takes part in a contradiction.
    if "input_data" in values and any(_contradictions(replace(description, **values), operations)):
        return None
    return values


def list_misplaced_files(
    std_output: str, std_error: str, output_sandbox: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Keywords with names of output that are not below the work directory of the job, as pilots judge."""
    standard = (("StdOutput", std_output), ("StdError", std_error))
    for keyword, name in (*standard, *(("OutputSandbox", each) for each in output_sandbox)):
        path = PurePosixPath(name)
        is_file = bool(path.parts) or keyword == "OutputSandbox" or not name
        if path.is_absolute() or ".." in path.parts or "\0" in name or not is_file:
            yield keyword, name


def grid_job_problems(
    description: JobDescription, own: Mapping[str, Any], operations: VoOptions
) -> Iterator[Problem]:
    """Find features of grid jobs in a job, with its own values, whose type no job manager handles.

    A pilot would run it literally, and once, without any error.
    """
    managed = operations.managed_types
    if fold(description.job_type) in managed:
        return
    stated = f"JobType is {description.job_type}" if description.job_type else "there is no JobType"
    allowed = f"{stated}; the types that job managers handle are {', '.join(sorted(managed)) or 'none'}"
    for name in _OF_GRID_JOBS:
        if getattr(description, keywords.BY_NAME[name].attribute) is not None:
            yield Problem(path=name, message=f"is for job managers only, and {allowed}")
    arguments = own.get("arguments", description.arguments)
    if open_places := [place for place in PLACES_OF_GRID_JOBS if place in arguments]:
        message = f"{', '.join(open_places)} would be filled by a job manager only, and {allowed}"
        yield Problem(path="Arguments", message=message)


def stored_body(description: JobDescription) -> dict[str, object]:
    """Convert a description to a JSON object in our spelling, with the stated keywords only.

    All others get the defaults of the configuration that is in force where the description is used.
    """
    document = description.document
    stated: dict[str, object] = {}
    hidden = _OWNERSHIP if document is None else _OWNERSHIP | document.attributes
    for keyword in keywords.KEYWORDS:
        attribute = keyword.attribute
        if attribute not in hidden and description.states(attribute):
            stated[keyword.name] = keywords.as_json(keyword, getattr(description, attribute))
    if description.unused_priority is not None:
        stated["Priority"] = description.unused_priority
    wanted = description.requirements
    if isinstance(wanted, Expression):
        stated["Requirements"] = wanted.original_text
    elif wanted is not None:
        stated["Requirements"] = {
            name: list(value) if isinstance(value, tuple) else value for name, value in wanted.values
        }
    if document is not None:
        stated.update(document.written)
    if description.rank is not None:
        stated["Rank"] = description.rank.original_text
    return stated | {
        name: {EXPRESSION: value.text} if isinstance(value, Unevaluated) else value
        for name, value in description.extra.items()
    }


@dataclass(slots=True, kw_only=True)
class _Reader:
    operations: VoOptions
    problems: list[Problem]
    spelled: dict[str, str]  #: attribute to its spelling in the description
    is_accepted: bool  #: the options judged it before
    found: Document | None = None
    unread: set[str] = field(default_factory=set)  #: attributes with a value of the wrong kind
    evaluated: dict[str, object] = field(default_factory=dict)  #: name to expression
    unknown: dict[str, object] = field(default_factory=dict)  #: name to value, of what we do not define

    def problem(
        self, name: str, message: str, suggestion: str | None = None, *, code: str | None = None
    ) -> None:
        if self.found is not None and name.startswith(f"{documents.REQUIREMENTS}/"):
            code = documents.INVALID
        self.problems.append(Problem(path=name, message=message, suggestion=suggestion, code=code))

    def place(self, name: str) -> str:
        """Where a keyword is, or would be, in a description with a document."""
        if self.found is None:
            return name
        return self.spelled.get(keywords.BY_NAME[name].attribute) or documents.path_of(name)

    def document(self, written: Mapping[str, object]) -> dict[str, object]:
        """Return attributes and values of a document."""
        reader = DocumentReader()
        values: dict[str, object] = {}
        fields = reader.read(written)
        self.problems += [] if self.is_accepted else reader.problems
        self.unread.update(keywords.BY_NAME[each].attribute for each in reader.misplaced)
        for path, (name, value) in fields.items():
            keyword = keywords.BY_NAME[name]
            if keyword.attribute in self.spelled:
                self.problem(path, f"named twice, the other time as {self.spelled[keyword.attribute]}")
                continue
            self.spelled[keyword.attribute] = path
            if keyword.is_number and isinstance(value, str) and not self.is_accepted:
                # Stored as it is written, and pilots read it.
                self.problem(path, f"{format_seen(value)}, allowed is a whole number", code=documents.INVALID)
                self.unread.add(keyword.attribute)
                continue
            values.update(self._read(keyword, path, value, code=documents.INVALID))
        options = self.operations.job_description
        if not options.is_specified(
            self.spelled
        ):  # nothing else shows that the job follows the specification
            self.spelled["system"] = documents.path_of("System")
            values["system"] = options.default_values.get("system", specification.SYSTEM)
        self.found = Document(written=reader.plain, attributes=frozenset(values))
        return values

    def check_limits(self, description: JobDescription) -> None:
        """Add limits of memory in a document that are less than what the job requests, wherever it does."""
        if self.found is None or self.is_accepted:
            return
        for part, name in documents.MEMORY.items():
            attribute = keywords.BY_NAME[name].attribute
            requested, spelled = getattr(description, attribute), self.spelled.get(attribute)
            place = documents.place_limit(part)
            most = documents.read_field(self.found.written, place)
            if documents.is_amount(most) and attribute not in self.unread and most < requested:
                where = ", its VO's default" if spelled is None else f" ({spelled})"
                self.problem("/".join(place), f"{most} is less than the request, {requested}{where}")

    def keyword(self, name: str, value: object) -> dict[str, object]:
        """Return attribute and value of one keyword; empty if it is unknown or invalid."""
        attribute = _EVALUATED.get(fold(name))
        keyword = None if attribute or self._is_the_vos_own(name) else keywords.find_keyword(name)
        if keyword is not None:
            attribute = keyword.attribute
        if attribute is None:
            self.unknown[name] = value
            return {}
        if (other := self.spelled.setdefault(attribute, name)) != name:
            self.problem(name, f"named twice, the other time as {other}")
            return {}
        if keyword is None:
            self.evaluated[name] = expression(value)
            return {}
        return self._read(keyword, name, value)

    def _read(
        self, keyword: Keyword, name: str, value: object, *, code: str | None = None
    ) -> dict[str, object]:
        try:
            if self.is_accepted:
                # Documents are stored as written, by earlier releases also with numbers for versions.
                is_version = fold(keyword.name) in VERSIONS
                return {keyword.attribute: keyword.read(version_of(value) if is_version else value)}
            read, faults = self.operations.job_description.read(keyword, value)
        except UnfitValueError as unfit:
            self.problem(name, str(unfit), code=code)
            self.unread.add(keyword.attribute)
            return {}
        for message in faults:
            self.problem(name, message, code=code)
        return {keyword.attribute: read}

    def _is_the_vos_own(self, name: str) -> bool:
        """Whether the VO had a keyword of this name before it became one of the specification."""
        known = keywords.find_keyword(name)
        extra = self.operations.job_description.extra
        return known is not None and known.attribute in SPECIFIC and fold(name) in map(fold, extra)

    def select_defaults(self, stated: Mapping[str, object]) -> Mapping[str, object]:
        """Return the defaults, by attribute, of what a description does not state."""
        options = self.operations.job_description
        defaults = options.default_values
        if not options.is_specified(self.spelled):
            return defaults
        # Each description has a length, though this one does not count.
        return {**specification.select_defaults(stated, defaults), "cpu_time": defaults["cpu_time"]}

    def further_keywords(self) -> dict[str, object]:
        """Return the keywords that only the configuration defines; any other is a problem."""
        found: dict[str, object] = {}
        known = {fold(each) for each in self.operations.job_description.extra}
        for name, value in self.unknown.items():
            if fold(name) not in known and not self.is_accepted:
                self._unknown(name)
                if len(self.problems) >= MOST_PROBLEMS:
                    break
                continue
            try:
                found[name] = further_value(value, name)
            except InvalidInput as error:
                self.problems.extend(error.problems)
        return found

    def _unknown(self, name: str) -> None:
        if fold(name) == "submitpool":
            self.problem(name, "is set by the system, from the Requirements")
            return
        head, dot, parameter = name.partition(".")
        if fold(head) in _OF_PARAMETERS:
            self.problem(name, f"has no effect without Parameters{dot}{parameter}")
            return
        options = self.operations.job_description
        if any(fold(name) == fold(each) for each in options.declarations.names()):
            self.problem(name, f"is not a keyword: it belongs in the Requirements = [ {name} = … ]")
            return
        names = (*keywords.NAMES, *options.extra)
        message = "unknown keyword (the configuration may allow it under Operations/JobDescription/Extra)"
        self.problem(name, message, did_you_mean(name, names) if len(self.problems) < MOST_HINTS else None)

    def check_rules(self, description: JobDescription) -> None:
        """Add the problems of rules that cannot be applied to an otherwise valid description."""
        if self.is_accepted or self.problems:
            return
        for attribute, texts, find in (
            ("retry", description.retry, retry_changes.find_unfit_rules),
            ("relax", description.relax, relax_changes.find_unfit_rules),
        ):
            if texts and description.states(attribute):
                self.problems += find(stored_body(description), texts, self.operations)

    def expressions(self, own: Own) -> dict[str, object]:
        """Return Requirements and Rank, unless they are invalid."""
        read: dict[str, object] = {}
        for name, value in self.evaluated.items():
            attribute = _EVALUATED[fold(name)]
            is_rank = attribute == "rank"
            if isinstance(value, bool) and not is_rank:
                value = Unevaluated(str(value).lower())
            elif isinstance(value, int | float) and not isinstance(value, bool) and is_rank:
                value = Unevaluated(repr(value))
            try:
                if isinstance(value, Unevaluated):
                    read[attribute] = parse_expression(
                        value.text, name, file=value.file, line=value.line, column=value.column, own=own
                    )
                elif isinstance(value, Mapping) and not is_rank:
                    declared = self.operations.job_description.declarations
                    read[attribute] = parse_record(value, declared, name, is_accepted=self.is_accepted)
                else:
                    allowed = "an expression" if is_rank else "a record of names and values, or an expression"
                    self.problem(name, f"{format_seen(value)}, allowed is {allowed}")
            except InvalidInput as error:
                self.problems.extend(error.problems)
        return read


def _contradictions(
    description: JobDescription, operations: VoOptions, *, is_accepted: bool = False
) -> Iterator[tuple[str, str]]:
    values = {name: getattr(description, name) for name in _CONTRADICTING}
    yield from operations.job_description.find_conflicts(values, is_accepted=is_accepted)
    if is_accepted:
        return
    # With a default of either, the job waits for another configuration.
    named = names_without_any(description.sites)
    are_stated = description.states("sites") and description.states("banned_sites")
    if named and are_stated and not exclude_names(named, names_without_any(description.banned_sites)):
        yield "Site", f"{', '.join(sorted(named))}: BannedSites bans every site that the job names"


def _find_unspecified(description: JobDescription, operations: VoOptions) -> Iterator[tuple[str, str]]:
    """What a job must not leave out, or combine, that follows DiracX's match-making specification."""
    options = operations.job_description
    specific = [name for name in SPECIFIC if description.states(name)]
    if not options.is_specified(specific):
        return
    cause = ""
    if specific and description.document is None:
        named = ", ".join(sorted(keywords.BY_ATTRIBUTE[name].name for name in specific))
        cause = f" (jobs with {named} follow DiracX's specification)"
    stated = {
        each.attribute: getattr(description, each.attribute)
        for each in keywords.KEYWORDS
        if description.states(each.attribute)
    }
    for attribute, message in specification.find_conflicts(
        specification.complete(stated, options.default_values)
    ):
        yield keywords.BY_ATTRIBUTE[attribute].name, message + cause
