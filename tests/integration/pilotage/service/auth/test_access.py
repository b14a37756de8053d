import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from pilotage.service.auth import rate_limits
from pilotage.service.auth.access import allow, allowed_roles
from pilotage.service.auth.callers import Role, grant
from pilotage.service.queries import explanations, jobs
from pilotage.service.services import utc_now
from requirements.errors import NotFound
from tests.support import wait
from tests.support.routes_by_role import (
    QUEUE,
    ROUTES,
    TREE,
    check_401,
    check_roles,
    check_strangers,
    list_routes_of_plugins,
)
from tests.support.service import Service


def test_each_role_may_use_its_routes_and_no_other(service: Service, caplog: pytest.LogCaptureFixture):
    check_roles(ROUTES, service, caplog)


def test_the_table_above_has_every_route(service: Service):
    paths = service.client().get("/openapi.json").json()["paths"]
    described = {
        (method.upper(), path)
        for path, methods in paths.items()
        for method in methods
        if path.startswith("/api/v1")
    } - list_routes_of_plugins()
    known = set()
    for method, path, _, _ in ROUTES:
        plain = f"/api/v1{path.partition('?')[0]}".replace(QUEUE, "{site}/{ce}/{queue}").replace(
            "/nope", "/{key}"
        )
        plain = plain.replace("/sites/LCG.A.org", "/sites/{site}").replace("/ces/ce1", "/ces/{ce}")
        plain = (
            plain.replace("/queues/long/", "/queues/{queue}/")
            .replace("/jobs/1", "/jobs/{key}")
            .replace("/pools/0", "/pools/{key}")
            .replace("/downtimes/1", "/downtimes/{key}")
        )
        known.add((method, plain))
    names = ("{job_id}", "{lease}", "{stamp}", "{pool_id}", "{downtime_id}")
    for name in names:
        described = {(method, path.replace(name, "{key}")) for method, path in described}
    assert described - OPEN == known


#: For anybody: a login that somebody has to confirm.
OPEN = {("POST", "/api/v1/device-logins")}
BAD_HEADERS = ["", "Bearer", "Basic YTpi", "Bearer nonsense", "Bearer a.b.c", "bearer " + "x" * 9000]


def test_without_a_good_token_every_route_is_401(service: Service):
    check_strangers(ROUTES, service)
    client = service.client()
    for header in BAD_HEADERS:
        check_401(client.get("/api/v1/jobs", headers={"Authorization": header}))
    check_401(client.get("/metrics"))


def test_the_keys_that_verify_tokens_are_open_to_all(service: Service):
    answer = service.client().get("/.well-known/jwks.json")
    assert answer.status_code == 200
    [key] = answer.json()["keys"]
    assert key["kid"] == service.parts.tokens.keys.signing.key_id
    assert "d" not in key


def test_an_expired_token_is_401(service: Service):
    past = utc_now() - timedelta(days=2)
    token, _ = service.parts.tokens.mint(grant(role="operator"), now=past)
    assert service.client(token).get("/api/v1/jobs").status_code == 401


def test_a_revoked_token_is_401_at_once(service: Service):
    token = service.token("user", vo="cms", user="ada")
    client = service.client(token)
    assert client.get("/api/v1/jobs").status_code == 200
    assert service.operator().post("/api/v1/tokens/revoke", json={"token": token}).status_code == 204
    answer = client.get("/api/v1/jobs")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "revoked")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    # Revoking is idempotent, and another token of the same bearer is another token.
    assert service.operator().post("/api/v1/tokens/revoke", json={"token": token}).status_code == 204
    assert service.user().get("/api/v1/jobs").status_code == 200


def test_a_token_of_a_host_whose_clock_is_ahead_is_to_be_shown_again_later(service: Service):
    ahead = utc_now() + timedelta(minutes=5)
    token, _ = service.parts.tokens.mint(grant(role="operator"), now=ahead)

    answer = service.client(token).get("/api/v1/jobs")

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "clock_behind")
    assert int(answer.headers["Retry-After"]) > 0


def test_a_request_outside_its_role_is_in_the_audit_log(service: Service, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, logger="pilotage.audit"):
        service.user().put("/api/v1/config", json=TREE)
    [line] = [record.getMessage() for record in caplog.records if record.name == "pilotage.audit"]
    assert '"action": "refused"' in line
    assert "user:cms::ada" in line
    assert "/api/v1/config" in line


def test_a_gateway_renews_its_token_and_revoking_the_first_revokes_both(service: Service):
    first = service.token("gateway", vo="cms", site="LCG.A.org")
    answer = service.client(first).post("/api/v1/tokens/renew")
    assert answer.status_code == 200
    renewed = service.client(answer.json()["token"])
    assert renewed.get("/api/v1/pools").status_code == 200
    service.operator().post("/api/v1/tokens/revoke", json={"token": first})
    assert renewed.get("/api/v1/pools").status_code == 401


def test_a_pilot_that_does_not_run_does_not_renew_its_token(service: Service):
    assert service.as_role("pilot", vo="cms", queue=QUEUE).post("/api/v1/tokens/renew").status_code == 404


@pytest.mark.usefixtures("_rates_gain_nothing")
def test_too_many_requests_of_one_subject_are_429(service: Service, config_text: str):
    limited = config_text.replace("Defaults:", "Defaults:\n    Limits: {RequestsPerSecond: 0.1}")
    service.configure(limited)
    user = service.user()
    assert user.get("/api/v1/jobs").status_code == 200
    answer = user.get("/api/v1/jobs")
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["Retry-After"]) <= 10
    assert answer.json()["error"]["code"] == "too_many_requests"
    assert service.user("bob").get("/api/v1/jobs").status_code == 200
    operator = service.operator()
    assert all(operator.get("/api/v1/jobs").status_code == 200 for _ in range(3))


def test_who_submitted_too_many_jobs_in_an_hour_neither_submits_nor_reschedules_more(
    service: Service, config_text: str
):
    service.configure(config_text.replace("Defaults:", "Defaults:\n    Limits: {JobsPerHour: 3}"))
    user = service.user()
    jobs = {"jobs": [{"Executable": "x"}] * 5}
    ids = user.post("/api/v1/jobs", json=jobs).json()["job_ids"]
    for path, body in (("", jobs), ("/reschedule", {"ids": ids}), ("/reset", {"ids": ids})):
        answer = user.post(f"/api/v1/jobs{path}", json=body)
        assert answer.status_code == 429
        assert answer.json()["error"]["message"].startswith("too many jobs, try again in ")
    for change in ("reschedule", "reset"):
        assert user.post(f"/api/v1/jobs/{ids[0]}/{change}").status_code == 429
    assert len(user.post("/api/v1/jobs/kill", json={"ids": ids}).json()["job_ids"]) == 5
    for other in (service.user("bob"), service.as_role("vo_admin", vo="cms", user="eve")):
        assert other.post("/api/v1/jobs", json=jobs).status_code == 201
    admin = service.as_role("vo_admin", vo="cms", user="zoe")
    admin.post("/api/v1/jobs/reset", json={"owner": "bob"})
    assert admin.post("/api/v1/jobs", json=jobs).status_code == 429, "what it reset counts"


def test_jobs_that_others_wait_for_count_as_jobs_by_their_bytes(service: Service, config_text: str):
    service.configure(config_text.replace("Defaults:", "Defaults:\n    Limits: {JobsPerHour: 40}"))
    user = service.user()
    jobs = {"jobs": [{"Executable": "x", "Parameters": 10}]}
    first = user.post("/api/v1/jobs", json=jobs).json()["job_ids"]
    after = {"jobs": [{"Executable": "x", "Parameters": 16, "After": first}]}
    for _ in range(2):
        assert user.post("/api/v1/jobs", json=after, headers={"Idempotency-Key": "a"}).status_code == 201
    assert user.post("/api/v1/jobs", json=jobs).status_code == 429, "10 jobs, 16 and the bytes of 20"


def test_no_submission_pilot_or_report_waits_for_expensive_requests_of_others(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    end, at_work, most = threading.Event(), list[object](), list[int]()

    def explain_at_length(*asked: object) -> object:
        at_work.append(asked)
        most.append(len(at_work))
        assert end.wait(300)
        at_work.pop()
        raise NotFound("explained at length")

    monkeypatch.setattr(explanations, "explain_queue", explain_at_length)

    def explain(number: int) -> int:
        client = service.user(f"u{number % 6}")
        return client.get(f"/api/v1/resources/queues/{QUEUE}/explain").status_code

    ann = service.user("ann")
    director = service.as_role("director", vo="cms")
    pilot = service.as_role("pilot", vo="cms", queue=QUEUE, stamp="s")
    with ThreadPoolExecutor(48) as threads:
        answers = [threads.submit(explain, number) for number in range(48)]
        try:
            while len(at_work) < rate_limits.EXPENSIVE_TURNS.of_vo:
                time.sleep(0.01)
            job_ids = ann.post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).json()["job_ids"]
            pilots = {"stamp": "s", "queue": QUEUE}
            assert director.post("/api/v1/pilots", json=pilots).status_code == 201
            [match] = pilot.post(
                "/api/v1/matcher/requestJob",
                json={"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000},
            ).json()["matches"]
            lease = f"/api/v1/leases/{match['lease']}"
            assert pilot.post(f"{lease}/start").status_code == 200
            finish = {"status": "Done", "exit_code": 0}
            assert pilot.post(f"{lease}/finish", json=finish).status_code == 200
            assert ann.get(f"/api/v1/jobs/{job_ids[0]}").json()["status"] == "Done"
        finally:
            end.set()
        assert {each.result() for each in answers} == {404}
    assert max(most) == rate_limits.EXPENSIVE_TURNS.of_vo


def test_no_small_submission_waits_for_large_ones_of_which_a_vo_has_one_at_work(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    submit, end, at_work, most = jobs.submit, threading.Event(), list[object](), list[int]()

    def submit_at_length(parts: Any, caller: Any, sources: Any, **more: Any) -> Any:
        if len(sources) > 1:
            at_work.append(sources)
            most.append(len(at_work))
            assert end.wait(300)
            at_work.pop()
        return submit(parts, caller, sources, **more)

    monkeypatch.setattr(jobs, "submit", submit_at_length)
    large = {"jobs": [{"Executable": "x" * 1000, "StdOutput": f"{n}"} for n in range(20)]}

    def submit_many(number: int) -> int:
        return service.user(f"u{number}").post("/api/v1/jobs", json=large).status_code

    with ThreadPoolExecutor(6) as threads:
        answers = [threads.submit(submit_many, number) for number in range(6)]
        try:
            wait.until(lambda: at_work)
            assert service.user("ann").post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).is_success
            other = service.user("dan", "dune")
            assert other.post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).is_success
        finally:
            end.set()
        assert {each.result() for each in answers} == {201}
    assert max(most) == rate_limits.LARGE_TURNS.of_vo


def test_a_submission_that_is_repeated_counts_once_and_a_single_job_that_is_reset_counts(
    service: Service, config_text: str
):
    service.configure(config_text.replace("Defaults:", "Defaults:\n    Limits: {JobsPerHour: 4}"))
    user, key = service.user(), {"Idempotency-Key": "again"}
    jobs = {"jobs": [{"Executable": "x"}] * 2}
    ids = user.post("/api/v1/jobs", json=jobs, headers=key).json()["job_ids"]
    for _ in range(3):
        assert user.post("/api/v1/jobs", json=jobs, headers=key).json()["job_ids"] == ids
    for job_id in ids:
        assert user.post(f"/api/v1/jobs/{job_id}/reset").status_code == 200
    assert user.post(f"/api/v1/jobs/{ids[0]}/reset").status_code == 429
    answer = user.post("/api/v1/jobs", json=jobs, headers=key)
    assert (answer.status_code, answer.json()["job_ids"]) == (201, ids), "nothing is submitted by it"
    other = {"jobs": [{"Executable": "y"}]}
    assert user.post("/api/v1/jobs", json=other, headers=key).status_code == 409
    assert user.post("/api/v1/jobs", json=other, headers={"Idempotency-Key": "new"}).status_code == 429


def test_a_route_that_does_not_say_who_may_use_it_does_not_start():
    def open_to_whom() -> None: ...

    with pytest.raises(TypeError, match="open_to_whom"):
        allowed_roles(open_to_whom)
    assert allowed_roles(allow(Role.USER)(open_to_whom)) == {Role.USER, Role.OPERATOR}
