import json

import pytest

from taskqueue.jobs import placeholders
from taskqueue.leases import opening


@pytest.mark.parametrize(
    ("stated", "filled"),
    [
        ({"Executable": "a", "Arguments": "%j %j"}, {"Executable": "a", "Arguments": "7 7"}),
        ({"OutputSandbox": ["%j.log", "b"]}, {"OutputSandbox": ["7.log", "b"]}),
        ({"ExecutionEnvironment": {"ID": "%j"}}, {"ExecutionEnvironment": {"ID": "7"}}),
        ({"ForeignKeywords": {"TaskName": "t%j"}}, {"ForeignKeywords": {"TaskName": "t7"}}),
        # A remainder of a division.
        (
            {"Requirements": "other.a %j == 0", "Rank": "a %j"},
            {"Requirements": "other.a %j == 0", "Rank": "a %j"},
        ),
        ({"Further": {"expression": "a %j"}}, {"Further": {"expression": "a %j"}}),
        ({"CPUTime": 5, "WholeNode": True}, {"CPUTime": 5, "WholeNode": True}),
    ],
)
def test_the_id_of_the_job_stands_for_its_placeholder(
    stated: dict[str, object], filled: dict[str, object]
) -> None:
    assert placeholders.fill_job_id(stated, 7) == filled
    assert json.loads(opening.describe_job(7, json.dumps(stated), None)) == {**filled, "JobID": 7}


def test_values_of_parameters_may_have_it_too() -> None:
    body, parameters = {"StdOutput": "%(A)s.%j"}, {"A": "x%j"}
    described = opening.describe_job(7, json.dumps(body), json.dumps(parameters))
    assert json.loads(described) == {"StdOutput": "x7.7", "JobID": 7}
