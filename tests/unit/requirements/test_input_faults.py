"""What a model has refused is told in our words, once for each value."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from pilotage.cli.settings import Settings
from pilotage.fabric.director.configuration import DirectorFile
from pilotage.fabric.gateway.configuration import GatewayFile
from pilotage.service.models.jobs import EventQuery, JobEnd, JobQuery, Submission
from pilotage.service.queries.usage_records import UsageRecordQuery
from requirements.input_faults import InputFault, list_faults


class Tagged(BaseModel):
    """A model with values of several types, and a validator."""

    number: Annotated[int, Field(ge=1)] | Literal["none"] = "none"
    tags: Annotated[dict[str, str | int], Field(max_length=1)] = {}
    host: str = "localhost"

    @field_validator("host")
    @classmethod
    def _check_host(cls, host: str) -> str:
        if host != "localhost":
            raise ValueError("needs a certificate")
        return host


def faults_of(model: type[BaseModel], value: object) -> list[InputFault]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(value)
    return list_faults(caught.value.errors())


@pytest.mark.parametrize(
    ("model", "value", "expected"),
    [
        (JobQuery, {"exit_code": "x,3"},
            {"exit_code/0": "'x' is not allowed, allowed is a whole number or 'none'"}),
        (JobQuery, {"exit_code": "9999999999"},
            {"exit_code/0": "'9999999999' is not allowed, allowed is at most 2147483647 or 'none'"}),
        (JobQuery, {"limit": "x"}, {"limit": "'x' is not allowed, allowed is a whole number"}),
        (JobQuery, {"limit": 0}, {"limit": "0 is not allowed, allowed is at least 1"}),
        (JobQuery, {"ids": "x"}, {"ids/0": "'x' is not allowed, allowed is a whole number"}),
        (JobQuery, {"nme": "x"}, {"nme": "unknown name"}),
        (EventQuery, {"seconds": "soon"}, {"seconds": "'soon' is not allowed, allowed is a number"}),
        (Submission, {"jobs": [3]}, {"jobs/0": "3 is not allowed, allowed is a mapping of names to values"}),
        (Submission, {"jdls": []}, {"jdls": "[] is not allowed, allowed is a list of 1 or more"}),
        (JobEnd, {}, {"status": "is needed"}),
        (Tagged, {"tags": {"int": [1]}},
            {"tags/int": "[1] is not allowed, allowed is a text or a whole number"}),
        (Tagged, {"tags": {"a": "", "b": ""}},
            {"tags": "{'a': '', 'b': ''} is not allowed, allowed is a mapping of at most 1"}),
        (UsageRecordQuery, {"site": "LCG.A.org", "month": "May"},
            {"month": "'May' is not allowed, allowed is a month: 2026-10"}),
        (Tagged, {"host": "h"}, {"host": "needs a certificate, not 'h'"}),
    ],
    ids=str,
)  # fmt: skip
def test_a_fault_is_told_in_our_words(
    model: type[BaseModel], value: object, expected: dict[str, str]
) -> None:
    told = {"/".join(map(str, each.location)): each.message for each in faults_of(model, value)}
    assert told == expected


def test_a_value_that_is_probably_meant_is_suggested() -> None:
    [fault] = faults_of(JobQuery, {"status": "Wating"})
    assert (fault.location, fault.suggestion) == (("status", 0), "Waiting")


#: Values that hardly any field takes.
WRONG: tuple[Any, ...] = ("\x00?", -(10**30), [[]], {"": {}}, "x" * 10_000)


@pytest.mark.parametrize(
    "model",
    [JobQuery, EventQuery, Submission, Settings, DirectorFile, GatewayFile],
    ids=lambda each: each.__name__,
)
def test_no_field_of_filters_submissions_settings_and_files_has_words_of_the_library(
    model: type[BaseModel],
) -> None:
    told: list[str] = []
    for name, wrong in ((name, wrong) for name in model.model_fields for wrong in WRONG):
        try:
            model.model_validate({name: wrong})
        except ValidationError as error:
            told += (each.message for each in list_faults(error.errors()))
    assert told
    words = ("Input should", "Value error", "parse", "required", "should match", "should have")
    assert [each for each in told if any(word in each for word in words)] == []
