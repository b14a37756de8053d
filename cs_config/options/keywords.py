"""The keywords of a job description (DIRAC's attributes in their spelling, and ours), with a reader per kind.

Keywords are looked up without case, in singular or plural.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

from cs_config.options import bounds, relax_rules, retry_rules
from cs_config.options.job_rules import JobRuleError
from requirements import images
from requirements.diracx import tag_expression
from requirements.diracx.cpu_levels import FEATURES
from requirements.diracx.specification import MOST_GPUS, is_version
from requirements.errors import did_you_mean, format_count
from requirements.quantities import QUANTITIES, VERSIONS
from requirements.states import AfterPolicy
from requirements.values import MAX_INTEGER, Unevaluated, advise_quotes, as_number, fold, text_fault
from requirements.written_reals import WrittenReal

#: Names of sites, CEs, platforms and tags.
_NAME = re.compile(r"[A-Za-z0-9._:@+-]+")
#: What separates the members of a list in one text. The value of a variable may have commas:
#: `server=y,suspend=n` is no variable, which begins after a blank or has a name in capitals.
_COMMA = re.compile(",")
_NEXT_VARIABLE = re.compile(r",(?=\s++[A-Za-z_]\w*+\s*+=|[A-Z_][A-Z0-9_]*+=)")
#: A line without these characters is split into words alike by every shell.
_QUOTING = frozenset("'\"\\")
#: DIRAC's spellings of true and false.
YES = frozenset({"y", "yes", "true", "1"})
NO = frozenset({"n", "no", "false", "0"})


class UnfitValueError(ValueError):
    """A value that its keyword cannot have; the message contains the value and what is allowed."""


def format_seen(raw: object) -> str:
    """Format a value so that its author recognises it."""
    if isinstance(raw, Unevaluated):
        return f"{raw.text} is an expression (a text needs quotes)"
    if raw is None:
        return "no value"
    shown = json.dumps(raw, ensure_ascii=False, default=str)
    return shown if len(shown) <= 100 else f"{shown[:97]}…"


def text(raw: object, *, most: int | None = None, is_filled: bool = False) -> str:
    """A text, of at most so many characters; one that `is_filled` is not blank, and has no blanks around it.

    A bare number is accepted as a text: as it is written, where a reader has kept that.
    """
    if isinstance(raw, str):
        read = raw
    elif isinstance(raw, bool) or not isinstance(raw, int | float):
        raise UnfitValueError(f"{format_seen(raw)}, allowed is a text")
    else:
        read = raw.text if isinstance(raw, WrittenReal) else str(raw)
    if fault := text_fault(read):
        raise UnfitValueError(fault)
    if most is not None and len(read) > most:
        raise UnfitValueError(f"{read[:20]!r}… has {len(read)} characters, allowed are {most}")
    if is_filled and not (read := read.strip()):
        raise UnfitValueError("is empty")
    return read


#: Texts that lists of jobs show.
SHORT_TEXT = partial(text, most=bounds.NAME)
FILLED_TEXT = partial(text, is_filled=True)
SHORT_FILLED_TEXT = partial(text, most=bounds.NAME, is_filled=True)


def arguments(raw: object) -> str:
    """A command line as the pilot will split it; the items of a list are quoted where a shell needs it."""
    if isinstance(raw, list | tuple):
        return shlex.join(text(word) for word in raw)
    line = text(raw)
    if _QUOTING.isdisjoint(line):
        return line
    try:
        shlex.split(line)
    except ValueError as error:
        raise UnfitValueError(
            f"{format_seen(line)} cannot be split into words as in a shell: {error}"
        ) from None
    return line


def texts(raw: object, *, separator: re.Pattern[str] = _COMMA) -> tuple[str, ...]:
    """The members of a list, without blank ones.

    One text is split at its commas, as DIRAC splits it; a member of a list is kept whole.
    """
    items = raw if isinstance(raw, list | tuple) else separator.split(text(raw))
    return tuple(read for item in items if (read := text(item).strip()))


def names(raw: object) -> tuple[str, ...]:
    """Names of sites, tags and the like, without duplicates; members are split, too: no name has a comma."""
    found = dict.fromkeys(
        part for item in texts(raw) for part in (word.strip() for word in item.split(",")) if part
    )
    if len(found) > bounds.LISTED:
        raise UnfitValueError(f"{len(found)} names are too many, allowed are {bounds.LISTED}")
    for name in found:
        if len(name) > bounds.NAME:
            raise UnfitValueError(
                f"{name[:20]!r}… has {len(name)} characters, allowed are {bounds.NAME} in a name"
            )
        if not _NAME.fullmatch(name):
            raise UnfitValueError(
                f"{name!r} is not a valid name, allowed are letters, digits and . _ : @ + -"
            )
    return tuple(found)


def parents(raw: object) -> tuple[str, ...]:
    """Ids and names of jobs, without duplicates."""
    found = tuple(dict.fromkeys(texts(f"{raw}" if isinstance(raw, int) else raw)))
    if len(found) > bounds.PARENTS:
        raise UnfitValueError(f"{format_count(len(found), 'job')} are too many, allowed are {bounds.PARENTS}")
    return found


def after_policy(raw: object) -> str:
    """A policy for jobs that wait for others."""
    read = FILLED_TEXT(raw).lower()
    if read not in list(AfterPolicy):
        raise UnfitValueError(f"{format_seen(raw)}, allowed are {', '.join(AfterPolicy)}")
    return read


def retry(raw: object) -> tuple[str, ...]:
    """Rules of retry, as texts."""
    try:
        return retry_rules.read_rules(raw)
    except JobRuleError as error:
        raise UnfitValueError(str(error)) from None


def relax(raw: object) -> tuple[str, ...]:
    """Rules of relaxation, as texts in the order of their times."""
    try:
        return relax_rules.read_rules(raw)
    except JobRuleError as error:
        raise UnfitValueError(str(error)) from None


def number(raw: object, *, is_whole: bool = False) -> float:
    """A number, also as text; an integer where it has to be whole."""
    read = as_number(raw) if isinstance(raw, str | int | float) else raw
    if (
        isinstance(read, bool)
        or not isinstance(read, int | float)
        or not abs(read) <= MAX_INTEGER
        or (is_whole and read != int(read))
    ):
        raise UnfitValueError(f"{format_seen(raw)}, allowed is a {'whole ' * is_whole}number")
    return int(read) if is_whole else float(read)


WHOLE_NUMBER = partial(number, is_whole=True)


def cpu_level(raw: object) -> str:
    """The name of a level or profile of processors."""
    read = FILLED_TEXT(raw)
    if read not in FEATURES:
        raise UnfitValueError(f"{format_seen(raw)}, allowed are {', '.join(FEATURES)}")
    return read


def image(raw: object) -> str:
    """A container image: a path, a file of the input sandbox, or one of a registry; empty: none."""
    read = SHORT_TEXT(raw).strip()
    if fault := images.find_fault(read):
        raise UnfitValueError(f"{format_seen(raw)} {fault}")
    return read


def node_word(raw: object) -> str:
    """A word that selects what else a job requires of a node; nodes have it in lower case."""
    return fold(SHORT_FILLED_TEXT(raw))


def version(raw: object) -> str:
    """A version of up to three numbers, as a text; readers of texts keep its digits."""
    if isinstance(raw, float):
        raise UnfitValueError(f"{advise_quotes(raw)}, with all their digits")
    read = FILLED_TEXT(raw)
    if not is_version(read):
        raise UnfitValueError(f"{format_seen(raw)}, allowed is a version such as 12.4")
    return read


def tags_expression(raw: object) -> str:
    """An expression over tags, in its normal form; empty: no condition."""
    read = text(raw)
    if not read.strip():
        return ""
    try:
        return tag_expression.normalise(read)
    except tag_expression.TagExpressionError as error:
        raise UnfitValueError(f"{format_seen(read)} {error}") from None


def flag(raw: object) -> bool:
    """A boolean, also in DIRAC's spellings."""
    if isinstance(raw, bool):
        return raw
    word = str(raw).strip().lower() if isinstance(raw, str | int) else ""
    if word in YES or word in NO:
        return word in YES
    raise UnfitValueError(f"{format_seen(raw)}, allowed is true or false")


def environment(raw: object) -> tuple[tuple[str, str], ...]:
    """Environment variables of the payload: a record, or texts such as `NAME=value`.

    In one text, `A=1, B=x,y`, a comma that no name follows is part of the value.
    """
    if isinstance(raw, Mapping):
        pairs = [(str(name), text(value)) for name, value in raw.items()]
    else:
        pairs = [_variable(item) for item in texts(raw, separator=_NEXT_VARIABLE)]
    for name, _ in pairs:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UnfitValueError(f"{name!r} is not a valid name of a variable")
    return tuple(sorted(dict(pairs).items()))


def _variable(item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not equals:
        raise UnfitValueError(f"{item!r}, allowed is NAME=value")
    return name.strip(), value


def foreign(raw: object) -> tuple[tuple[str, str], ...]:
    """Keywords of another system with their texts, which it gets back unchanged; a list becomes `{a, b}`."""
    if not isinstance(raw, Mapping):
        raise UnfitValueError(f"{format_seen(raw)}, allowed is a record of names and texts")
    return tuple(sorted((text(name), _foreign_text(value)) for name, value in raw.items()))


def _foreign_text(value: object) -> str:
    if isinstance(value, list | tuple):
        return "{" + ", ".join(map(_foreign_text, value)) + "}"
    return text(value)


def logical_names(raw: object) -> tuple[str, ...]:
    """Logical file names, with or without the prefix `LFN:`, without duplicates.

    Source: DIRAC: the path is absolute and has no empty part.
    """
    found = tuple(dict.fromkeys(re.sub(r"^LFN:", "", item, flags=re.IGNORECASE) for item in texts(raw)))
    for name in found:
        if not name.startswith("/") or "//" in name:
            hint = "; a name with a comma needs a list" if isinstance(raw, str) and "," in raw else ""
            raise UnfitValueError(f"{name!r} is not a logical file name, such as LFN:/vo/path/file{hint}")
    return found


#: Readers of keywords whose value is a list.
_LISTS = (texts, names, parents, retry, relax, logical_names, environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyword:
    """One top-level keyword."""

    name: str  #: canonical spelling, in responses and stored descriptions
    attribute: str  #: attribute of `JobDescription`
    read: Callable[[object], object]  #: raises `UnfitValueError`
    meaning: str  #: for the reference of keywords
    minimum: float | None = None  #: default, if the configuration sets none
    maximum: float | None = None  #: default, if the configuration sets none
    also: tuple[str, ...] = ()  #: spellings beside singular and plural

    @property
    def is_list(self) -> bool:
        """Whether its value is a list."""
        return self.read in _LISTS

    @property
    def is_number(self) -> bool:
        """Whether its value is a number."""
        return self.minimum is not None

    def reads_text(self, stated: str) -> bool:
        """Whether a text is read as such, or as a list of texts; not as a number, say, or not at all."""
        try:
            return isinstance(self.read(stated), str | tuple)
        except UnfitValueError:
            return False


def _number(
    name: str,
    attribute: str,
    low: float,
    high: float | None,
    meaning: str,
    *also: str,
    read: Callable[[object], float] = WHOLE_NUMBER,
) -> Keyword:
    return Keyword(
        name=name, attribute=attribute, read=read, meaning=meaning, minimum=low, maximum=high, also=also
    )


def _plain(name: str, attribute: str, read: Callable[[object], object], meaning: str, *also: str) -> Keyword:
    return Keyword(name=name, attribute=attribute, read=read, meaning=meaning, also=also)


KEYWORDS = (
    # The payload.
    _plain(
        "Executable",
        "executable",
        FILLED_TEXT,
        "program that the pilot starts; a file of the input sandbox, or found on the node",
    ),
    _plain(
        "Arguments", "arguments", arguments, "its arguments, split into words as a shell does", "Argument"
    ),
    _plain(
        "Image",
        "image",
        image,
        "container image that it runs in: a path such as `/cvmfs/…`, `docker://…`, a file of its sandbox",
    ),
    _plain("StdOutput", "std_output", text, "file that gets the standard output; std.out if unset", "StdOut"),
    _plain("StdError", "std_error", text, "file that gets the standard error; std.err if unset", "StdErr"),
    _plain(
        "ExecutionEnvironment",
        "environment",
        environment,
        "environment variables of the payload: `NAME=value`",
        "Environment",
    ),
    _plain("InputSandbox", "input_sandbox", texts, "files that are sent with the job", "InputSandboxes"),
    _plain(
        "OutputSandbox", "output_sandbox", texts, "files that are kept when it has ended", "OutputSandboxes"
    ),
    _plain("LogLevel", "log_level", text, "passed on to DIRAC's job wrapper"),
    _plain("JobConfigArgs", "job_config_args", text, "passed on to DIRAC's job wrapper"),
    _plain("ForeignKeywords", "foreign", foreign, "keywords of another system, which it gets back unchanged"),
    # Identification and ownership.
    _plain("JobName", "job_name", SHORT_TEXT, "name, for people and filters"),
    _plain(
        "JobType",
        "job_type",
        SHORT_FILLED_TEXT,
        "kind of work; limits, and queues with a job manager, select by it",
        "JobTypes",
    ),
    _plain("JobGroup", "job_group", SHORT_TEXT, "group, for filters and limits"),
    _plain("After", "after", parents, "jobs that it waits for: ids, or names in the same submission"),
    _plain(
        "AfterPolicy",
        "after_policy",
        after_policy,
        "when it may run: done (all are Done, else it fails), ended (all have ended), any (one has ended)",
    ),
    _plain(
        "Retry",
        "retry",
        retry,
        "[rules](../user/retries.md) for when it fails: `137 or memory limit: Memory x 1.5, twice`",
    ),
    _plain(
        "Relax",
        "relax",
        relax,
        "[rules](../user/relax.md) for when it waits long: `after 2 h: without CPUModel, Memory x 0.5`",
    ),
    _plain("Owner", "owner", FILLED_TEXT, "owner, where the token may submit for others"),
    _plain("OwnerGroup", "owner_group", FILLED_TEXT, "group of the owner, if it has several"),
    _plain(
        "VO",
        "vo",
        FILLED_TEXT,
        "VO, if the token is for several",
        "VirtualOrganization",
        "VirtualOrganisation",
    ),
    _number(
        "Priority",
        "priority",
        0,
        10,
        "order among the jobs of one owner group, the largest first, where the VO uses it",
        "UserPriority",
        read=number,
    ),
    _number(
        "WaitingTTL",
        "waiting_ttl",
        1,
        bounds.SECONDS,
        "seconds that it may wait for a match before it fails, where the VO has set such a time",
    ),
    _plain("JobPath", "job_path", names, "steps of the optimizer chain, in place of the VO's"),
    # Input and output.
    _plain(
        "InputData",
        "input_data",
        logical_names,
        "logical names of files; the job runs at sites that have them",
    ),
    _plain("InputDataPolicy", "input_data_policy", texts, "how DIRAC's job wrapper reaches its input data"),
    _plain("OutputData", "output_data", texts, "files that DIRAC's job wrapper stores and registers"),
    _plain("OutputPath", "output_path", text, "directory there for OutputData"),
    _plain("OutputSE", "output_se", texts, "storage elements for OutputData", "OutputSEs"),
    # Requirements on the resource.
    _number("CPUTime", "cpu_time", 100, 500_000, "CPU seconds that the job takes at most", "MaxCPUTime"),
    _number(
        "MaxWallClockTime",
        "max_wall_clock_time",
        1,
        None,
        "seconds after which the pilot ends the payload",
        "WallClockTime",
    ),
    _plain("Site", "sites", names, "sites that it may run at; any if unset", "Sites"),
    _plain("BannedSites", "banned_sites", names, "sites that it may not run at", "BannedSite"),
    _plain("GridCE", "grid_ces", names, "CEs that it may run at; any if unset", "GridCEs"),
    _plain(
        "Platform",
        "platforms",
        names,
        "platforms, any of which the node must run",
        "Platforms",
        "SystemConfig",
    ),
    _plain("Tags", "tags", names, "tags, all of which the queue must have", "Tag"),
    _number("NumberOfProcessors", "processors", 1, bounds.PROCESSORS, "processors, exactly"),
    _number("MinNumberOfProcessors", "min_processors", 1, bounds.PROCESSORS, "processors at least"),
    _number(
        "MaxNumberOfProcessors",
        "max_processors",
        1,
        bounds.PROCESSORS,
        "processors at most, if more than the least are free",
    ),
    _plain("WholeNode", "whole_node", flag, "a node for itself"),
    _number("MinRAM", "min_ram_mb", 0, None, "MB of memory at least"),
    _number("MaxRAM", "max_ram_mb", 0, None, "MB of memory beyond which the pilot ends the payload"),
    _number(
        "MinRAMPerCore",
        "min_ram_per_core_mb",
        0,
        None,
        "MB of memory at least, for each processor",
        "RAMPerCore",
    ),
    *(
        _number(each.keyword, each.name, 0, each.most, f"{each.keyword} at least", *each.also)
        for each in QUANTITIES
    ),
    # Of the match-making specification of DiracX.
    _number(
        "CPUWorkDB12",
        "cpu_work_db12",
        1,
        bounds.CPU_WORK,
        "CPU work in all, in seconds of a core of DB12 power 1",
    ),
    _number("WallTime", "wall_time", 1, bounds.SECONDS, "seconds that the pilot must have left"),
    _number("MinScratch", "scratch_mb", 0, bounds.MEGABYTES, "MB of local disk at least"),
    _plain("System", "system", SHORT_FILLED_TEXT, "family of the operating system; Linux if unset"),
    _plain(
        "Architecture",
        "architecture",
        node_word,
        "architecture of the processors, as `uname -m` prints it",
    ),
    _plain("CPULevel", "cpu_level", cpu_level, "level or profile that the processors have at least"),
    _plain("CPUFeatures", "cpu_features", names, "features that the processors have", "CPUFeature"),
    _number("MaxGPUs", "gpus_max", 0, MOST_GPUS, "GPUs of the pilot at most"),
    _plain("GPUVendor", "gpu_vendor", node_word, "vendor of the GPUs: nvidia"),
    _plain(
        "GPUArchitecture", "gpu_architecture", SHORT_FILLED_TEXT, "architecture of the GPUs at least: sm_89"
    ),
    _number("GPUMemory", "gpu_memory_mb", 0, bounds.MEGABYTES, "MB of memory of each GPU at least"),
    _plain("GPURuntime", "gpu_runtime", version, "version of the GPUs' runtime, such as CUDA, at least"),
    _plain(
        "TagExpression",
        "tag_expression",
        tags_expression,
        "expression over tags with `~`, `&`, `|` that must be true of the pilot's",
    ),
    # Parts of a grid job; read by its job manager.
    _number("LocalJobs", "local_jobs", 1, 10**12, "local jobs that a job manager makes of it"),
    _number("Events", "events", 1, 10**12, "events to be made or read by all local jobs"),
    _number("EventsPerJob", "events_per_job", 1, 10**12, "events of one local job"),
    _number("EventsPerFile", "events_per_file", 1, 10**12, "events of one file"),
    _number("FirstEvent", "first_event", 0, 10**12, "number of the first event"),
    _number("Seed", "seed", 0, 2**31 - 1, "first seed of the random numbers"),
    _number("CPUPerEvent", "cpu_per_event", 0, 10**12, "CPU seconds for each event", read=number),
)

#: Keywords that are individual to each job: they affect neither where it may run nor whether it is valid.
PARTICULAR = frozenset(
    {
        *("Arguments", "StdOutput", "StdError", "ExecutionEnvironment", "OutputSandbox", "LogLevel"),
        *("JobConfigArgs", "JobName", "JobGroup", "OutputData", "OutputPath", "FirstEvent", "Seed"),
        *("ForeignKeywords", "After", "AfterPolicy", "Retry"),
    }
)
#: Keywords that may differ between jobs of one submission that share a parsed description:
#: `description.read_own` reads them separately.
OPEN = PARTICULAR | {"InputData"}

#: Keywords that identify a job, its owner, its data or its way to be prepared: a default has no meaning.
INDIVIDUAL = frozenset(
    {
        *("JobName", "JobGroup", "JobPath", "Owner", "OwnerGroup", "VO", "InputData", "InputSandbox"),
        *("WaitingTTL", "After", "AfterPolicy"),
    }
)
#: Values of keywords that neither a description nor the configuration states.
DEFAULTS: Mapping[str, object] = {"CPUTime": 86_400, "Priority": 1}
#: Priority of all jobs of a VO that does not use it.
UNUSED_PRIORITY = 1.0

#: Read by `parametric` before a description is expanded into single jobs.
PARAMETRIC = ("Parameters", "ParameterStart", "ParameterStep", "ParameterFactor")

_BY_FOLD = {fold(spelling): keyword for keyword in KEYWORDS for spelling in (keyword.name, *keyword.also)}
BY_NAME = {keyword.name: keyword for keyword in KEYWORDS}
BY_ATTRIBUTE = {keyword.attribute: keyword for keyword in KEYWORDS}
#: Every canonical spelling, for suggestions.
NAMES = (*(keyword.name for keyword in KEYWORDS), "Requirements", "Rank", *PARAMETRIC)


def find_keyword(name: str) -> Keyword | None:
    """The keyword of a name in any accepted spelling."""
    return _BY_FOLD.get(fold(name))


def is_text(name: str, number: WrittenReal, *, is_member: bool = False) -> bool:
    """Whether a number is read as its text where it is the value of a keyword, or a member of that.

    A version is none: as a number it is refused, also beside the same text.
    """
    keyword = find_keyword(name)
    if keyword is None:
        return is_member and fold(name).partition(".")[0] == fold(PARAMETRIC[0])
    if fold(keyword.name) in VERSIONS:
        return False
    return keyword.read in (environment, foreign) or keyword.reads_text(number.text)


#: Names, folded, whose values a job keeps when its description is changed, and why.
KEPT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("vo", "owner", "ownergroup"), "a job keeps its owner"),
    **dict.fromkeys(map(fold, PARAMETRIC), "the jobs are made already"),
    "inputsandbox": "a job keeps its input files",
}
#: The same for what a job keeps though a copy of it may have others.
KEPT_BY_JOB: Final[Mapping[str, str]] = {
    **KEPT,
    **dict.fromkeys(("after", "afterpolicy"), "a job waits for those that it was submitted after"),
}


@lru_cache(maxsize=1_000)  # the same for each of many copies
def find_alike(name: str, known: Sequence[str]) -> str | None:
    """What a name that is neither a keyword nor among some others is likely to mean."""
    if fold(name) in map(fold, known):
        return None
    # Of keywords those with the same first letter: Memory is no misspelt GPUMemory.
    alike = [each for each in NAMES if fold(each[0]) == fold(name[:1])]
    return did_you_mean(name, known) or did_you_mean(name, alike)


#: Before a name that means the entry in the Requirements, whether or not it is a keyword, too.
PART = "Requirements."


def find_part(name: str) -> str:
    """The name that stands behind `Requirements.`; else none."""
    stripped = name.strip()
    return stripped[len(PART) :].strip() if fold(stripped).startswith(fold(PART)) else ""


def as_json(keyword: Keyword, value: object) -> object:
    """Convert a value that the keyword has read to JSON, as in a stored description."""
    if keyword.attribute in ("environment", "foreign") and isinstance(value, tuple):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value
