"""Demand is requested for as many resources at a time as the service takes in one body."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from cs_config.options import bounds
from pilotage.fabric.director import matcher_client


@dataclass
class Service:
    """Answers with a task queue for each resource, and keeps the requests."""

    requests: list[Sequence[Mapping[str, object]]] = field(default_factory=list)
    most: int = 1000

    def demand(self, resources: Sequence[Mapping[str, object]]) -> dict[str, Any]:
        self.requests.append(resources)
        numbers = [int(str(each["CPUTime"])) for each in resources[: self.most]]
        about = {"submit_pool": None, "waiting": 1, "processors": 1, "ram": 0, "gpus": 0, "whole_node": False}
        return {
            "task_queues": [{"task_queue": number, **about} for number in numbers],
            "resources": [[number] for number in numbers],
            "ranks": [[None] for _ in numbers],
        }

    @property
    def sizes(self) -> list[int]:
        return [len(each) for each in self.requests]


def fetch(service: Service, resources: Sequence[Mapping[str, object]]) -> list[int]:
    found = matcher_client._fetch_demand(service, resources)  # type: ignore[arg-type]
    return [work.number for each in found for work in each.task_queues]


def test_small_resources_are_in_one_request():
    service = Service()
    assert fetch(service, [{"CPUTime": n} for n in range(1_500)]) == list(range(1_500))
    assert service.sizes == [1_000, 500]


@pytest.mark.parametrize(
    "large",
    [{"Tag": ["ü" * 50] * 1_000}, {"Values": [0] * 20_000}, {"Nested": {f"n{n}": [] for n in range(9_000)}}],
    ids=["bytes", "values", "names"],
)
def test_large_resources_are_spread_over_several_requests(large: dict[str, object]):
    service, resources = Service(), [{"CPUTime": n, **large} for n in range(200)]
    assert fetch(service, resources) == list(range(200))
    assert 1 < len(service.requests) < 50
    for each in service.requests:
        body = json.dumps({"resources": each})
        assert len(body) < bounds.BODY
        assert sum(map(body.count, ",:[{")) < bounds.JSON_VALUES


def test_a_resource_that_is_too_large_alone_is_sent_alone_for_the_service_to_refuse():
    service = Service()
    fetch(service, [{"CPUTime": 1}, {"CPUTime": 2, "Tag": ["x" * bounds.BODY]}, {"CPUTime": 3}])
    assert service.sizes == [1, 1, 1]


def test_resources_that_the_service_left_for_later_are_requested_again():
    service = Service(most=2)
    assert fetch(service, [{"CPUTime": n} for n in range(5)]) == list(range(5))
    assert service.sizes == [5, 3, 1]
