"""Scenarios of matching as users and directors would meet them: jobs to submit, resources to present.

Each set of jobs has a VO of its own and groups of its own names, so that many share one service.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import yaml

DATA = Path(__file__).parents[2] / "data"
#: What a definition calls what a description calls otherwise.
_KEYWORDS = {"Sites": "Site", "GridCEs": "GridCE", "Platforms": "Platform", "JobTypes": "JobType"}


@cache
def load(name: str) -> Any:
    """The data of a file, which nobody changes."""
    return yaml.load((DATA / name).read_text(), yaml.CSafeLoader)


def description(vo: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """A job as it is submitted; what is not said is as the scenarios have it."""
    said = {_KEYWORDS.get(name, name): value for name, value in job.items()}
    if "JobType" in said:
        [said["JobType"]] = said["JobType"]
    group = said.pop("OwnerGroup", "myGroup")
    base = {"Executable": "x", "VO": vo, "Owner": "userName", "CPUTime": 5000, "Priority": 10}
    return {**base, **said, "OwnerGroup": f"{vo}_{group}"}


def resource(vo: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """A resource of the VO."""
    found = {"VO": vo, **said}
    if "OwnerGroup" in found:
        groups = found["OwnerGroup"]
        found["OwnerGroup"] = (
            [f"{vo}_{each}" for each in groups] if isinstance(groups, list) else f"{vo}_{groups}"
        )
    return found


@dataclass(frozen=True)
class Grid:
    """A service with jobs of one VO, as an operator sees it."""

    client: httpx.Client
    vo: str

    def submit(self, *jobs: Mapping[str, Any]) -> list[int]:
        body = {"jobs": [description(self.vo, job) for job in jobs]}
        answer = self.client.post("/api/v1/jobs", json=body)
        assert answer.status_code == 201, answer.text
        return list(answer.json()["job_ids"])

    def listed(self, said: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The task queues that the resource may serve."""
        answer = self._ask("getMatchingTaskQueues", said)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["task_queues"])

    def offered(self, said: Mapping[str, Any]) -> list[int]:
        """The jobs that the resource may serve."""
        return sorted(job_id for each in self.listed(said) for job_id in each["job_ids"])

    def refused(self, said: Mapping[str, Any]) -> bool:
        """Whether a director and a pilot are told that the resource is wrong."""
        codes = {self._ask(each, said).status_code for each in ("getMatchingTaskQueues", "requestJob")}
        assert len(codes) == 1, codes
        return codes == {400}

    def request(self, said: Mapping[str, Any], count: int = 1) -> dict[str, Any]:
        answer = self._ask("requestJob", {**said, "count": count})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def given(self, said: Mapping[str, Any], count: int = 1) -> list[int]:
        """The jobs that a pilot there is given, which it keeps."""
        return sorted(match["job_id"] for match in self.request(said, count)["matches"])

    def given_and_returned(self, said: Mapping[str, Any]) -> list[int]:
        """The jobs that pilots there are given, of whom each takes what fits, in all; they give them back."""
        matches: list[dict[str, Any]] = []
        while more := self.request(said, 1000)["matches"]:
            matches += more
        for match in matches:
            answer = self.client.post(f"/api/v1/leases/{match['lease']}/release", json={"reason": "a test"})
            assert answer.status_code == 200, answer.text
        return sorted(match["job_id"] for match in matches)

    def _ask(self, what: str, said: Mapping[str, Any]) -> httpx.Response:
        return self.client.post(f"/api/v1/matcher/{what}", json=resource(self.vo, said))


def can_be_said(job: Mapping[str, Any]) -> bool:
    """Whether a description can say it: it has one type, and fails if it bans every site that it names."""
    sites = set(job.get("Sites", ()))
    return len(job.get("JobTypes", ())) <= 1 and not (sites and sites <= set(job.get("BannedSites", ())))


def sayable(jobs: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    return ((number, job) for number, job in jobs.items() if can_be_said(job))
