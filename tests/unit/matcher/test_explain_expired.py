"""Explanations tell what has expired from what was never there."""

from datetime import UTC, datetime

import pytest

from cs_config import validate
from matcher import survey
from matcher.explain import explain
from matcher.parts import Demand
from requirements.declarations import Declarations
from requirements.expression import parse_expression
from requirements.record import parse_record
from taskqueue.classes import RequirementClass

CONFIG = validate.parse(
    "Resources: {Sites: {S: {CEs: {C: {Queues: {Q: {FreeCPUs: 3, update_time: 1000, expiry_time: 300}}}}}}}",
    "test.yaml",
)


def has(seconds: int, asked: str | int) -> str | None:
    config = CONFIG.at(datetime.fromtimestamp(seconds, UTC))
    none = Declarations.of(())
    requirements = (
        parse_expression(asked) if isinstance(asked, str) else parse_record({"FreeCPUs": asked}, none)
    )
    demand = Demand(asked=RequirementClass(vo="cms", cpu_time=60), requirements=requirements)
    [found] = explain(survey.of_vo(config, "cms"), "cms", demand).exclusions
    return found.has


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
