"""Jobs of the model: what a description means, which resource it fits, what limits it.

A description is the JSON that the service takes, with `Requirements` as a record (a mapping) or an expression
(`configuration.Expression`). Each function names the paragraph of the specification that it restates; the
conditions 1-11 are DIRAC's, to which part 2 refers.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.nightly.model import configuration
from tests.nightly.model.configuration import Parameters, Tree

Description = dict[str, Any]
Resource = dict[str, Any]

#: DIRAC's segments, in seconds: a job's CPU time counts as the next of these.
_SEGMENTS = (360, 1800, 3600, 21600, 43200, 86400, 172800, 259200, 345600, 518400, 691200, 864000, 1080000)
#: §1: job types that only job managers handle, given only to a resource that names them.
_OF_MANAGERS = {"generic", "montecarlo"}
#: Seconds that a pilot offers where its queue has no `CPUTime`.
_CPU_TIME_OF_PILOTS = 259200
FINAL = {"Done", "Failed", "Killed", "Deleted"}


@dataclass(eq=False)
class Attempt:
    """§5 one hand-over of a job; open until it is finished, released, rescheduled or lost."""

    job: "Job"
    queue: str  #: Site/CE/Queue
    epoch: int
    lease: str
    processors: int
    started: bool = False
    is_open: bool = True
    end: dict[str, Any] | None = None  #: the report that closed it, which may be repeated
    was_released: bool = False  #: by its pilot, which may repeat that
    #: Rescheduled by its user: it may still run or be on its way, so its reservation stays.
    was_taken_away: bool = False
    was_lost: bool = False  #: after its start: it may still run as well, and its pilot may come back
    #: §3 "Reservations": the places (prefixes of `queue`) whose advertisement contains it.
    acknowledged: set[str] = field(default_factory=set)

    @property
    def is_reserved(self) -> bool:
        return self.is_open or self.was_taken_away or self.was_lost


@dataclass(eq=False)
class Job:
    """A job as the service shows it."""

    id: int
    description: Description
    status: str = "Waiting"
    reschedules: int = 0
    rescheduled_at: int | None = None  #: number of its attempts when that was asked for the last time
    attempts: list[Attempt] = field(default_factory=list)
    in_flux: bool = False  #: its pilot was lost: the agents will take it back

    @property
    def vo(self) -> str:
        return self.description["VO"]

    @property
    def requirements(self) -> Any:
        return self.description.get("Requirements")

    @property
    def open_attempt(self) -> Attempt | None:
        return next((each for each in self.attempts if each.is_open), None)

    def attribute(self, name: str) -> str:
        """What limits count: JobType, Owner, OwnerGroup, VO; without case."""
        return str(self.description.get(name, "")).lower()


# ---------------------------------------------------------------------------- a job and a resource


def cpu_time(description: Description) -> int:
    """Condition 1: rounded up to a segment; the default of the program is a day."""
    seconds = description.get("CPUTime", 86400)
    return next((segment for segment in _SEGMENTS if segment >= seconds), _SEGMENTS[-1])


def cores(description: Description) -> tuple[int, bool]:
    """The least number of cores, and whether the job is one of several cores (tag `MultiProcessor`)."""
    least = description.get("NumberOfProcessors", description.get("MinNumberOfProcessors", 1))
    most = description.get("NumberOfProcessors", description.get("MaxNumberOfProcessors", least))
    open_range = "MinNumberOfProcessors" in description and "MaxNumberOfProcessors" not in description
    return least, max(least, most) > 1 or open_range or bool(description.get("WholeNode"))


def memory(description: Description, number: int | None = None) -> float:
    """MB on a number of cores, by default the least: `MinRAM + MinRAMPerCore · n`."""
    number = cores(description)[0] if number is None else number
    return description.get("MinRAM", 0) + description.get("MinRAMPerCore", 0) * number


def given_cores(description: Description, resource: Resource, *, alone: bool) -> int:
    """The cores that a job is given: its fewest beside others, alone as many as it can use.

    A whole node, if it asks for one. Of cores that a resource does not state it gets its fewest.
    """
    number, _ = cores(description)
    offered = resource.get("NumberOfProcessors", number)
    if description.get("WholeNode"):
        return offered
    is_open = "MinNumberOfProcessors" in description and "MaxNumberOfProcessors" not in description
    most = offered if is_open else min(offered, description.get("MaxNumberOfProcessors", number))
    while alone and number < most and memory(description, number + 1) <= resource.get("MaxRAM", float("inf")):
        number += 1
    return number


def fits(description: Description, resource: Resource) -> bool:
    """§2: the conditions 1-9 of DIRAC and the numbers beyond it, all without case; pools are apart."""
    return all(holds(description, resource) for holds in CONDITIONS.values())


def _folded(values: Any) -> set[str]:
    return {value.lower() for value in configuration.as_list(values)}


def _stated(resource: Resource, key: str, wanted: Any) -> bool:
    """Condition 4: what a resource states otherwise is excluded; what it leaves out is no condition."""
    return not wanted or resource.get(key) is None or bool(_folded(wanted) & _folded(resource[key]))


def _of_its_type(wanted: str, offered: Any) -> bool:
    """Condition 4; §1: a type of job managers goes only to a resource that names it."""
    if offered is None:
        return wanted.lower() not in _OF_MANAGERS
    return not wanted or wanted.lower() in _folded(offered)


def tags_lacking(description: Description, resource: Resource) -> set[str]:
    """Condition 6: every tag of the job is offered."""
    return _folded(description.get("Tags", [])) - _folded(resource.get("Tag", []))


def _cores_fit(description: Description, resource: Resource) -> bool:
    """§2 "Beyond it": numbers of cores, jobs of several cores."""
    least, several = cores(description)
    offered = resource.get("NumberOfProcessors", 1)
    return least <= offered and (not several or offered > 1 or bool(resource.get("WholeNode")))


#: Each condition, by the keyword of the job (or of the resource) that states it.
CONDITIONS: Mapping[str, Callable[[Description, Resource], bool]] = {
    "CPUTime": lambda job, has: cpu_time(job) <= has["CPUTime"],
    "Site": lambda job, has: _stated(has, "Site", job.get("Site")),
    "BannedSites": lambda job, has: has["Site"].lower() not in _folded(job.get("BannedSites", [])),
    "GridCE": lambda job, has: _stated(has, "GridCE", job.get("GridCE")),
    "Platform": lambda job, has: _stated(has, "Platform", job.get("Platform")),
    "JobType": lambda job, has: _of_its_type(job.get("JobType", ""), has.get("JobType")),
    "Tags": lambda job, has: not tags_lacking(job, has),
    "RequiredTag": lambda job, has: _folded(has.get("RequiredTag", [])) <= _folded(job.get("Tags", [])),
    "MinRAM": lambda job, has: memory(job) <= has.get("MaxRAM", float("inf")),
    "NumberOfProcessors": _cores_fit,
    "GPUs": lambda job, has: job.get("GPUs", 0) <= has.get("GPUs", 0),
    "WholeNode": lambda job, has: not job.get("WholeNode") or bool(has.get("WholeNode")),
}


def near(description: Description, resource: Resource) -> list[Resource]:
    """The resource with just enough for one condition of a job, and with a little less, in all ways."""
    tags, (least, _) = description.get("Tags", []), cores(description)
    more = [*configuration.as_list(resource["Tag"]), "td"]
    found: list[Resource] = []
    for less in (0, 1):
        if "CPUTime" in description:
            found.append({"CPUTime": cpu_time(description) - less})
        if tags:
            found += [{"Tag": tags[less:]}, {"RequiredTag": [*tags, *["td"][:less]], "Tag": more}]
        if "JobType" in description:
            found.append({"JobType": ["Other"] if less else ["Other", description["JobType"].upper()]})
        if "Platform" in description:
            found.append({"Platform": "el7" if less else description["Platform"][0].upper()})
        if memory(description):
            found.append({"MaxRAM": memory(description) - less})
        if "GPUs" in description:
            found.append({"GPUs": description["GPUs"] - less})
        if least > 1:
            found.append({"NumberOfProcessors": least - less, "WholeNode": False})
        if "WholeNode" in description:
            found.append({"WholeNode": not less})
    return [resource | each for each in found]


#: What a job may need more or less of: the value that an offer just has, or (1) the next that it has not.
EDGES: Mapping[str, Callable[[Resource, int], Any]] = {
    "CPUTime": lambda offer, more: min(500000, offer["CPUTime"] + more),
    "MinRAM": lambda offer, more: offer.get("MaxRAM", 2000) + more,
    "GPUs": lambda offer, more: offer.get("GPUs", 0) + more,
    "NumberOfProcessors": lambda offer, more: offer.get("NumberOfProcessors", 1) + more,
    "Tags": lambda offer, more: [*sorted(_folded(offer.get("Tag", []))), *["td"][:more]],
    "Platform": lambda offer, more: ["el7"] if more else configuration.as_list(offer.get("Platform", "el8")),
    "Site": lambda offer, more: [offer["Site"].upper() if not more else "Nowhere.x"],
    "BannedSites": lambda offer, more: [offer["Site"].upper() if more else "Nowhere.x"],
    "GridCE": lambda offer, more: [offer["GridCE"].upper() if not more else "cx"],
}


def at_the_edge(description: Description, offer: Resource, number: int) -> Description:
    """The description with one need that an offer just fulfils, or just does not."""
    name = list(EDGES)[number // 2]
    others = {n: v for n, v in description.items() if n not in _CONTRADICTING.get(name, ())}
    return {**others, name: EDGES[name](offer, number % 2)}


_CORES = ("MinNumberOfProcessors", "MaxNumberOfProcessors", "WholeNode")
#: Keywords that say the same, or the opposite.
_CONTRADICTING = {"Site": ("BannedSites",), "BannedSites": ("Site",), "NumberOfProcessors": _CORES}


def offer_of_queue(values: Parameters, queue: str) -> Resource:
    """What a queue offers by the tree, as explanations count it: without a value it excludes nothing."""
    site, ce, _ = queue.split("/")
    names = {
        "MaxRAM": "maxram",
        "NumberOfProcessors": "numberofprocessors",
        "Platform": "platform",
        "GPUs": "gpus",
        "WholeNode": "wholenode",
        "Tag": "tag",
        "RequiredTag": "requiredtag",
    }
    stated = {key: values[name] for key, name in names.items() if name in values}
    if "RequiredTag" in stated:  # is offered as well
        stated["Tag"] = [*configuration.as_list(stated.get("Tag", [])), *stated["RequiredTag"]]
    return {"CPUTime": values.get("cputime", _CPU_TIME_OF_PILOTS), "Site": site, "GridCE": ce, **stated}


# ---------------------------------------------------------------------------- limits and throttles


def places_of(queue: str) -> list[str]:
    """The site, the CE and the queue: §3 "same rules at each level, all must agree"."""
    site, ce, _ = queue.split("/")
    return [site, f"{site}/{ce}", queue]


def lies_in(queue: str, place: str) -> bool:
    """Whether a queue is a place, or at it."""
    return f"{queue}/".startswith(f"{place}/")


@dataclass(frozen=True)
class Limit:
    """§2 "Running limits" or "matching delays" of one value of an attribute at one place."""

    place: str
    attribute: str
    value: str
    #: Jobs at a time; None: any number. Of a delay the matches of its burst: none comes back in a test.
    amount: int | None
    vo: str | None  #: whose jobs it counts; None: of all
    is_delay: bool
    cores: int | None = None  #: of these jobs together; None: any number
    is_section: bool = False  #: written as `{count, cores}`

    def concerns(self, job: Job, queue: str) -> bool:
        """Whether it counts and limits a job at a queue."""
        return (
            lies_in(queue, self.place)
            and job.attribute(self.attribute) == self.value.lower()
            and self.vo in {None, job.vo}
        )


def limits(tree: Tree, vo: str) -> list[Limit]:
    """The limits on jobs of a VO: those of the nodes of the tree, and those of the operations.

    A limit of the VO replaces the same one of `Defaults` for it, but none that the site wrote. Of jobs and
    cores it has from `Defaults` what it does not state itself.
    """
    found: list[Limit] = []
    for site, node in tree["Resources"]["Sites"].items():
        found += _written(node, site, None)
        for ce, inner in node.get("CEs", {}).items():
            found += _written(inner, f"{site}/{ce}", None)
    of_operations: dict[Any, Limit] = {}
    for scope, counted in (("Defaults", None), (vo, vo)):
        options = tree.get("Operations", {}).get(scope, {}).get("JobScheduling", {})
        for key in ("RunningLimit", "MatchingDelay"):
            for site, values in options.get(key, {}).items():
                for limit in _written({key: values}, site, counted):
                    same = limit.place, limit.attribute, limit.value.lower(), limit.is_delay
                    of_operations[same] = _complete(limit, of_operations.get(same))
    return [*found, *of_operations.values()]


def _complete(limit: Limit, default: Limit | None) -> Limit:
    if default is None or not (limit.is_section and default.is_section):
        return limit
    amount = default.amount if limit.amount is None else limit.amount
    return replace(limit, amount=amount, cores=default.cores if limit.cores is None else limit.cores)


def tier(tree: Tree, job: Job) -> int:
    """Options of the operations, JobScheduling, 2: the tier of a job's type; types in none come last.

    The list of the VO replaces that of `Defaults`; without one all jobs are of the same tier.
    """
    operations = tree.get("Operations", {})
    scheduling = [operations.get(scope, {}).get("JobScheduling", {}) for scope in (job.vo, "Defaults")]
    listed = next((each["JobPriorities"] for each in scheduling if "JobPriorities" in each), [])
    for number, written in enumerate(listed):
        weighed = [each.partition(":")[0].strip().lower() for each in written.strip("{}").split(",")]
        if job.attribute("JobType") in weighed:
            return number
    return len(listed)


def _written(node: Mapping[str, Any], place: str, vo: str | None) -> Iterable[Limit]:
    for attribute, values in node.get("RunningLimit", {}).items():
        for value, stated in values.items():
            is_section = isinstance(stated, dict)
            amount, cores = (stated.get("count"), stated.get("cores")) if is_section else (stated, None)
            yield Limit(
                place, attribute, value, amount, vo, is_delay=False, cores=cores, is_section=is_section
            )
    delays = node.get("MatchingDelay", {})
    for attribute, values in delays.items():
        for value in values if attribute != "Burst" else ():
            burst = delays.get("Burst", {}).get(attribute, {}).get(value, 1)
            yield Limit(place, attribute, value, burst, vo, is_delay=True)


def start_value(policy: str, values: Mapping[str, Any]) -> int:
    """§3, the table of policies: the start value of CurMatches."""
    names = {
        "level0": ("CurrentSubmittingJobs",),
        "level1": ("CurrentSubmittingJobs", "CurrentGatheringOutputJobs"),
        "pending": ("CurrentPendingJobs",),
    }.get(policy, ("CurrentJobs",))
    return sum(values.get(name, 0) for name in names)


def room(throttle: Mapping[str, Any], values: Mapping[str, Any], matched: int) -> int:
    """§3, the table of policies: how many matches a throttle admits now.

    Args:
        throttle: The section of the tree.
        values: What was advertised.
        matched: JobsMatchedSinceLastAdvertisement: matches that no advertisement contains.
    """
    policy = throttle["Policy"]

    def limit(name: str) -> int:
        """Limits come from both; the smaller holds; one that neither sets closes the policy."""
        return min((each[name] for each in (throttle, values) if name in each), default=0)

    submitting, gathering = (values.get(f"Current{k}Jobs", 0) for k in ("Submitting", "GatheringOutput"))
    start = start_value(policy, values)
    rooms = {
        "level0": [limit("MaxSubmittingJobs") - start],
        "level1": [limit("MaxSubmittingAndOutputGatheringJobs") - start],
        "level2": [
            limit("MaxJobs") - start,
            limit("MaxSubmittingAndOutputGatheringJobs") - submitting - gathering,
        ],
        "brokering": [limit("MaxJobs") - start, limit("MaxSubmittingJobs") - submitting],
        "pending": [limit("MaxPendingJobs") - start],
    }
    if policy == "simple":  # evaluated for each advertisement only
        return 10**9 if values.get("CurrentJobs", 0) < limit("MaxJobs") else 0
    return max(0, min(rooms[policy]) - matched)
