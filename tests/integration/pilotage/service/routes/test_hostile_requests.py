"""Whatever comes in, the answer is never 5xx, and always in the one shape."""

import asyncio
import json
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cs_config.options import bounds
from pilotage.service import routing
from requirements.classad import evaluation
from tests.support.routes_by_role import ROUTES, Route
from tests.support.service import Service

BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"x"',
    b"1e999",
    b"{}",
    b'{"a": NaN}',
    b"\xff\xfe\x00",
    b'{"x": "\\u0000"}',
    b'{"x": "\\ud800"}',
    b"[" * 20_000,
    b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
    b"9" * 10_000,
    b'{"count": -1, "limit": -1, "ids": [-1], "version": -1, "CPUTime": -1}',
    b'{"count": 99999999999999999999, "version": 99999999999999999999}',
    b'{"count": 9223372036854775807, "CPUTime": 9223372036854775807, "version": 9223372036854775807}',
    b'{"jdl": "[[[[[["}',
    b'{"jdl": ""}',
    b'{"jobs": [null, 5, "x", []]}',
    b'{"jobs": [{"Executable": {"a": {"b": []}}}]}',
    b'{"jobs": [{"Executable": "x", "CPUTime": 9223372036854775807, "Priority": 1e308}]}',
    b'{"queues": ["", "a", "a/b", "a/b/c/d", "../../etc", "a/b/c"]}',
    b'{"Site": {}, "CPUTime": [[]], "Tag": [{}], "MaxRAM": "x", "SubmitPool": 5}',
    b'{"queue": {"MaxRAM": {"a": 1}}, "ce": {"": []}, "vo": ""}',
    b'{"config": {"Resources": {"Sites": []}}, "message": ""}',
    b'{"text": "a: &a [*a]", "message": ""}',
    b'{"stamp": "", "queue": "x"}',
    b'{"status": "Flying", "exit_code": 1e400}',
    b'{"token": "x"}',
]


def check(answer, what: object) -> None:
    assert answer.status_code < 500, (what, answer.status_code, answer.text[:500])
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) == {"code", "message", "details"}, what


def test_no_body_makes_a_route_fail(service: Service):
    check_bodies(ROUTES, service)


def check_bodies(routes: Sequence[Route], service: Service) -> None:
    """Check that no body makes a route fail."""
    operator = service.operator()
    for body, (method, path, _, _) in product(BODIES, routes):
        answer = operator.request(
            method, f"/api/v1{path}", content=body, headers={"Content-Type": "application/json"}
        )
        check(answer, (method, path, body))


VALUES = ["%00", "%ff", "%ed%a0%80", "-1", "0", "99999999999999999999", "..", "%2e%2e%2f", "a" * 300, "%0a"]


PATHS = [
    ("GET", "/jobs/{}"),
    ("GET", "/jobs/{}/log"),
    ("GET", "/jobs/{}/explain"),
    ("GET", "/jobs/{}/output"),
    ("GET", "/pools/{}"),
    ("GET", "/resources/queues/{}/{}/{}"),
    ("GET", "/leases/{}/sandbox"),
    ("GET", "/nothing/{}"),
    ("POST", "/leases/{}/finish"),
    ("POST", "/pilots/{}/status"),
    ("POST", "/jobs/{}/kill"),
]


def test_no_path_makes_a_route_fail(service: Service):
    operator = service.operator()
    for value, (method, pattern) in product(VALUES, PATHS):
        path = pattern.format(value, value, value)
        check(operator.request(method, f"/api/v1{path}", json={"status": "Done"}), path)


LISTS = ["/jobs", "/pools", "/pilots", "/config/versions", "/jobs/summary", "/jobs/changes"]
QUERIES = [
    "limit=-1",
    "limit=1e9",
    "after=%00",
    "after=-9223372036854775809",
    "vo=%00",
    "vo=%f0%9f%92%a9",
    "by=%00",
    "status=%00",
]


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_beyond_the_calendar_in_utc_selects_all_or_nothing(service: Service, moment: str):
    operator = service.operator()
    operator.post("/api/v1/jobs", json={"vo": "cms", "jobs": [{"Executable": "x"}]})
    for query in (
        "jobs?submitted_since=",
        "jobs?submitted_before=",
        "pilots?since=",
        "pilots/summary?since=",
    ):
        answer = operator.get(f"/api/v1/{query}{moment}")
        assert answer.status_code == 200, (query, answer.text)


@pytest.mark.parametrize("path", ["jobs/summary", "pilots/summary"])
def test_a_summary_names_each_column_once(service: Service, path: str):
    answer = service.operator().get(f"/api/v1/{path}?by={','.join(['status'] * 2000)}")
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"] == "by: names a column twice"


def test_no_query_makes_a_list_fail(service: Service):
    operator = service.operator()
    for path, query in product(LISTS, QUERIES):
        check(operator.get(f"/api/v1{path}?{query}"), (path, query))


@pytest.mark.parametrize("key", ["x" * 256, "é".encode().decode("latin-1")])
def test_no_idempotency_key_makes_a_submission_fail(service: Service, key: str):
    answer = service.user().post(
        "/api/v1/jobs",
        content=json.dumps({"jobs": [{"Executable": "x"}]}),
        headers=[(b"Idempotency-Key", key.encode("latin-1")), (b"Content-Type", b"application/json")],
    )
    check(answer, key)


@pytest.mark.parametrize("role", ["user", "operator"])
def test_a_body_beyond_the_limit_is_413_whether_it_says_its_length_or_not(service: Service, role: str):
    limit = bounds.BODY if role == "user" else service.parts.limits.json_bytes
    user = service.as_role(role, vo="cms", user="ada") if role == "user" else service.as_role(role)
    answer = user.post("/api/v1/jobs", content=b"x" * (limit + 1))
    assert answer.status_code == 413
    assert answer.json()["error"]["details"] == {"limit_bytes": limit}

    def chunks():
        for _ in range(limit // (1 << 20) + 2):
            yield b"x" * (1 << 20)

    assert user.post("/api/v1/jobs", content=chunks()).status_code == 413


def test_a_pilot_that_says_too_much_is_413(service: Service):
    body = {"CPUTime": 1, "Tag": [""] * 100_000}
    answer = service.pilot().post("/api/v1/matcher/requestJob", json=body)
    assert answer.status_code == 413
    assert answer.json()["error"]["details"] == {"limit_bytes": 256 * 1024}


@pytest.mark.parametrize("role", ["user", "vo_admin", "site_admin"])
def test_a_person_requests_the_pools_of_few_queues_at_a_time(service: Service, role: str):
    rights = {"site": "LCG.A.org"} if role == "site_admin" else {"vo": "cms"}
    user, director = service.as_role(role, user="ada", **rights), service.as_role("director", vo="cms")
    names = [f"LCG.A.org/ce1/q{number}" for number in range(20)] + ["LCG.A.org/ce1/long"]
    answer = user.post("/api/v1/matcher/getSubmitPoolsForQueue", json={"queues": names})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "queues: has 21 queues, allowed at a time are 20"
    for client, some in ((user, names[1:]), (director, names)):
        answer = client.post("/api/v1/matcher/getSubmitPoolsForQueue", json={"queues": some})
        assert list(answer.json()["pools"]) == ["LCG.A.org/ce1/long"]


@pytest.mark.parametrize("report", ["start", "heartbeat", "note", "finish", "release"])
def test_a_report_on_a_job_that_says_too_much_is_413(service: Service, report: str):
    body = {"progress": "x", "more": [""] * 100_000}
    answer = service.pilot().post(f"/api/v1/leases/some/{report}", json=body)
    assert answer.status_code == 413
    assert answer.json()["error"]["details"] == {"limit_bytes": 256 * 1024}


def test_an_advertisement_may_list_all_attempts_that_it_may_but_not_more(service: Service):
    gateway = service.as_role("gateway", vo="cms", site="LCG.A.org")
    seen = [{"job_id": 2**62 + each, "epoch": 2**31 - 1} for each in range(100_000)]
    path = "/api/v1/sites/LCG.A.org/advertisement"
    assert gateway.post(path, json={"attempts_seen": seen}).status_code == 200
    answer = gateway.post(path, json={"attempts_seen": seen, "more": "x" * (4 << 20)})
    assert answer.status_code == 413


def test_a_large_body_is_parsed_beside_the_event_loop(service: Service, monkeypatch: pytest.MonkeyPatch):
    beside = []

    def parse(body: bytes, parse=routing.parse, **how: bool) -> object:
        beside.append(asyncio._get_running_loop() is None)
        return parse(body, **how)

    monkeypatch.setattr(routing, "parse", parse)
    for arguments in ("x", "x" * 100_000):
        jobs = [{"Executable": "x", "Arguments": arguments}]
        service.user().post("/api/v1/jobs", json={"jobs": jobs}).raise_for_status()
    assert beside == [False, True]


def test_a_body_of_another_type_is_400(service: Service):
    answer = service.user().post("/api/v1/jobs", data={"jdl": "x"})
    assert answer.status_code == 400


def test_unknown_routes_and_methods_have_the_same_shape(service: Service):
    operator = service.operator()
    assert operator.get("/api/v1/nothing").json()["error"]["code"] == "not_found"
    assert operator.delete("/api/v1/jobs").json()["error"]["code"] == "method_not_allowed"
    assert operator.get("/api/v1/jobs/").status_code == 404


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = ["jdl", "jobs", "Executable", "Requirements", "CPUTime", "Site", "queue", "ce", "vo", "ids", "status"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
def test_random_bodies_make_nothing_fail(service: Service, body: dict[str, object]):
    operator = service.operator()
    job = {"jobs": [{"VO": "cms", "Owner": "ada", **body}]}
    for path, content in (
        ("/jobs", body),
        ("/jobs", job),
        ("/resources/getEligibleNodes", body),
        ("/jobs/kill", body),
    ):
        check(operator.post(f"/api/v1{path}", content=json.dumps(content)), (path, content))


def test_what_is_kept_of_the_expressions_of_a_vo_counts_for_it(service: Service):
    for cache in (evaluation._compile_short, evaluation.group_operands):
        cache.cache_clear()
    job, asked = (
        {"Executable": "true", "Requirements": f'other.MaxRAM > {number} && other.Site =!= "for {vo}"'}
        for number, vo in enumerate(("cms", "lhcb"))
    )
    service.submit(job)
    assert service.user("bob", "lhcb").post("/api/v1/explain", json={"jobs": [asked]}).is_success
    for cache in (evaluation._compile_short, evaluation.group_operands):
        counted = {vo: " ".join(str(key) for key in share.taken) for vo, share in cache._shares.items()}
        assert counted.keys() == {"cms", "lhcb"}
        assert all(f"for {vo}" in texts for vo, texts in counted.items())
