"""The keywords of a job description: DIRAC's attributes in their spelling, and ours.

Looked up without case, in singular or plural.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cs_config import bounds, readers
from requirements.values import fold


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyword:
    """One top-level keyword."""

    name: str  #: as it is written in answers and stored descriptions
    attribute: str  #: of `JobDescription`
    read: Callable[[object], object]  #: raises `readers.UnfitValueError`
    minimum: float | None = None  #: unless the configuration sets another
    maximum: float | None = None  #: unless the configuration sets another
    also: tuple[str, ...] = ()  #: other spellings beside singular and plural


def _number(name: str, attribute: str, low: float, high: float | None = None, *also: str) -> Keyword:
    return Keyword(
        name=name, attribute=attribute, read=readers.whole_number, minimum=low, maximum=high, also=also
    )


def _plain(name: str, attribute: str, read: Callable[[object], object], *also: str) -> Keyword:
    return Keyword(name=name, attribute=attribute, read=read, also=also)


KEYWORDS = (
    # What runs.
    _plain("Executable", "executable", readers.filled_text),
    _plain("Arguments", "arguments", readers.arguments, "Argument"),
    _plain("StdOutput", "std_output", readers.text, "StdOut"),
    _plain("StdError", "std_error", readers.text, "StdErr"),
    _plain("ExecutionEnvironment", "environment", readers.environment, "Environment"),
    _plain("InputSandbox", "input_sandbox", readers.texts, "InputSandboxes"),
    _plain("OutputSandbox", "output_sandbox", readers.texts, "OutputSandboxes"),
    _plain("LogLevel", "log_level", readers.text),
    _plain("JobConfigArgs", "job_config_args", readers.text),
    # What it is called and whose it is.
    _plain("JobName", "job_name", readers.text),
    _plain("JobType", "job_type", readers.filled_text, "JobTypes"),
    _plain("JobGroup", "job_group", readers.text),
    _plain("Owner", "owner", readers.filled_text),
    _plain("OwnerGroup", "owner_group", readers.filled_text),
    _plain("VO", "vo", readers.filled_text, "VirtualOrganization", "VirtualOrganisation"),
    Keyword(
        name="Priority",
        attribute="priority",
        read=readers.number,
        minimum=0,
        maximum=10,
        also=("UserPriority",),
    ),
    _plain("JobPath", "job_path", readers.names),
    # What it reads and writes.
    _plain("InputData", "input_data", readers.logical_names),
    _plain("InputDataPolicy", "input_data_policy", readers.texts),
    _plain("OutputData", "output_data", readers.texts),
    _plain("OutputPath", "output_path", readers.text),
    _plain("OutputSE", "output_se", readers.texts, "OutputSEs"),
    # What it asks of a resource.
    _number("CPUTime", "cpu_time", 1, None, "MaxCPUTime"),
    _number("MaxWallClockTime", "max_wall_clock_time", 1, None, "WallClockTime"),
    _plain("Site", "sites", readers.names, "Sites"),
    _plain("BannedSites", "banned_sites", readers.names, "BannedSite"),
    _plain("GridCE", "grid_ces", readers.names, "GridCEs"),
    _plain("Platform", "platforms", readers.names, "Platforms", "SystemConfig"),
    _plain("Tags", "tags", readers.names, "Tag"),
    _number("NumberOfProcessors", "processors", 1, bounds.PROCESSORS),
    _number("MinNumberOfProcessors", "min_processors", 1, bounds.PROCESSORS),
    _number("MaxNumberOfProcessors", "max_processors", 1, bounds.PROCESSORS),
    _plain("WholeNode", "whole_node", readers.flag),
    _number("MinRAM", "min_ram_mb", 0),
    _number("MaxRAM", "max_ram_mb", 0),
    _number("MinRAMPerCore", "min_ram_per_core_mb", 0, None, "RAMPerCore"),
    _number("GPUs", "gpus", 0, bounds.GPUS, "GPU", "NumberOfGPUs"),
    # What a grid job is made of; its job manager reads them.
    _number("LocalJobs", "local_jobs", 1, 10**12),
    _number("Events", "events", 1, 10**12),
    _number("EventsPerJob", "events_per_job", 1, 10**12),
    _number("FirstEvent", "first_event", 0, 10**12),
    _number("Seed", "seed", 0, 2**31 - 1),
    Keyword(name="CPUPerEvent", attribute="cpu_per_event", read=readers.number, minimum=0, maximum=10**12),
)

#: What each job has for itself: it changes neither where the job may run nor what is wrong with it otherwise.
PARTICULAR = frozenset(
    {
        *("Arguments", "StdOutput", "StdError", "ExecutionEnvironment", "OutputSandbox", "LogLevel"),
        *("JobConfigArgs", "JobName", "JobGroup", "OutputData", "OutputPath", "FirstEvent", "Seed"),
    }
)
PARTICULAR_FOLDED = frozenset(map(fold, PARTICULAR))
#: What jobs of one submission may differ in though they are read once: `description.read_own` reads it alone.
OPEN = PARTICULAR | {"InputData"}

#: Read by `parametric` before a description is one job's.
PARAMETRIC = ("Parameters", "ParameterStart", "ParameterStep", "ParameterFactor")

_BY_FOLD = {fold(spelling): keyword for keyword in KEYWORDS for spelling in (keyword.name, *keyword.also)}
BY_NAME = {keyword.name: keyword for keyword in KEYWORDS}
BY_ATTRIBUTE = {keyword.attribute: keyword for keyword in KEYWORDS}
#: Every canonical spelling, what suggestions are made of.
NAMES = (*(keyword.name for keyword in KEYWORDS), "Requirements", "Rank", *PARAMETRIC)


def find(name: str) -> Keyword | None:
    """The keyword of a name in any spelling that is understood."""
    return _BY_FOLD.get(fold(name))


def without_particulars(body: Mapping[str, object]) -> dict[str, object]:
    """What a description asks: a stored body without what each job has for itself."""
    return {name: value for name, value in body.items() if name not in PARTICULAR}
