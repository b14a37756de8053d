"""Explanations tell what has expired from what was never there."""

from datetime import UTC, datetime

import pytest

from cs_config import validate
from matcher.explain import queue_set
from matcher.explain.explanation import explain
from matcher.explain.job_conditions import JobDemand
from requirements.classad.expression import parse_expression
from requirements.record import Declarations, parse_record
from requirements.requirement_class import RequirementClass

CONFIG = validate.parse(
    "Resources: {Sites: {S: {CEs: {C: {Queues: {Q: {FreeCPUs: 3, update_time: 1000, expiry_time: 300}}}}}}}",
    "test.yaml",
)


def has(seconds: int, asked: str | int) -> str | None:
    config = CONFIG.at_moment(datetime.fromtimestamp(seconds, UTC))
    none = Declarations.find(())
    requirements = (
        parse_expression(asked) if isinstance(asked, str) else parse_record({"FreeCPUs": asked}, none)
    )
    demand = JobDemand(asked=RequirementClass(vo="cms", cpu_time=60), requirements=requirements)
    [found] = explain(queue_set.all_queues(config, "cms"), "cms", demand).exclusions
    return found.example.has


@pytest.mark.parametrize(
    ("seconds", "asked", "said"),
    [
        (1299, 4, "3"),
        (1300, 4, "expired, it was 3"),
        (1299, "other.FreeCPUs > 3", "FreeCPUs = 3"),
        (1300, "other.FreeCPUs > 3", "FreeCPUs expired, it was 3"),
        (1300, "other.A + other.freecpus > 3", "A is absent; freecpus expired, it was 3"),
        (1300, "other.A > 3", "A is absent"),
    ],
)
def test_what_has_expired_is_told_with_what_it_was(seconds: int, asked: str | int, said: str) -> None:
    assert has(seconds, asked) == said
