"""A request for work and its answer.

The words of one request for work, by our names and with their meaning.

Reading what a pilot presents.

Names in DIRAC's spelling, singular or plural, without regard to case; values one or a list. What has no
meaning here is kept and answered with a warning, never refused: a newer pilot works with an older server.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cs_config.options import bounds
from cs_config.tree.address import QueueAddress
from matcher.request import node_facts
from matcher.request.node_facts import Facts
from matcher.request.resource import Resource, StatedResource, Values
from requirements.errors import MOST_HINTS, InvalidResource, Problem, did_you_mean
from requirements.values import fold
from taskqueue.leases.claim import ClaimedJob

#: Seconds until an idle pilot asks again.
RETRY_AFTER = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchCaller:
    """Who asks, as their token says."""

    subject: str
    vos: frozenset[str]  #: lower case; only jobs of these
    queue: QueueAddress | None = None  #: the only one it may speak for; None: any
    stamp: str | None = None  #: of the pilot


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchRequest:
    """A pilot's request for work."""

    presented: StatedResource
    caller: MatchCaller
    deadline: float  #: on the monotonic clock; what cannot be delivered by then is not claimed
    count: int = 1  #: jobs at most
    request_id: str | None = None  #: the same again within the lease gets the same jobs
    #: The same for all that say the same of the same place with the same rights; None: nobody compares.
    likeness: Hashable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchResult:
    """What the pilot is given, or why nothing."""

    matches: tuple[ClaimedJob, ...] = ()
    reason: str | None = None  #: one word if there is nothing: no_task_queue, not_usable, banned
    retry_after: int | None = None  #: seconds
    warnings: tuple[str, ...] = ()


#: Of any number: integers are exact to here wherever they come by.
LARGEST = 2**53
#: Pools in one request.
_MOST_POOLS = 3000
#: `any`, however written in ASCII.
_ANY = re.compile(r"[\W_]*a[\W_]*n[\W_]*y[\W_]*", re.IGNORECASE)
_POOL_ID = re.compile(r"[0-9a-f]{64}")

#: Spelling in requests to our name; plurals are added below.
_KEYWORDS = {
    "CPUTime": "cpu_time",
    "Site": "site",
    "GridCE": "ce",
    "CE": "ce",
    "Queue": "queue",
    "Platform": "platforms",
    "JobType": "job_types",
    "Owner": "owners",
    "OwnerGroup": "owner_groups",
    "VO": "vo",
    "VirtualOrganization": "vo",
    "Tag": "tags",
    "RequiredTag": "required_tags",
    "BannedSite": "banned_sites",
    "BannedGridCE": "banned_grid_ces",
    "BannedPlatform": "banned_platforms",
    "BannedJobType": "banned_job_types",
    "BannedTag": "banned_tags",
    "MaxRAM": "max_ram",
    "NumberOfProcessors": "processors",
    "Processors": "processors",
    "GPUs": "gpus",
    "GPU": "gpus",
    "NumberOfGPUs": "gpus",
    "WholeNode": "whole_node",
    "SubmitPool": "pools",
    "PilotReference": "reference",
    "PilotStamp": "stamp",
    "Stamp": "stamp",
    "JobID": "job_id",
    "NodeFacts": "node_facts",
}
#: Said by DIRAC's pilots; they mean nothing for a match, and nobody has to be warned of them.
_SILENT = frozenset(
    fold(name)
    for name in (
        *("DIRACVersion", "ReleaseVersion", "ReleaseProject", "PilotBenchmark", "PilotInfoReportedFlag"),
        *("CEQueue", "Community", "CPUNormalizationFactor"),
    )
)
_NAMES = {fold(name + plural): known for name, known in _KEYWORDS.items() for plural in ("", "s")}
_FLAGS: Mapping[str, bool] = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class RequestKeywords:
    """What one request says, by our names; its problems are collected, so that all are told at once."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.unknown: dict[str, object] = {}
        self._said: dict[str, tuple[str, object]] = {}
        self._sort(raw)

    def complain(self, path: str, message: str) -> None:
        """Note that something is wrong; the same twice is told once."""
        problem = Problem(path=path, message=message)
        if problem not in self.problems:
            self.problems.append(problem)

    def spelling(self, known: str) -> str:
        """How the request spells what it says."""
        return self._said[known][0]

    def _sort(self, raw: Mapping[str, Any]) -> None:
        """Keep what was said, by our name, with the spelling it had."""
        said = self._said
        for name, value in raw.items():
            known = _NAMES.get(fold(name))
            if known is None:
                self._keep(name, value)
            elif known in said and said[known][1] != value:
                self.complain(name, f"{name} and {said[known][0]} are the same and say different things")
            elif value is not None:
                said[known] = (name, value)

    def _keep(self, name: str, value: object) -> None:
        self.unknown[name] = value
        if fold(name) not in _SILENT:
            meant = did_you_mean(name, _KEYWORDS) if len(self.warnings) < MOST_HINTS else None
            hint = f", did you mean {meant}?" if meant else ""
            self.warnings.append(f"{name}: not known here, kept as an attribute{hint}")

    def values(self, known: str) -> Values:
        """The folded values; None if there is no condition: absent, empty or `any`."""
        if known not in self._said or self.says_any(known):
            return None
        return frozenset(map(fold, self._stripped(*self._said[known]))) or None

    def _stripped(self, name: str, value: object) -> list[str]:
        return [text.strip() for text in self._texts(name, value) if text.strip()]

    def _texts(self, name: str, value: object) -> Iterable[str]:
        if isinstance(value, str):
            # DIRAC's pilots write lists of tags as text: `["a", b]`.
            bracketed = value.strip().startswith("[") and value.strip().endswith("]")
            return (
                [part.strip(" \"'") for part in value.strip().strip("[]").split(",")]
                if bracketed
                else [value]
            )
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return value
        self.complain(name, f"is {_format_value(value)}, allowed is text or a list of texts")
        return []

    def says_any(self, known: str) -> bool:
        """Whether it is `any`, however written; in a list one element is enough."""
        _, value = self._said.get(known, ("", None))
        words = value if isinstance(value, list) else [value]
        return any(isinstance(word, str) and _is_any(word) for word in words)

    def one(self, known: str) -> str:
        """The one value of what `values` reads, as written; empty if there is none or several."""
        if known not in self._said or self.says_any(known):
            return ""
        found = {fold(text): text for text in self._stripped(*self._said[known])}
        return found.popitem()[1] if len(found) == 1 else ""

    def pools(self) -> frozenset[str]:
        """The ids of the pools it was told to serve; what is none is left out with a warning."""
        if "pools" not in self._said:
            return frozenset()
        texts = {text.strip().lower() for text in self._texts(*self._said["pools"])}
        if len(texts) > _MOST_POOLS:
            self.complain(self._said["pools"][0], f"{len(texts)} pools, allowed are {_MOST_POOLS}")
            return frozenset()
        self.warnings += [
            f"SubmitPool: {text} is no pool id" for text in texts if text and not _is_pool(text)
        ]
        return frozenset(filter(_is_pool, texts))

    def node_facts(self) -> Facts:
        """What the pilot measured at its node."""
        if "node_facts" not in self._said:
            return {}
        name, value = self._said["node_facts"]
        facts, problems = node_facts.read_facts(value, name)
        self.problems += problems
        return facts

    def cpu_time(self) -> float:
        """The seconds that are left; of several the most, since any of them will do."""
        if "cpu_time" not in self._said:
            self.complain("CPUTime", "is missing: how many seconds of CPU time the resource has left")
            return 0
        name, value = self._said["cpu_time"]
        numbers = value if isinstance(value, list) and value else [value]
        return max(self._whole(name, number, 0, LARGEST) or 0 for number in numbers)

    def whole_number(self, known: str, low: int, high: int) -> int | None:
        """The number; None if it is absent."""
        return None if known not in self._said else self._whole(*self._said[known], low, high)

    def _whole(self, name: str, value: object, low: int, high: int) -> int | None:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.complain(name, f"is {_format_value(value)}, allowed is a whole number from {low} to {high}")
        return None

    def flag(self, known: str) -> bool:
        """Yes or no."""
        if known not in self._said:
            return False
        name, value = self._said[known]
        if isinstance(value, str) and fold(value) in _FLAGS:
            return _FLAGS[fold(value)]
        if not isinstance(value, bool):
            self.complain(name, f"is {_format_value(value)}, allowed is true or false")
        return value is True


def _is_any(word: str) -> bool:
    if word.isascii():  # nearly all are, and a pilot may say hundreds
        return _ANY.fullmatch(word) is not None
    return re.sub(r"[\W_]", "", fold(word)) == "any"


_is_pool: Callable[[str], object] = _POOL_ID.fullmatch


def _format_value(value: object) -> str:
    return f"{str(value)[:40]} ({type(value).__name__})"


_MANY = "multiprocessor"
_WHOLE = "wholenode"

#: What says where a pilot is.
_PLACE = ("site", "ce", "queue")


def read_resource(raw: Mapping[str, Any]) -> StatedResource:
    """What a request for work says.

    Raises:
        InvalidResource: With every problem of it: a number that is none, a keyword twice, no CPUTime.
    """
    said = RequestKeywords(raw)
    presented = StatedResource(
        resource=_build_resource(said),
        site=said.one("site"),
        ce=said.one("ce"),
        queue=said.one("queue"),
        several=tuple(said.spelling(each) for each in _PLACE if len(said.values(each) or ()) > 1),
        pools=said.pools(),
        stamp=said.one("stamp") or said.one("reference") or None,
        job_id=said.whole_number("job_id", 1, LARGEST),
        node_facts=said.node_facts(),
        attributes=said.unknown,
        warnings=tuple(said.warnings),
    )
    if said.problems:
        raise InvalidResource(said.problems)
    return presented


def _build_resource(said: RequestKeywords) -> Resource:
    processors = said.whole_number("processors", 1, bounds.PROCESSORS)
    whole_node = said.flag("whole_node")
    required = said.values("required_tags") or frozenset()
    offered: Values = None  # any tag
    if not said.says_any("tags"):
        named = said.values("tags") or frozenset()
        offered = named | _core_tags(processors or 0, whole_node=whole_node)
    if (offered is None and required) or (offered is not None and not required <= offered):
        said.complain(
            said.spelling("required_tags"),
            f"{sorted(required)} are required of jobs but not all offered under Tag",
        )
    return Resource(
        cpu_time=said.cpu_time(),
        sites=said.values("site"),
        grid_ces=said.values("ce"),
        platforms=said.values("platforms"),
        job_types=said.values("job_types"),
        owners=said.values("owners"),
        owner_groups=said.values("owner_groups"),
        vos=said.values("vo"),
        tags=offered,
        required_tags=required,
        banned_sites=said.values("banned_sites") or frozenset(),
        banned_grid_ces=said.values("banned_grid_ces") or frozenset(),
        banned_platforms=said.values("banned_platforms") or frozenset(),
        banned_job_types=said.values("banned_job_types") or frozenset(),
        banned_tags=said.values("banned_tags") or frozenset(),
        max_ram=said.whole_number("max_ram", 0, LARGEST),
        processors=processors,
        gpus=said.whole_number("gpus", 0, LARGEST) or 0,
        whole_node=whole_node,
    )


def _core_tags(processors: int, *, whole_node: bool) -> frozenset[str]:
    """The tags by which jobs ask for cores.

    Source: DIRAC: n cores offer `1Processors` … `nProcessors`, and `MultiProcessor` if there are several.
    """
    tags = {f"{number}processors" for number in range(1, processors + 1)}
    if processors > 1:
        tags.add(_MANY)
    if whole_node:
        tags |= {_WHOLE, _MANY}
    return frozenset(tags)
