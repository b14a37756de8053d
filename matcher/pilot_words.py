"""The words of one request for work, by our names and with their meaning."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from matcher import node_facts
from matcher.node_facts import Facts
from matcher.resource import Values
from requirements.problem import MOST_HINTS, Problem
from requirements.suggestion import did_you_mean
from requirements.values import fold

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


class PilotWords:
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
        self.complain(name, f"is {_shown(value)}, allowed is text or a list of texts")
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
        facts, problems = node_facts.read(value, name)
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
        self.complain(name, f"is {_shown(value)}, allowed is a whole number from {low} to {high}")
        return None

    def flag(self, known: str) -> bool:
        """Yes or no."""
        if known not in self._said:
            return False
        name, value = self._said[known]
        if isinstance(value, str) and fold(value) in _FLAGS:
            return _FLAGS[fold(value)]
        if not isinstance(value, bool):
            self.complain(name, f"is {_shown(value)}, allowed is true or false")
        return value is True


def _is_any(word: str) -> bool:
    if word.isascii():  # nearly all are, and a pilot may say hundreds
        return _ANY.fullmatch(word) is not None
    return re.sub(r"[\W_]", "", fold(word)) == "any"


_is_pool: Callable[[str], object] = _POOL_ID.fullmatch


def _shown(value: object) -> str:
    return f"{str(value)[:40]} ({type(value).__name__})"
