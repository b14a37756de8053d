import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from agents import accounting, leader
from pilotage.service.auth import login_tokens
from pilotage.service.routes import health
from pilotage.service.services import utc_now
from taskqueue.db import database
from taskqueue.sites import scopes
from tests.support import wait
from tests.support.service import Service


def test_the_health_of_a_service_that_works(service: Service):
    client = service.client()
    assert client.get("/healthz").json() == {"status": "ok"}
    wait.until(lambda: client.get("/readyz").status_code == 200)  # the index is loaded
    answer = client.get("/readyz")
    assert answer.json()["checks"] == {
        "database": "ok",
        "history": "ok",
        "claimer": "ok",
        "index": "ok",
        "clock": "ok",
        "configuration": "ok",
    }


def test_readyz_fails_while_nothing_can_be_stored_with_the_reason(service: Service):
    user = service.user()
    wait.until(lambda: user.get("/readyz").status_code == 200)  # the index is loaded
    listen = event.listens_for(service.engine, "checkout")

    @listen
    def forbid(connection: Any, *_: object) -> None:
        connection.execute("PRAGMA query_only = ON")

    answer = user.post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]})
    assert answer.status_code == 503
    message = answer.json()["error"]["message"]
    assert message == "the database can store nothing: it is read-only; try again later"
    wait.until(lambda: user.get("/readyz").status_code == 503)
    checks = user.get("/readyz").json()["checks"]
    assert checks["database"] == "can store nothing: it is read-only"


def test_readyz_fails_while_the_database_confirms_no_commit(service: Service):
    object.__setattr__(service.parts, "commit_age", lambda: 12.6)
    answer = service.client().get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["database"] == "has confirmed no commit for 13 s"


def test_readyz_is_checked_once_a_second_however_many_ask(service: Service, monkeypatch: pytest.MonkeyPatch):
    client = service.client()
    client.get("/readyz")
    made: list[float] = []
    original = health._check
    monkeypatch.setattr(health, "_check", lambda parts: made.append(time.monotonic()) or original(parts))
    begun = time.monotonic()
    for _ in range(50):
        client.get("/readyz")
    assert len(made) <= (time.monotonic() - begun) / health._REMEMBERED + 1


def test_the_description_of_the_interface_is_made_once_and_sent_only_when_it_changed(service: Service):
    for path in ("/openapi.json", "/docs"):
        first = service.client().get(path)
        assert first.status_code == 200
        again = service.client().get(path, headers={"If-None-Match": first.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert first.headers["Content-Encoding"] == "gzip"


@pytest.mark.usefixtures("_rates_gain_nothing")
def test_strangers_have_a_rate_of_their_own(service: Service):
    client = service.client()
    most = round(service.parts.limits.strangers_per_second * service.parts.limits.burst_seconds)
    statuses = [client.get("/docs").status_code for _ in range(3 * most)]
    assert statuses[0] == 200
    assert statuses[-1] == 429
    assert service.user().get("/api/v1/jobs").status_code == 200


@pytest.mark.usefixtures("_rates_gain_nothing")
def test_wrong_secrets_of_a_stamp_do_not_keep_out_other_pilots_of_the_address(service: Service):
    client = service.client("wrong")
    most = round(service.parts.limits.strangers_per_second * service.parts.limits.burst_seconds)
    body = {"request_id": "3f1c7e0e-0a55-4b6e-9d8e-0c6a6dd6a001"}
    statuses = [client.post("/api/v1/pilots/nope/token", json=body).status_code for _ in range(3 * most)]
    assert (statuses[0], statuses[-1]) == (401, 429)
    assert client.post("/api/v1/pilots/other/token", json=body).status_code == 401


def test_a_dead_claimer_fails_readyz(service: Service):
    service.parts.claimer.stop()
    answer = service.client().get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["claimer"] == "has ended"
    assert service.client().get("/healthz").status_code == 200


def test_metrics_tell_jobs_requests_and_pools_without_queues(service: Service):
    user = service.user()
    stuck, ended = ({"Executable": "x", "Requirements": {"Memory": memory}} for memory in (10**6, 2 * 10**6))
    answer = user.post("/api/v1/jobs", json={"jobs": [stuck, {"Executable": "x"}, ended]})
    user.post(f"/api/v1/jobs/{answer.json()['job_ids'][-1]}/kill").raise_for_status()
    user.get("/api/v1/jobs/77")
    assert user.request("LOCK", "/api/v1/jobs").status_code == 405
    accounting.cycle(service.engine, now=utc_now(), holder="test")
    with leader.lead(service.engine, "pools", holder="test", now=utc_now()) as turn:
        assert turn is not None
        turn.serve_each(["cms", "evil"], lambda vo: 1 // (vo != "evil"))
    text = service.as_role("monitor").get("/metrics").text
    assert 'pilotage_jobs{status="Waiting",vo="cms"} 2.0' in text
    assert 'pilotage_jobs_ended_total{status="Killed",vo="cms"} 1.0' in text
    assert 'pilotage_jobs{status="Killed"' not in text
    assert [line for line in text.splitlines() if line.startswith("pilotage_agent_failed_vos{")] == [
        'pilotage_agent_failed_vos{agent="pools",vo="evil"} 1.0'
    ]
    assert 'pilotage_pools_without_queues{vo="cms"} 1.0' in text
    assert 'pilotage_problems{health="warning",subject="eligible queues",vo="cms"} 1.0' in text
    assert 'pilotage_http_refusals_total{code="job_not_found"} 1.0' in text
    line = 'pilotage_http_requests_total{method="GET",route="/jobs/{job_id}",status="404"} 1.0'
    assert line in text
    assert 'status="405"} 1.0' in text
    assert 'method="LOCK"' not in text
    assert service.operator().get("/metrics").status_code == 200
    assert user.get("/metrics").status_code == 403


def test_metrics_tell_which_agents_nobody_runs(service: Service):
    soon = utc_now() + timedelta(minutes=10)  # on a slow machine, too, it is not overdue meanwhile
    accounting.cycle(service.engine, now=soon, holder="test")
    with leader.lead(service.engine, "pools", holder="test", now=utc_now() - timedelta(hours=1)) as late:
        assert late is not None
    with leader.lead(service.engine, "traces", holder="test", now=utc_now() - timedelta(hours=1)) as optional:
        assert optional is not None
    text = service.as_role("monitor").get("/metrics").text
    assert 'pilotage_agent_overdue{agent="accounting"} 0.0' in text
    assert 'pilotage_agent_overdue{agent="pools"} 1.0' in text
    assert 'pilotage_agent_overdue{agent="lost-jobs"} 1.0' in text  # it never ran
    assert 'pilotage_agent_overdue{agent="traces"}' not in text


def test_a_place_that_the_configuration_has_no_more_is_not_expected_to_advertise(service: Service):
    with database.writing(service.engine) as conn:
        for place in ("LCG.A.org", "LCG.Gone.org"):
            scopes.lock_scopes(conn, [place])
            scopes.store_state(conn, place, {"CurrentJobs": 1}, as_of=0, taken_at=None, now=utc_now())
    text = service.as_role("monitor").get("/metrics").text
    assert 'pilotage_advertised_timestamp_seconds{scope="lcg.a.org"}' in text
    assert "gone" not in text


def test_every_model_and_field_of_the_interface_is_described(service: Service):
    document = service.client().get("/openapi.json").json()
    assert service.client().get("/docs").status_code == 200
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), (method, path)
    for name, schema in document["components"]["schemas"].items():
        assert schema.get("description") or name in {"HTTPValidationError", "ValidationError"}, name


def test_a_database_that_is_away_is_503_with_retry_after(service: Service, monkeypatch: pytest.MonkeyPatch):
    user = service.user()
    assert user.get("/api/v1/jobs").status_code == 200

    def away(_engine):
        raise database.UNAVAILABLE[0]("SELECT 1", {}, Exception("away"))

    monkeypatch.setattr(database, "reading", away)
    answer = user.get("/api/v1/jobs")
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert answer.json()["error"]["code"] == "unavailable"
    assert "SELECT" not in answer.text


def test_a_bug_is_500_and_tells_nothing(service: Service, monkeypatch: pytest.MonkeyPatch):
    user = service.user()

    def broken(_engine):
        raise RuntimeError("the secret of the database")

    monkeypatch.setattr(database, "reading", broken)
    answer = user.get("/api/v1/jobs")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


def test_a_token_revoked_by_another_process_is_refused_within_seconds(service: Service):
    token = service.token("user", vo="cms", user="ada")
    client = service.client(token)
    token_id = service.parts.tokens.verify(token, now=utc_now()).token_id
    with database.writing(service.engine) as conn:
        now = utc_now()
        login_tokens.revoke_token(conn, token_id, expires_at=now + timedelta(days=365), now=now)
    wait.until(lambda: client.get("/api/v1/jobs").status_code == 401)


def test_strangers_hear_that_a_configuration_cannot_be_read_and_not_what_is_in_it(service: Service):
    service.parts.live.problem = "Operations/cms/Matching/Secret: unknown parameter"
    client = service.client()
    wait.until(lambda: client.get("/readyz").json()["checks"]["index"] == "ok")
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["configuration"] == "the newest version cannot be read"
    pilot = service.client(service.token("pilot", vo="cms"))
    refused = pilot.post("/api/v1/matcher/requestJob", json={"CPUTime": 1000})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
