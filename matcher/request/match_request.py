"""A request for work, its keywords, its result, and the errors that callers can handle.

Keywords are spelled as in DIRAC, singular or plural, in any case; values are single or lists. An unknown
keyword is kept and causes a warning, never an error, so that newer pilots work with an older server.
"""

import re
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from cs_config.options import bounds
from cs_config.tree.address import QueueAddress
from matcher.request import node_document, node_keywords
from requirements.errors import (
    MOST_HINTS,
    MOST_PROBLEMS,
    InvalidResource,
    NotAllowed,
    PilotageError,
    Problem,
    did_you_mean,
)
from requirements.nodes import node_facts
from requirements.nodes.node_facts import Facts
from requirements.quantities import QUANTITIES
from requirements.resource import Resource, StatedResource, Values
from requirements.values import fold
from taskqueue.leases.attempts import AttemptTimes, RequestKey
from taskqueue.leases.opening import ClaimedJob


class Busy(PilotageError):
    """Too many pilots ask at once, or the claim thread is not running; retry later."""

    code = "busy"
    retry_after = 5  #: seconds


class NotInTime(PilotageError):
    """No result before the pilot's deadline; no job was claimed for it."""

    code = "not_in_time"
    retry_after = 1  #: seconds


class Unserved(PilotageError):
    """Requests served together failed; some of them may have their jobs by now."""

    code = "unserved"

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"could not be served together with others: {cause}")
        self.cause = cause


class NotServed(NotAllowed):
    """The stated VO or queue is outside the token's rights."""


#: Seconds until an idle pilot asks again.
RETRY_AFTER = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchCaller:
    """Identity and rights of the caller, from the token."""

    subject: str
    vos: frozenset[str]  #: lower case; only jobs of these VOs
    queue: QueueAddress | None = None  #: the only queue that the token is valid for; None: any
    stamp: str | None = None  #: of the pilot


#: Memory that a statement takes once it is read, for each byte of its JSON.
_READ = 16


def measure(cache_key: Hashable) -> int:
    """Bytes that a statement takes in a cache, as JSON and read."""
    stated = cache_key[0] if isinstance(cache_key, tuple) else b""
    return (1 + _READ) * len(stated) if isinstance(stated, bytes) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchRequest:
    """A pilot's request for work."""

    presented: StatedResource  #: its place in the configuration's spelling
    caller: MatchCaller
    deadline: float  #: monotonic clock; a job that cannot be delivered by then is not claimed
    count: int = 1  #: jobs at most
    request_id: str | None = None  #: a repetition within the lease gets the same jobs
    #: Cache key, equal for equal statements from the same place with the same rights; None: not cached. It
    #: begins with the statement.
    cache_key: Hashable | None = None
    time_left: float | None = None  #: of a node's document: its wall time, which the cache key leaves out
    times: AttemptTimes | None = None  #: of its attempts; None: those of the VO

    @property
    def key(self) -> RequestKey | None:
        """Its idempotency key; None: it has none."""
        return None if self.request_id is None else (self.caller.subject, self.request_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchResult:
    """The claimed jobs, or the reason why there are none."""

    matches: tuple[ClaimedJob, ...] = ()
    reason: str | None = None  #: reason code if there are none; all are listed at `Matches.reason`
    warnings: tuple[str, ...] = ()


#: Largest number: the largest integer that is exact as a float.
LARGEST = 2**53
#: Pools per request.
_MOST_POOLS = 3000
#: `any`, in any ASCII spelling.
_ANY = re.compile(r"[\W_]*a[\W_]*n[\W_]*y[\W_]*", re.IGNORECASE)
#: A whole number as text, as DIRAC's configuration has all numbers.
_NUMBER = re.compile(r"\s*[0-9]{1,16}\s*", re.ASCII)
_POOL_ID = re.compile(r"[0-9a-f]{64}")

#: Fields of a resource with the names that it accepts, and their keywords; and those that it bans.
_ACCEPTED = {
    "sites": "site",
    "grid_ces": "ce",
    "platforms": "platforms",
    "job_types": "job_types",
    "owners": "owners",
    "owner_groups": "owner_groups",
    "vos": "vo",
}
_BANNED = {
    "BannedSite": "banned_sites",
    "BannedGridCE": "banned_grid_ces",
    "BannedPlatform": "banned_platforms",
    "BannedJobType": "banned_job_types",
    "BannedTag": "banned_tags",
}
#: Keyword to internal name; plurals are added below.
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
    **_BANNED,
    "MaxRAM": "max_ram",
    "NumberOfProcessors": "processors",
    "Processors": "processors",
    **{spelling: each.name for each in QUANTITIES for spelling in (each.keyword, *each.also)},
    "WholeNode": "whole_node",
    **node_keywords.KEYWORDS,
    "SubmitPool": "pools",
    "PilotReference": "reference",
    "PilotStamp": "stamp",
    "Stamp": "stamp",
    "JobID": "job_id",
    "NodeFacts": "node_facts",
    "SubmitFlag": "submit_flags",
}
#: Keywords of DIRAC's pilots that do not affect matching and need no warning.
_IGNORED = frozenset(
    fold(name)
    for name in (
        *("DIRACVersion", "ReleaseVersion", "ReleaseProject", "PilotBenchmark", "PilotInfoReportedFlag"),
        *("CEQueue", "Community", "CPUNormalizationFactor"),
    )
)
_NAMES = {fold(name + plural): known for name, known in _KEYWORDS.items() for plural in ("", "s")}
#: Lists that DIRAC also writes as one text; a tag has no comma.
_TAGS = frozenset({"tags", "required_tags", "banned_tags"})
_FLAGS: Mapping[str, bool] = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class RequestKeywords:
    """The keywords of one request by internal name; all problems are collected, to report them together."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.problems: list[Problem] = []  # the first ones
        self.warnings: list[str] = []
        self.unknown: dict[str, object] = {}
        self._stated: dict[str, tuple[str, object]] = {}
        for name, stated in raw.items():
            known = _NAMES.get(fold(name))
            value = _split_text(stated) if known in _TAGS and isinstance(stated, str) else stated
            if known is None:
                self.unknown[name] = value
                if fold(name) not in _IGNORED:
                    meant = did_you_mean(name, _KEYWORDS) if len(self.warnings) < MOST_HINTS else None
                    hint = f", did you mean {meant}?" if meant else ""
                    self.warnings.append(f"{name}: unknown, kept as an attribute{hint}")
            elif known in self._stated and self._stated[known][1] != value:
                other = self._stated[known][0]
                self.add_problem(name, f"{name} and {other} are the same keyword with different values")
            elif value is not None:
                self._stated[known] = (name, value)

    def add_problem(self, path: str, message: str) -> None:
        """Add a problem, once, unless there are many."""
        problem = Problem(path=path, message=message)
        if len(self.problems) < MOST_PROBLEMS and problem not in self.problems:
            self.problems.append(problem)

    def spelling(self, known: str) -> str:
        """The keyword as spelled in the request."""
        return self._stated[known][0]

    def values(self, known: str) -> Values:
        """The folded values; None if there is no condition: absent, empty or `any`."""
        return frozenset(map(fold, self.texts(known) or ())) or None

    def texts(self, known: str) -> frozenset[str] | None:
        """The values as written, none if absent; None: `any`."""
        if known not in self._stated:
            return frozenset()
        if self._is_any(known):
            return None
        return frozenset(text.strip() for text in self._list_texts(*self._stated[known]) if text.strip())

    def _list_texts(self, name: str, value: object) -> list[str]:
        if isinstance(value, str):
            is_list = value.strip().startswith("[") and value.strip().endswith("]")
            return _split_text(value) if is_list else [value]
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return value
        self.add_problem(name, f"is {_format_value(value)}, allowed is text or a list of texts")
        return []

    def _is_any(self, known: str) -> bool:
        """Whether the value is `any`; in a list one element is enough."""
        _, value = self._stated[known]
        words = value if isinstance(value, list) else [value]
        return any(isinstance(word, str) and _is_any(word) for word in words)

    def single(self, known: str) -> str:
        """The single value of `values`, as written; empty if there is none or several."""
        found = {fold(text): text for text in self.texts(known) or ()}
        return found.popitem()[1] if len(found) == 1 else ""

    def pools(self) -> frozenset[str]:
        """The ids of the pools that the pilot serves; invalid ids are dropped with a warning."""
        if "pools" not in self._stated:
            return frozenset()
        texts = {text.strip().lower() for text in self._list_texts(*self._stated["pools"])}
        if len(texts) > _MOST_POOLS:
            self.add_problem(self._stated["pools"][0], f"{len(texts)} pools, allowed are {_MOST_POOLS}")
            return frozenset()
        self.warnings += [
            f"SubmitPool: {text} is not a pool id" for text in texts if text and not _is_pool(text)
        ]
        return frozenset(filter(_is_pool, texts))

    def node(self, facts: Facts, *, left_out: Collection[str]) -> dict[str, Any]:
        """The attributes of the resource that describe its node."""
        found, warnings = node_keywords.read_node(self._stated, facts, left_out=left_out)
        self.warnings += warnings
        return found

    def node_facts(self) -> Facts:
        """The pilot's measurements at its node."""
        if "node_facts" not in self._stated:
            return {}
        name, value = self._stated["node_facts"]
        facts, problems = node_facts.read_facts(value, name)
        self.problems += problems
        return facts

    def cpu_time(self) -> float:
        """Remaining seconds; of several values the largest, since any of them may be used."""
        if "cpu_time" not in self._stated:
            self.add_problem("CPUTime", "is missing: how many seconds of CPU time the resource has left")
            return 0
        name, value = self._stated["cpu_time"]
        numbers = value if isinstance(value, list) and value else [value]
        return max(self._whole(name, number, 0, LARGEST) or 0 for number in numbers)

    def whole_number(self, known: str, low: int, high: int) -> int | None:
        """The number; None: absent."""
        return None if known not in self._stated else self._whole(*self._stated[known], low, high)

    def _whole(self, name: str, value: object, low: int, high: int) -> int | None:
        number = int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
        if isinstance(number, int) and not isinstance(number, bool) and low <= number <= high:
            return number
        self.add_problem(name, f"is {_format_value(value)}, allowed is a whole number from {low} to {high}")
        return None

    def flag(self, known: str) -> bool:
        """The boolean value; absent means false."""
        if known not in self._stated:
            return False
        name, value = self._stated[known]
        if isinstance(value, str) and fold(value) in _FLAGS:
            return _FLAGS[fold(value)]
        if not isinstance(value, bool):
            self.add_problem(name, f"is {_format_value(value)}, allowed is true or false")
        return value is True


def _split_text(text: str) -> list[str]:
    """The items of a list that DIRAC's pilots have written as text: `a, b` or `["a", b]`."""
    return [item.strip(" \"'") for item in text.strip().strip("[]").split(",")]


def _is_any(word: str) -> bool:
    if word.isascii():  # fast path: nearly all words are ASCII, and a request may hold hundreds
        return _ANY.fullmatch(word) is not None
    return re.sub(r"[\W_]", "", fold(word)) == "any"


_is_pool: Callable[[str], object] = _POOL_ID.fullmatch


def _format_value(value: object) -> str:
    return f"{str(value)[:40]} ({type(value).__name__})"


_MANY = "multiprocessor"
_WHOLE = "wholenode"

#: Keywords of a pilot's place.
_PLACE = ("site", "ce", "queue")


def read_resource(raw: Mapping[str, Any]) -> StatedResource:
    """Parse a request for work, by keywords or in the form of DiracX's match-making specification."""
    keywords = RequestKeywords(node_document.read_keywords(raw) if node_document.is_document(raw) else raw)
    facts = keywords.node_facts()
    presented = StatedResource(
        resource=_build_resource(keywords, facts),
        site=keywords.single("site"),
        ce=keywords.single("ce"),
        queue=keywords.single("queue"),
        several=tuple(keywords.spelling(each) for each in _PLACE if len(keywords.values(each) or ()) > 1),
        pools=keywords.pools(),
        stamp=keywords.single("stamp") or keywords.single("reference") or None,
        job_id=keywords.whole_number("job_id", 1, LARGEST),
        node_facts=facts,
        submits=keywords.flag("submit_flags"),
        attributes=keywords.unknown,
        warnings=tuple(keywords.warnings),
    )
    if keywords.problems:
        raise InvalidResource(keywords.problems)
    return presented


def _build_resource(keywords: RequestKeywords, facts: Facts) -> Resource:
    processors = keywords.whole_number("processors", 1, bounds.PROCESSORS)
    whole_node = keywords.flag("whole_node")
    required = keywords.values("required_tags") or frozenset()
    offered: Values = None  # any tag
    literal_tags = keywords.texts("tags")
    if literal_tags is not None:
        offered = frozenset(map(fold, literal_tags)) | core_tags(processors or 0, whole_node=whole_node)
    if (offered is None and required) or (offered is not None and not required <= offered):
        keywords.add_problem(
            keywords.spelling("required_tags"),
            f"{sorted(required)} are required of jobs but not all offered under Tag",
        )
    cpu_time = keywords.cpu_time()
    names: dict[str, Any] = {field: keywords.values(keyword) for field, keyword in _ACCEPTED.items()}
    names |= {field: keywords.values(field) or frozenset() for field in _BANNED.values()}
    names |= {each.name: keywords.whole_number(each.name, 0, LARGEST) or 0 for each in QUANTITIES}
    left_out = [detail.name for each in QUANTITIES if not names[each.name] for detail in each.details]
    return Resource(
        cpu_time=cpu_time,
        tags=offered,
        required_tags=required,
        max_ram=keywords.whole_number("max_ram", 0, LARGEST),
        processors=processors,
        whole_node=whole_node,
        literal_tags=literal_tags,
        **keywords.node(facts, left_out=left_out),
        **names,
    )


def core_tags(processors: int, *, whole_node: bool) -> frozenset[str]:
    """The tags with which jobs request cores.

    Source: DIRAC: n cores offer `1Processors` … `nProcessors`, and `MultiProcessor` if there are several.
    """
    tags = {f"{number}processors" for number in range(1, processors + 1)}
    if processors > 1:
        tags.add(_MANY)
    if whole_node:
        tags |= {_WHOLE, _MANY}
    return frozenset(tags)
