"""Models of the options in `Operations`: names as in the configuration, defaults, bounds.

Source: DIRAC's `Operations` section, where it has the option.
"""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, model_validator

from cs_config import errors
from cs_config.options import bounds, job_rules, job_tiers, keywords, place_limits, relax_rules, retry_rules
from cs_config.options.job_rules import ChangeKind, JobRuleError, ValueChange
from cs_config.options.job_tiers import JobTiers
from cs_config.options.keywords import Keyword, UnfitValueError
from cs_config.options.option_model import Bytes, Count, Days, OneOrMore, Options, Seconds, SomeSeconds, Texts
from cs_config.options.place_limits import MatchingDelay, RunningLimit
from cs_config.options.relax_rules import RELAX, RelaxRule
from cs_config.options.retry_rules import RetryRule
from requirements.classad.restrictions import version_of
from requirements.diracx.cpu_levels import LEVELS
from requirements.diracx.specification import CONDITIONAL_DEFAULTS, DOCUMENT
from requirements.quantities import VERSIONS
from requirements.record import Declaration, Declarations, MatchRule, ValueKind
from requirements.requirement_class import SPECIFIC
from requirements.values import Scalar, fold, format_value


def _section_of(read: Callable[[Mapping[str, object]], Iterable[object]]) -> BeforeValidator:
    """Values read from a section; those that are read already stay as they are."""

    def find_values(raw: object) -> object:
        if isinstance(raw, Mapping):
            return tuple(read(raw))
        if isinstance(raw, tuple) and all(isinstance(each, RunningLimit | MatchingDelay) for each in raw):
            return raw
        raise ValueError("a section is needed here: {LCG.CERN.ch: {JobType: {Merge: 50}}}")

    return BeforeValidator(find_values)


#: Boundaries of the CPU time intervals of task queues, in seconds (DIRAC).
CPU_SEGMENTS = (
    *(360, 1_800, 3_600, 21_600, 43_200, 86_400, 172_800, 259_200),
    *(345_600, 518_400, 691_200, 864_000, 1_080_000),
)


#: Job types that consist of many local jobs: names of the shipped handlers of job managers.
SHIPPED_JOB_TYPES = ("generic", "montecarlo")


class DeclaredName(Options):
    """`JobDescription/<Name>`: meaning of a name in `Requirements`, or default and bounds of a keyword."""

    type: Annotated[ValueKind | None, Field(alias="type", strict=False)] = None
    """number, string, boolean or list; without it the kind follows from the values."""
    match: Annotated[MatchRule, Field(alias="match", strict=False)] = MatchRule.ANY
    """any or all: how many values of a list the resource must have."""
    unit: Annotated[str | None, Field(alias="unit")] = None
    """For people; values are not converted."""
    resource: Annotated[str | None, Field(alias="resource", min_length=1)] = None
    """The parameter of the resource that it is compared with, if named otherwise."""
    min: Annotated[int | float | None, Field(alias="min")] = None
    """Smallest value that a job may require."""
    max: Annotated[int | float | None, Field(alias="max")] = None
    """Largest value that a job may require."""
    default: Annotated[int | float | bool | tuple[Scalar, ...] | str | None, Field(alias="default")] = None
    """Of a keyword that a description leaves out; a list where it may have several values."""

    @model_validator(mode="after")
    def _bounds_make_sense(self) -> "DeclaredName":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        bounded = self.min is not None or self.max is not None
        if bounded and self.type not in (None, ValueKind.NUMBER, ValueKind.LIST):
            raise ValueError(f"min and max are for numbers, not for type {self.type}")
        return self


_SPECIFIC: Final = frozenset(SPECIFIC)
_KEYWORDS_OF_SPECIFICATION: Final = frozenset(keywords.BY_ATTRIBUTE[name].name for name in SPECIFIC)
#: Names in stored descriptions of jobs that follow the specification: its document, and its keywords.
_NAMES_OF_SPECIFICATION: Final = _KEYWORDS_OF_SPECIFICATION | {DOCUMENT}
_NAMED: Final = re.compile(f'"(?:{"|".join(sorted(_NAMES_OF_SPECIFICATION))})": ')
#: Keywords whose defaults depend on what else such a job states (`diracx.specification.complete`).
_DECIDED_WITH_CLASS: Final = frozenset(keywords.BY_ATTRIBUTE[name].name for name in CONDITIONAL_DEFAULTS)


def _write_defaults(
    defaults: Mapping[str, object], without: Collection[str]
) -> Mapping[str, tuple[object, str]]:
    """Defaults by keyword, as they are and as JSON with their names."""
    return {
        name: (value, json.dumps({name: value})[1:-1])
        for name, value in defaults.items()
        if name not in without
    }


#: Keywords whose values `Clamp` may change.
_CLAMPED: Final = frozenset({"CPUTime", "Priority"})


class SpecificationRule(StrEnum):
    """Which jobs follow DiracX's match-making specification."""

    OFFERED = "offered"  #: those with its document or its keywords
    REQUIRED = "required"  #: all


#: What reads the texts of rules, and one of them, by the keyword that they stand in.
_RULES: Final[
    Mapping[str, tuple[Callable[[object], Sequence[str]], Callable[[str], RetryRule | RelaxRule]]]
] = {
    "Retry": (keywords.retry, retry_rules.parse_rule),
    RELAX: (keywords.relax, relax_rules.parse_rule),
}


class JobDescriptionOptions(Options):
    """Rules for job descriptions."""

    specification: Annotated[SpecificationRule, Field(strict=False)] = SpecificationRule.OFFERED
    """offered: jobs with a document or keyword of the [specification](../reference/matching-specification.md)
    follow it; required: all do."""

    known_tags: Texts = ()
    """Further tags with a reserved prefix, such as `os:el8`: no submission warns of them."""
    extra: Texts = ()
    """Further top-level keywords that are kept as they are."""
    allowed_job_types: Texts = ()
    """If given, no other job types."""
    max_input_data: Annotated[int, Field(gt=0, le=bounds.FILES)] = 100_000
    """Files that one job may name."""
    max_parametric_jobs: Annotated[int, Field(gt=0, le=bounds.PARAMETRIC_JOBS)] = 10_000
    """Jobs that one parametric description may make."""
    clamp: bool = False
    """Whether CPUTime and Priority beyond their bounds become the nearest bound, instead of being refused."""
    declared: Annotated[Mapping[str, DeclaredName], Field(default_factory=dict, max_length=bounds.NAMED)]
    """The sections `JobDescription/<Name>`."""

    @cached_property
    def declarations(self) -> Declarations:
        """The declared names in `Requirements`."""
        return Declarations.find(
            Declaration(
                name=name,
                kind=option.type,
                match=option.match,
                unit=option.unit,
                resource=option.resource,
                minimum=option.min,
                maximum=option.max,
            )
            for name, option in self.declared.items()
        )

    @cached_property
    def declared_by_name(self) -> Mapping[str, DeclaredName]:
        """The declared names, folded."""
        return {fold(name): option for name, option in self.declared.items()}

    @cached_property
    def bounds_by_name(self) -> Mapping[str, tuple[float | None, float | None]]:
        """The least and the largest value of each keyword: the configured ones, or else its own."""
        found: dict[str, tuple[float | None, float | None]] = {}
        for keyword in keywords.KEYWORDS:
            configured = self.declared_by_name.get(fold(keyword.name))
            low, high = (configured.min, configured.max) if configured else (None, None)
            found[keyword.name] = (
                keyword.minimum if low is None else low,
                keyword.maximum if high is None else high,
            )
        return found

    def read(self, keyword: Keyword, raw: object) -> tuple[object, Sequence[str]]:
        """Read a value that a description states: the value, and in which bounds it is not.

        Where `Clamp` allows it, the value is changed to be within its bounds. Source: DIRAC 8 does so with
        these two; less memory or fewer processors would make the job fail.

        Raises:
            UnfitValueError: The keyword cannot have the value in any configuration.
        """
        value = keyword.read(raw)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return value, ()
        if self.clamp and keyword.name in _CLAMPED:
            low, high = self.bounds_by_name[keyword.name]
            if isinstance(value, int):
                low, high = low and math.ceil(low), high and math.floor(high)
            value = value if low is None else max(value, low)
            value = value if high is None else min(value, high)
        return value, tuple(self.out_of_bounds(keyword, value))

    def out_of_bounds(self, keyword: Keyword, value: object) -> Iterator[str]:
        """Check a keyword's value against its bounds."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return
        low, high = self.bounds_by_name[keyword.name]
        if low is not None and value < low:
            yield f"{format_value(value)} is too small, allowed is at least {format_value(low)}"
        if high is not None and value > high:
            yield f"{format_value(value)} is too large, allowed is at most {format_value(high)}"

    def is_specified(self, stated: Collection[str]) -> bool:
        """Whether a job that states these attributes follows DiracX's match-making specification."""
        is_required = self.specification is SpecificationRule.REQUIRED
        return is_required or not _SPECIFIC.isdisjoint(stated)

    def find_conflicts(
        self, values: Mapping[str, Any], *, is_accepted: bool = False
    ) -> Iterator[tuple[str, str]]:
        """Values, by attribute, that contradict each other, as pairs of keyword and message.

        Also those that the options allow no submission; an earlier one `is_accepted`.
        """
        low, high, exact = (values.get(name) for name in ("min_processors", "max_processors", "processors"))
        if low is not None and high is not None and low > high:
            yield "MinNumberOfProcessors", f"{low} is more than MaxNumberOfProcessors, {high}"
        if exact is not None and not (low or exact) <= exact <= (high or exact):
            message = f"{exact} is not between MinNumberOfProcessors and MaxNumberOfProcessors"
            yield "NumberOfProcessors", message
        min_ram, max_ram = values.get("min_ram_mb", 0), values.get("max_ram_mb", 0)
        ram = min_ram + values.get("min_ram_per_core_mb", 0) * (exact or low or 1)
        if 0 < max_ram < ram:
            yield "MinRAM" if min_ram else "MinRAMPerCore", f"{ram} MB is more than MaxRAM, {max_ram} MB"
        if is_accepted:
            return
        files, most = len(values.get("input_data", ())), self.max_input_data
        if files > most:
            yield "InputData", f"{files} files are too many, allowed are {most}"
        job_type, allowed = values.get("job_type"), self.allowed_job_types
        if allowed and job_type and fold(job_type) not in {fold(each) for each in allowed}:
            yield "JobType", f"{job_type!r}, allowed are {', '.join(sorted(allowed))}"

    def wrong_defaults(self) -> Iterator[tuple[str, str]]:
        """Names whose default would be invalid in any description, each with the reason."""
        read: dict[str, object] = {}
        spelled: dict[str, str] = {}
        for name, default in self.defaults.items():
            if (keyword := keywords.find_keyword(name)) is None:
                continue
            spelled[keyword.name] = name
            if keyword.name in keywords.INDIVIDUAL:
                yield name, "has no default, each job states its own"
                continue
            try:
                value = read[keyword.attribute] = keyword.read(default)
            except UnfitValueError as unfit:
                yield name, str(unfit)
            else:
                yield from ((name, message) for message in self.out_of_bounds(keyword, value))
        yield from ((spelled.get(name, name), message) for name, message in self.find_conflicts(read))
        level = read.get("cpu_level")
        if level in LEVELS["x86_64"] and read.get("cpu_features"):
            yield spelled["CPUFeatures"], f"beside the default of CPULevel, {level}: a job has one of the two"

    def excess_defaults(self) -> Iterator[tuple[str, str]]:
        """Names whose default makes all defaults together too long for the descriptions that get them."""
        total = 0
        for name, option in self.declared.items():
            total += len(json.dumps(option.default))
            if option.default is not None and total > bounds.DEFAULT_VALUES:
                yield (
                    name,
                    f"all defaults have {total:,} characters with it, allowed are {bounds.DEFAULT_VALUES:,}",
                )

    def unfit_default_rules(self) -> Iterator[tuple[str, str]]:
        """Changes in default rules of retry and relaxation that no job of the VO can have: option, and why.

        What depends on a job, as whether it has a number to multiply, is decided when a rule is applied.
        """
        for name, default in self.defaults.items():
            keyword = keywords.find_keyword(name)
            if keyword and keyword.name in _RULES:
                read, parse = _RULES[keyword.name]
                rules = [(text, parse(text).values) for text in read(default)]
                yield from ((name, message) for message in self._find_unfit_changes(rules))

    def _find_unfit_changes(self, rules: Iterable[tuple[str, Sequence[ValueChange]]]) -> Iterator[str]:
        own = (*self.extra, *self.declared, job_rules.MEMORY, "Requirements", "Rank")
        for text, values in rules:
            for change in values:
                keyword = keywords.find_keyword(change.name)
                if why := keywords.KEPT_BY_JOB.get(fold(change.name)):
                    yield f"{text!r}: {change.name} is not changed: {why}"
                elif keyword is None and fold(change.name) not in map(fold, own):
                    meant = keywords.find_alike(change.name, own)
                    hint = f"did you mean {meant}?" if meant else "declare it under Operations/JobDescription"
                    yield f"{text!r}: {change.name} is no keyword, and is not declared, {hint}"
                elif keyword is not None and change.kind is ChangeKind.SET:
                    try:
                        messages = tuple(self.out_of_bounds(keyword, keyword.read(change.value)))
                    except UnfitValueError as unfit:
                        messages = (str(unfit),)
                    yield from (f"{text!r}: {change.name}: {message}" for message in messages)

    @cached_property
    def default_values(self) -> Mapping[str, object]:
        """Default values by attribute of a description; ConfigError for an invalid one."""
        found: dict[str, object] = {}
        for name, default in self.defaults.items():
            if keyword := keywords.find_keyword(name):
                try:
                    found[keyword.attribute] = keyword.read(default)
                except UnfitValueError as unfit:
                    path = f"Operations/JobDescription/{name}/default"
                    raise errors.one_problem(path, str(unfit)) from None
        return found

    @cached_property
    def filled_in(self) -> Mapping[str, object]:
        """Default values by keyword, as in a stored description; invalid ones are left out."""
        found: dict[str, object] = {}
        for name, default in self.defaults.items():
            if keyword := keywords.find_keyword(name):
                with suppress(UnfitValueError):
                    found[keyword.name] = keywords.as_json(keyword, keyword.read(default))
        return found

    def list_defaults(self, body: Mapping[str, object]) -> Mapping[str, object]:
        """The default values that a stored description gets, by keyword."""
        is_specified = not self._names_of_specification.isdisjoint(body)
        return {name: value for name, (value, _) in self._find_defaults(is_specified=is_specified).items()}

    def list_relax_rules(self, body: Mapping[str, object]) -> Sequence[RelaxRule]:
        """The rules of relaxation that a stored description states, else those of its VO, by their times.

        Those that an older version stored and nobody can read any more are none.
        """
        stated = body.get(RELAX, self.list_defaults(body).get(RELAX, ()))
        with suppress(JobRuleError):
            return relax_rules.parse_rules(relax_rules.read_rules(stated))
        return ()

    def list_defaults_json(self, text: str) -> Mapping[str, str]:
        """The same for a stored description in JSON, each as JSON with its name.

        Parsing takes longer than a claim, so it is avoided where no name of the specification is in the text.
        """
        is_specified = _NAMED.search(text) is not None and not self._names_of_specification.isdisjoint(
            json.loads(text)
        )
        return {
            name: written for name, (_, written) in self._find_defaults(is_specified=is_specified).items()
        }

    def _find_defaults(self, *, is_specified: bool) -> Mapping[str, tuple[object, str]]:
        if is_specified or self.specification is SpecificationRule.REQUIRED:
            return self._filled_in_of_specified
        return self._filled_in_of_others

    @cached_property
    def _names_of_specification(self) -> frozenset[str]:
        """Without keywords that the VO had before under these names."""
        own = frozenset(map(fold, self.extra))
        return frozenset(name for name in _NAMES_OF_SPECIFICATION if fold(name) not in own)

    @cached_property
    def _filled_in_of_others(self) -> Mapping[str, tuple[object, str]]:
        return _write_defaults(self.filled_in, _KEYWORDS_OF_SPECIFICATION)

    @cached_property
    def _filled_in_of_specified(self) -> Mapping[str, tuple[object, str]]:
        """Without those that are decided with the requirement class: pilots would take them as they are."""
        return _write_defaults(self.filled_in, _KEYWORDS_OF_SPECIFICATION | _DECIDED_WITH_CLASS)

    @property
    def defaults(self) -> Mapping[str, object]:
        """Default values of keywords, by name; one of a version that is a number as its shortest text."""
        built_in = keywords.DEFAULTS
        configured = {
            name: version_of(option.default) if fold(name) in VERSIONS else option.default
            for name, option in self.declared.items()
            if option.default is not None
        }
        spelled = {fold(name): name for name in configured}
        return {spelled.get(fold(name), name): each for name, each in built_in.items()} | configured


class JobPathOptions(Options):
    """The optimizers that a job passes."""

    chain: Texts = ("JobSanity", "InputData", "Requirements", "JobScheduling")
    """Names of the steps after JobPath, in order; JobSanity, Requirements, JobScheduling are always taken."""


class Measure(StrEnum):
    """The unit in which the use of jobs that run or ran is counted."""

    WALL_TIME = "WallTime"  #: seconds times cores
    JOBS = "Jobs"  #: number of times that jobs were run


#: Seconds of the longest time slice, and half-lives that count: of older use less than a thousandth is left.
_LONGEST_SPAN: Final = 31 * 86_400
_HALF_LIVES: Final = 10


class TimeSlice(Options):
    """`JobScheduling/ShareCorrections/<name>/TimeSlices/<name>`: a time over which use is summed."""

    time_span: Annotated[float, Field(ge=3_600, le=_LONGEST_SPAN)] = 604_800
    """Seconds until now, to the whole hour; what retention has removed is not seen."""
    half_life: Annotated[float, Field(ge=3_600, le=_LONGEST_SPAN)] | None = None
    """Seconds after which use counts half, as HTCondor's PRIORITY_HALFLIFE; without it all use counts alike.
    Where only this is stated, `TimeSpan` is ten times as long, or 31 days."""
    weight: Annotated[float, Field(ge=bounds.SMALLEST_WEIGHT, le=bounds.SHARE)] = 1
    """Among the slices."""
    max_correction: Annotated[float, Field(ge=1, le=bounds.CORRECTION)] = 3
    """What the slice may multiply or divide a share by."""

    @property
    def span(self) -> float:
        """The effective `TimeSpan`."""
        if self.half_life is None or "time_span" in self.model_fields_set:
            return self.time_span
        return min(_HALF_LIVES * self.half_life, _LONGEST_SPAN)

    def decay(self, age: timedelta) -> float:
        """The factor of use of this age."""
        if self.half_life is None or age <= timedelta():
            return 1.0
        return float(0.5 ** (age.total_seconds() / self.half_life))


class ShareCorrection(Options):
    """`JobScheduling/ShareCorrections/<name>`: shares adapt to use, between groups or between owners."""

    group: Annotated[str | None, Field(min_length=1)] = None
    """Correct between the owners of this group; without it between the groups of the VO."""
    measure: Annotated[Measure, Field(strict=False)] = Measure.WALL_TIME
    """WallTime (times cores) or Jobs."""
    max_global_correction: Annotated[float, Field(ge=1, le=bounds.CORRECTION)] = 5
    """What all slices together may multiply or divide a share by."""
    time_slices: Annotated[
        Mapping[str, TimeSlice], Field(default_factory=dict, max_length=bounds.CORRECTIONS)
    ]
    """The slices, by any names; without any there is one with the defaults."""

    @property
    def slices(self) -> tuple[TimeSlice, ...]:
        """The effective slices."""
        return tuple(self.time_slices.values()) or (TimeSlice(),)


class Scarcity(StrEnum):
    """For whom slots are kept that others of the same owner's jobs do not need."""

    OFF = "off"
    OWNER = "owner"  #: jobs of the owner whose turn it is


class JobSchedulingOptions(Options):
    """Scheduling: preparation, order of service, and rescheduling of lost jobs."""

    cpu_segments: Annotated[
        tuple[Annotated[int, Field(le=bounds.CPU_SECONDS)], ...],
        OneOrMore,
        Field(alias="taskQueueCPUTimeIntervals", max_length=bounds.LISTED),
    ] = CPU_SEGMENTS
    """Seconds: a job's CPU time is rounded up to the next of these; strictly increasing.
    A CPU time that a description states is rounded when it is submitted; waiting jobs keep it."""
    narrow_sites: bool = False
    """Show the sites that have an eligible queue now in the explanation of a job."""
    reject_unmatchable: bool = False
    """Fail a new job without eligible queue instead of letting it wait."""
    allow_invalid_sites: bool = True
    """Accept new jobs for sites that are not in the configuration, or if all of their sites are banned or
    closed: these wait until one is open again."""
    max_rescheduling: Annotated[int, Field(ge=0, le=bounds.TRIES)] = 3
    """Times that a job is taken back before it fails."""
    reschedule_delays: Annotated[tuple[Seconds, ...], OneOrMore, Field(max_length=bounds.LISTED)] = (
        60,
        180,
        300,
        600,
    )
    """Seconds before the n-th try; the last holds for all further ones."""
    waiting_ttl: Annotated[Seconds, Field(alias="WaitingTTL")] = 0
    """Seconds that a job may wait for a match before it fails, `no_match_within_ttl`; 0: without an end.
    Time counts while the service and the agents were up and the job could be matched; a job may state less
    (`WaitingTTL`)."""
    unseen_hardware_days: Annotated[Days, Field(le=90)] = 0
    """Warn at submission of hardware that no pilot of an eligible site had in so many days; 0: never."""
    hold_time: SomeSeconds = 300
    """Seconds before a held job is checked again."""
    input_data_catalogue: str | None = None
    """File with the replicas of input data."""
    enable_user_priority: bool = True
    """Whether the `Priority` of a job counts; if not: first in, first out, inside a share."""
    scarcity: Annotated[Scarcity, Field(strict=False)] = Scarcity.OFF
    """`owner`: of an owner's jobs that a slot could run, those first for which clearly fewer slots came in
    the last six hours. Shares of owners stay, and the order of jobs of an owner who states priorities."""
    enable_shares_correction: bool = False
    """Give more to groups or owners that used less than their share lately, and less to the others."""
    share_corrections: Annotated[
        Mapping[str, ShareCorrection], Field(default_factory=dict, max_length=bounds.CORRECTIONS)
    ]
    """The corrections, by any names; without any there is one between groups with the defaults."""
    job_priorities: Annotated[
        JobTiers, BeforeValidator(job_tiers.read_tiers), Field(max_length=bounds.ORDERED_TYPES)
    ] = ()
    """Job types in tiers: jobs of an earlier one always come first, of what a pilot can run.

    Each item is a type, or `'{type: weight, other type: weight}'`, in quotes: among these chance decides, by
    weight. Types that are not listed come last. Inside a type shares decide. Without it they do alone.
    """
    running_limit: Annotated[
        tuple[RunningLimit, ...],
        _section_of(place_limits.read_limits),
        Field(max_length=bounds.NAMED),
    ] = ()
    """`<Site>/<Attribute>/<value>: N` and `<Site>/CEs/<CE>/<Attribute>/<value>: N`, jobs at a time.

    The site `AllSites` counts the whole grid. `{count: N, cores: C}` in place of N, or one of both, bounds
    the cores of these jobs together; `{Curb: C, Max: N, Interval: S}` has a ramp.
    """
    matching_delay: Annotated[
        tuple[MatchingDelay, ...],
        _section_of(place_limits.read_delays),
        Field(max_length=bounds.NAMED),
    ] = ()
    """`<Site>/<Attribute>/<value>: S`, seconds between matches; `<Site>/Burst/<Attribute>/<value>: k`.

    The site `AllSites` counts the whole grid.
    """

    @property
    def corrections(self) -> tuple[ShareCorrection, ...]:
        """The effective corrections of shares by use."""
        if not self.enable_shares_correction:
            return ()
        return tuple(self.share_corrections.values()) or (ShareCorrection.model_validate({}),)

    @model_validator(mode="after")
    def _segments_increase(self) -> "JobSchedulingOptions":
        increasing = all(low < high for low, high in itertools.pairwise((0, *self.cpu_segments)))
        if not self.cpu_segments or not increasing:
            raise ValueError("taskQueueCPUTimeIntervals must be positive and strictly increasing")
        return self


class PoolOptions(Options):
    """SubmitPools and their mapping to queues."""

    refresh_interval: SomeSeconds = 900
    """Seconds between refreshes without a change of the configuration."""
    grace_time: Seconds = 3_600
    """Seconds that a pool stays after its last job."""
    by_address: bool = False
    """Allow GlueCEUniqueID and other names of addresses in Requirements: no two queues are alike then."""


class LeaseOptions(Options):
    """Times for which a pilot may hold a job."""

    time: SomeSeconds = 300
    """Seconds from the match to the start."""
    heartbeat_time: SomeSeconds = 20
    """Seconds between two heartbeats of a running job while few run, at most a quarter of `StalledTime`."""
    longest_heartbeat_time: SomeSeconds = 300
    """Seconds up to which the time between heartbeats grows with the number of running jobs; a longer
    `HeartbeatTime` stays as it is. A pilot learns of a kill by its next heartbeat."""
    stalled_time: SomeSeconds = 1_800
    """Seconds without a heartbeat until a running job is Stalled."""
    stalled_grace: Seconds = 1_800
    """Seconds that a job stays Stalled at least before it is rescheduled; a silent pilot has until
    `RunOnTime`, too."""
    run_on_time: SomeSeconds = 21_600
    """Seconds without an answer of the service after which a pilot ends its payload."""

    @model_validator(mode="after")
    def _pilots_run_on_long_enough(self) -> "LeaseOptions":
        least = self.stalled_time + self.stalled_grace
        if self.run_on_time < least:
            stated = f"RunOnTime, {self.run_on_time:g} s,"
            raise ValueError(f"{stated} is less than StalledTime and StalledGrace together, {least:g} s")
        return self


class RetentionOptions(Options):
    """Retention in days, counted from the end of the job."""

    jobs: Days = 30
    """Final jobs with their log; also pilots, from their end."""
    outputs: Days = 14
    """Output archives."""
    sandboxes: Days = 14
    """Input sandboxes that no job needs."""
    logs: Days = 90
    """Logs and parameters of ended jobs, if shorter than `Jobs`; `Defaults`: also texts of old versions."""
    day_records: Days = 30
    """`Defaults`: what was seen minute by minute, for forecasts."""


class LimitOptions(Options):
    """Limits on the load by users."""

    waiting_jobs_per_owner: Count = 100_000
    """Jobs of one owner that wait or are being prepared: those before Matched."""
    waiting_jobs_per_vo: Annotated[Count, Field(alias="WaitingJobsPerVO")] = 10_000_000
    """Jobs of the VO that wait or are being prepared: those before Matched."""
    sandbox_bytes: Bytes = 100 * 2**20
    """Size of one input sandbox."""
    sandbox_quota: Bytes = 100 * 2**30
    """Bytes of all input sandboxes of the VO."""
    output_quota: Bytes = 2**40
    """Bytes of all outputs of the VO; the oldest beyond them are removed."""
    requests_per_second: Annotated[float, Field(ge=bounds.FEWEST_REQUESTS, le=bounds.REQUESTS)] = 200
    """Of one token subject."""
    jobs_per_hour: Annotated[Count, Field(ge=1)] = 1_000_000
    """Jobs that one token subject may submit, reschedule or reset, or pilots it may register, in an hour."""
    job_shares: Annotated[float, Field(ge=0, le=bounds.SHARE)] = 0
    """Largest sum of the groups' `JobShare` that VO admins may set; a larger present sum may stay."""
    pilot_claims_per_hour: Annotated[Count, Field(ge=1)] = 1000
    """Jobs that one pilot may claim in an hour, for each processor of its slot."""
    pilots_per_vo: Annotated[Count, Field(alias="PilotsPerVO")] = 100_000
    """Pilots of the VO that have not ended: further ones are not registered, so directors submit none."""
    pools: Annotated[Count, Field(ge=1)] = 10_000
    """SubmitPools of the VO: jobs that need a further one are held until others go."""
    web_hooks: Annotated[int, Field(ge=0, le=bounds.WEB_HOOKS)] = 10
    """Web hooks of the VO; 0: it may have none."""


class JobType(Options):
    """`JobTypes/<type>`: handling of jobs of this type."""

    manager: Annotated[bool, Field(alias="manager")] = False
    """Only job managers handle it: pilots that do not name it are not given its jobs."""


class DiracDoorOptions(Options):
    """Where jobs of DIRAC's clients go, while the door has former services."""

    moved: bool = False
    """Whether jobs that DIRAC's clients submit come here, while `dirac-door` has `--former` services."""


class VoOptions(Options):
    """All options of one VO, or the defaults."""

    job_types: Mapping[str, JobType] = Field(default_factory=dict, max_length=bounds.LISTED)
    """The sections `JobTypes/<type>`; the types of shipped handlers are a job manager's by themselves."""
    job_description: JobDescriptionOptions = JobDescriptionOptions.model_validate({})
    job_path: JobPathOptions = JobPathOptions()
    job_scheduling: JobSchedulingOptions = JobSchedulingOptions.model_validate({})
    pools: PoolOptions = PoolOptions()
    leases: LeaseOptions = LeaseOptions()
    retention: RetentionOptions = RetentionOptions()
    limits: LimitOptions = LimitOptions()
    dirac_door: DiracDoorOptions = DiracDoorOptions()

    @cached_property
    def class_digest(self) -> str:
        """Digest of the options from which requirement classes are derived, with those of priorities."""
        derived: list[object] = [
            sorted(self.job_description.filled_in.items()),
            self.job_scheduling.cpu_segments,
        ]
        if self.job_description.specification is SpecificationRule.REQUIRED:
            derived.append("specification")
        if not self.job_scheduling.enable_user_priority:
            derived.append("no priorities")
        return hashlib.sha256(json.dumps(derived).encode()).hexdigest()[:16]

    @cached_property
    def managed_types(self) -> frozenset[str]:
        """The job types, folded, that only job managers handle."""
        listed = {fold(name): option.manager for name, option in self.job_types.items()}
        shipped = dict.fromkeys(map(fold, SHIPPED_JOB_TYPES), True)
        return frozenset(name for name, managed in {**shipped, **listed}.items() if managed)
