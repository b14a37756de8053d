"""A quantity stands in every form that a job, a pilot and an attempt have."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from cs_config.options import keywords
from cs_config.tree import parameters
from optimizers.description.description import JobDescription
from requirements.quantities import QUANTITIES, SlotQuantity
from requirements.requirement_class import RequirementClass
from requirements.resource import ALLOTTED, Resource
from requirements.values import fold
from taskqueue.leases import batched_claim
from taskqueue.schema.tables import attempts


@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda quantity: quantity.keyword)
def test_a_quantity_is_a_field_of_jobs_resources_and_attempts(quantity: SlotQuantity) -> None:
    for each in (JobDescription, RequirementClass, Resource):
        assert quantity.name in {field.name for field in fields(each)}, each
    assert quantity.name in ALLOTTED
    assert all(parameters.is_known(fold(name)) for name in quantity.parameters)
    for spelling in (quantity.keyword, *quantity.also):
        found = keywords.find_keyword(spelling)
        assert found is not None
        assert (found.attribute, found.maximum) == (quantity.name, quantity.most)


def test_what_a_job_is_given_is_stored_with_its_attempt() -> None:
    assert set(ALLOTTED) <= set(attempts.c.keys())
    statement = Path(batched_claim.__file__).with_suffix(".sql").read_text()
    stored = re.search(r"INSERT INTO attempts \(([^)]*)\)", statement)
    assert stored is not None
    assert set(ALLOTTED) <= set(re.split(r"[,\s]+", stored[1]))
