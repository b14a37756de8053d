import json

import pytest

from optimizers.description import jdl
from optimizers.submit import checking
from pilotage.service.queries import jobs
from requirements.states import AfterPolicy
from taskqueue.jobs.dependencies import Parent
from taskqueue.jobs.descriptions import Description

BODY = {"VO": "cms", "Executable": "x", "Arguments": "2"}


@pytest.mark.parametrize(
    ("source", "copy"),
    [
        ("Executable = x;", None),
        ("Executable: x\nParameters: 3\nArguments: '%n'\n", BODY),
        ("- {Executable: x}\n- {Executable: x, Arguments: 2}\n", BODY),
        ('{"Executable":"x","Parameters":3,"Arguments":"%n"}', BODY),
        ('[{"Executable":"x"},{"Executable":"x","Arguments":"2"}]', BODY),
        ('{"Executable":"x"}', {"Executable": "x"}),
    ],
)
def test_a_copy_is_the_description_as_submitted_or_of_one_of_many_jobs_it_alone(
    source: str, copy: dict[str, object] | None
) -> None:
    written = jobs.write_copy("cms", Description(source=source, body=BODY))
    assert (written == source) if copy is None else (json.loads(written) == copy)


def test_a_copy_names_the_jobs_before_it_by_id_without_those_that_are_done() -> None:
    parents = [
        Parent(job_id=7, policy=AfterPolicy.DONE, status="Done", has_ended=True),
        Parent(job_id=8, policy=AfterPolicy.DONE, status="Running", has_ended=False),
    ]
    body = {**BODY, "After": ["first", "second"]}
    written = jobs.write_copy("cms", Description(source=json.dumps(body), body=body), parents)
    assert json.loads(written) == {**BODY, "After": ["8"]}


def test_an_object_that_is_longer_than_a_text_may_be_is_copied() -> None:
    job = {"Executable": "x", "InputData": [f"LFN:/cms/data/{number:050}" for number in range(20_000)]}
    source = checking.record_as_text(job)
    assert len(source) > jdl.MOST_TEXT
    assert json.loads(jobs.write_copy("cms", Description(source=source, body=job))) == job
