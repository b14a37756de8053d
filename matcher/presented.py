"""Reading what a pilot presents.

Names in DIRAC's spelling, singular or plural, without regard to case; values one or a list. What has no
meaning here is kept and answered with a warning, never refused: a newer pilot works with an older server.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from matcher import node_facts
from matcher.node_facts import Facts
from matcher.resource import Presented, Resource, Values
from requirements.errors import InvalidResource
from requirements.problem import Problem
from requirements.suggestion import did_you_mean
from requirements.values import fold

_MOST_PROCESSORS = 1024
_LARGEST = 2**53
_MANY = "multiprocessor"
_WHOLE = "wholenode"
#: Pools in one request.
_MOST_POOLS = 3000
#: Unknown names for which the right one is looked for.
_MOST_HINTS = 20
#: `any`, however written in ASCII.
_ANY = re.compile(r"[\W_]*a[\W_]*n[\W_]*y[\W_]*", re.IGNORECASE)
_POOL_ID = re.compile(r"[0-9a-f]{64}")

#: What says where a pilot is.
_PLACE = ("site", "ce", "queue")
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


def read(raw: Mapping[str, Any]) -> Presented:
    """What a request for work says.

    Raises:
        InvalidResource: With every problem of it: a number that is none, a keyword twice, no CPUTime.
    """
    reader = _Reader()
    said = reader.sort(raw)
    presented = Presented(
        resource=_resource(reader, said),
        site=reader.one(said, "site"),
        ce=reader.one(said, "ce"),
        queue=reader.one(said, "queue"),
        several=tuple(said[each][0] for each in _PLACE if len(reader.values(said, each) or ()) > 1),
        pools=reader.pools(said),
        stamp=reader.one(said, "stamp") or reader.one(said, "reference") or None,
        job_id=reader.whole_number(said, "job_id", 1, _LARGEST),
        node_facts=reader.node_facts(said),
        attributes=reader.unknown,
        warnings=tuple(reader.warnings),
    )
    if reader.problems:
        raise InvalidResource(reader.problems)
    return presented


def _resource(reader: "_Reader", said: Mapping[str, tuple[str, object]]) -> Resource:
    processors = reader.whole_number(said, "processors", 1, _MOST_PROCESSORS)
    whole_node = reader.flag(said, "whole_node")
    required = reader.values(said, "required_tags") or frozenset()
    offered: Values = None  # any tag
    if "tags" not in said or not reader.says_any(said["tags"][1]):
        named = reader.values(said, "tags") or frozenset()
        offered = named | _tags_of(processors or 0, whole_node=whole_node)
    if (offered is None and required) or (offered is not None and not required <= offered):
        reader.complain(
            said["required_tags"][0],
            f"{sorted(required)} are required of jobs but not all offered under Tag",
        )
    return Resource(
        cpu_time=reader.cpu_time(said),
        sites=reader.values(said, "site"),
        grid_ces=reader.values(said, "ce"),
        platforms=reader.values(said, "platforms"),
        job_types=reader.values(said, "job_types"),
        owners=reader.values(said, "owners"),
        owner_groups=reader.values(said, "owner_groups"),
        vos=reader.values(said, "vo"),
        tags=offered,
        required_tags=required,
        banned_sites=reader.values(said, "banned_sites") or frozenset(),
        banned_grid_ces=reader.values(said, "banned_grid_ces") or frozenset(),
        banned_platforms=reader.values(said, "banned_platforms") or frozenset(),
        banned_job_types=reader.values(said, "banned_job_types") or frozenset(),
        banned_tags=reader.values(said, "banned_tags") or frozenset(),
        max_ram=reader.whole_number(said, "max_ram", 0, _LARGEST),
        processors=processors,
        gpus=reader.whole_number(said, "gpus", 0, _LARGEST) or 0,
        whole_node=whole_node,
    )


def _tags_of(processors: int, *, whole_node: bool) -> frozenset[str]:
    """The tags by which jobs ask for cores.

    Source: DIRAC: n cores offer `1Processors` … `nProcessors`, and `MultiProcessor` if there are several.
    """
    tags = {f"{number}processors" for number in range(1, processors + 1)}
    if processors > 1:
        tags.add(_MANY)
    if whole_node:
        tags |= {_WHOLE, _MANY}
    return frozenset(tags)


_Said = Mapping[str, tuple[str, object]]


class _Reader:
    """Collects the problems of one request, so that all are told at once."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.unknown: dict[str, object] = {}

    def complain(self, path: str, message: str) -> None:
        problem = Problem(path=path, message=message)
        if problem not in self.problems:
            self.problems.append(problem)

    def sort(self, raw: Mapping[str, Any]) -> _Said:
        """What was said, by our name, with the spelling it had."""
        said: dict[str, tuple[str, object]] = {}
        for name, value in raw.items():
            known = _NAMES.get(fold(name))
            if known is None:
                self._keep(name, value)
            elif known in said and said[known][1] != value:
                self.complain(name, f"{name} and {said[known][0]} are the same and say different things")
            elif value is not None:
                said[known] = (name, value)
        return said

    def _keep(self, name: str, value: object) -> None:
        self.unknown[name] = value
        if fold(name) not in _SILENT:
            meant = did_you_mean(name, _KEYWORDS) if len(self.warnings) < _MOST_HINTS else None
            hint = f", did you mean {meant}?" if meant else ""
            self.warnings.append(f"{name}: not known here, kept as an attribute{hint}")

    def values(self, said: _Said, known: str) -> Values:
        """The folded values; None if there is no condition: absent, empty or `any`."""
        if known not in said:
            return None
        name, value = said[known]
        if self.says_any(value):
            return None
        return frozenset(map(fold, self._stripped(name, value))) or None

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
        self.complain(name, f"is {_shown(value)}, allowed is text or a list of texts")
        return []

    def says_any(self, value: object) -> bool:
        """Whether it is `any`, however written; in a list one element is enough."""
        words = value if isinstance(value, list) else [value]
        return any(isinstance(word, str) and _is_any(word) for word in words)

    def one(self, said: _Said, known: str) -> str:
        """The one value of what `values` reads, as written; empty if there is none or several."""
        if known not in said or self.says_any(said[known][1]):
            return ""
        found = {fold(text): text for text in self._stripped(*said[known])}
        return found.popitem()[1] if len(found) == 1 else ""

    def pools(self, said: _Said) -> frozenset[str]:
        """The ids of the pools it was told to serve; what is none is left out with a warning."""
        if "pools" not in said:
            return frozenset()
        texts = {text.strip().lower() for text in self._texts(*said["pools"])}
        if len(texts) > _MOST_POOLS:
            self.complain(said["pools"][0], f"{len(texts)} pools, allowed are {_MOST_POOLS}")
            return frozenset()
        self.warnings += [
            f"SubmitPool: {text} is no pool id" for text in texts if text and not _is_pool(text)
        ]
        return frozenset(filter(_is_pool, texts))

    def node_facts(self, said: _Said) -> Facts:
        """What the pilot measured at its node."""
        if "node_facts" not in said:
            return {}
        name, value = said["node_facts"]
        facts, problems = node_facts.read(value, name)
        self.problems += problems
        return facts

    def cpu_time(self, said: _Said) -> float:
        """The seconds that are left; of several the most, since any of them will do."""
        if "cpu_time" not in said:
            self.complain("CPUTime", "is missing: how many seconds of CPU time the resource has left")
            return 0
        name, value = said["cpu_time"]
        numbers = value if isinstance(value, list) and value else [value]
        return max(self._whole(name, number, 0, _LARGEST) or 0 for number in numbers)

    def whole_number(self, said: _Said, known: str, low: int, high: int) -> int | None:
        """The number; None if it is absent."""
        return None if known not in said else self._whole(*said[known], low, high)

    def _whole(self, name: str, value: object, low: int, high: int) -> int | None:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.complain(name, f"is {_shown(value)}, allowed is a whole number from {low} to {high}")
        return None

    def flag(self, said: _Said, known: str) -> bool:
        """Yes or no."""
        if known not in said:
            return False
        name, value = said[known]
        if isinstance(value, str) and fold(value) in _FLAGS:
            return _FLAGS[fold(value)]
        if not isinstance(value, bool):
            self.complain(name, f"is {_shown(value)}, allowed is true or false")
        return value is True


_FLAGS: Mapping[str, bool] = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _is_any(word: str) -> bool:
    if word.isascii():  # nearly all are, and a pilot may say hundreds
        return _ANY.fullmatch(word) is not None
    return re.sub(r"[\W_]", "", fold(word)) == "any"


_is_pool: Callable[[str], object] = _POOL_ID.fullmatch


def _shown(value: object) -> str:
    return f"{str(value)[:40]} ({type(value).__name__})"
