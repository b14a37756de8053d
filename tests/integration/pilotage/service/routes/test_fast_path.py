"""The fast path of requestJob answers as the framework's route does: the same status, the same body."""

import json

import pytest

from pilotage.service.fast_path import JobRequestReader, NotPlain
from requirements.errors import PilotageError
from tests.running_service import Service

QUEUE = "LCG.A.org/ce1/long"
PLAIN = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100}

BODIES = [
    *(
        json.dumps({**PLAIN, **more}).encode()
        for more in (
            {},
            {"request_id": "one"},
            {"request_id": "two"},
            {"request_id": "two", "said_before": False},
            {"request_id": ""},
            {"request_id": "x" * 256},
            {"request_id": 5},
            {"request_id": None},
            {"request_id": "ä"},
            {"count": 0},
            {"count": 3},
            {"count": "3"},
            {"count": True},
            {"CPUTime": "x"},
            {"CPUTime": None},
            {"Unknown": {"request_id": "inner"}},
            {"Unknown": {"request_id": "inner"}, "request_id": "outer"},
            {"Queue": "short"},
            {"Queue": "none"},
            {"Site": ["LCG.A.org", "LCG.B.org"]},
            {"SubmitPool": "x"},
            {"said_before": "perhaps"},
        )
    ),
    b"",
    b"{",
    b"null",
    b"[]",
    b'{"CPUTime": 1, "CPUTime": 1}',
    b'{"CPUTime": 1, "request_id": "a", "request_id": "b"}',
    b'{"CPUTime": 1, "request_id": "a", "request\\u005fid": "b"}',
    b'{"CPUTime": NaN}',
    b'{"CPUTime": 1e999}',
    b'{"CPUTime": 99999999999999999999}',
    b'{"CPUTime": 1, "x": "\\u0000"}',
    b'{"CPUTime": 1, "x": "\xff"}',
    b'{"CPUTime": 1, "x": ' + b"[" * 70 + b"]" * 70 + b"}",
]


@pytest.mark.parametrize("role", ["pilot", "operator", "user", None])
def test_both_forms_answer_alike(service: Service, role: str | None) -> None:
    """A query that is not read sends a request to the framework; each body comes twice, known and unknown."""
    clients = {
        "pilot": lambda: service.pilot(QUEUE),
        "operator": service.operator,
        "user": service.user,
        None: service.client,
    }
    client = clients[role]()
    for body in BODIES * 2:
        for headers in ({}, {"Request-Timeout": "0"}, {"Content-Type": "text/plain"}):
            sent = {"Content-Type": "application/json", **headers}
            fast, framework = (
                client.post(f"/api/v1/matcher/requestJob{query}", content=body, headers=sent)
                for query in ("", "?slowly")
            )
            assert (fast.status_code, fast.json()) == (framework.status_code, framework.json()), (
                body,
                headers,
            )
            assert {*fast.headers} == {*framework.headers}


def test_a_job_is_described_alike_in_both_forms(service: Service) -> None:
    job = {"Executable": "x", "Arguments": "ä \\" + '"'}
    service.user().post("/api/v1/jobs", json={"jobs": [job, job]}).raise_for_status()
    fast, framework = (
        service.pilot(QUEUE)
        .post(f"/api/v1/matcher/requestJob{query}", json={**PLAIN, "CPUTime": 10**7})
        .json()["matches"][0]
        for query in ("", "?slowly")
    )
    assert fast.keys() == framework.keys()
    same = {"description": None, "processors": 0, "epoch": 0}
    assert fast["description"] | {"JobID": 0} == framework["description"] | {"JobID": 0}
    assert {name: fast.get(name) for name in same if name != "description"} == {
        name: framework.get(name) for name in same if name != "description"
    }


def _read(reader: JobRequestReader, body: bytes) -> object:
    try:
        return reader.read(body)
    except (PilotageError, NotPlain) as error:
        return type(error)


def test_bodies_that_were_read_before_are_read_as_new_ones() -> None:
    reader = JobRequestReader()
    for body in BODIES * 3:
        assert _read(reader, body) == _read(JobRequestReader(), body), body


def test_only_the_request_id_of_the_body_itself_may_differ() -> None:
    reader = JobRequestReader()
    inner = b'{"CPUTime": 1, "request\\u005fid": "a", "x": {"request_id": "%b"}}'
    assert [_read(reader, inner % name)[1] for name in (b"a", b"b")] == ["a", "a"]  # type: ignore[index]
    outer = b'{"CPUTime": 1, "request_id": "%b"}'
    assert [_read(reader, outer % name)[1] for name in (b"a", b"b")] == ["a", "b"]  # type: ignore[index]
