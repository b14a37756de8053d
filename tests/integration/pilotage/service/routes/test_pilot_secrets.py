import logging
from datetime import timedelta
from uuid import uuid4

import httpx
import pytest

from pilotage.service.services import utc_now
from taskqueue.db import database
from tests.support import concurrency
from tests.support.factories import stored_rows
from tests.support.service import Service

QUEUE = "LCG.A.org/ce1/long"


def register(service: Service, stamp: str = "p1", by: httpx.Client | None = None, **said: object):
    director = by or service.as_role("director", vo="cms", site="LCG.A.org")
    return director.post("/api/v1/pilots", json={"stamp": stamp, "queue": QUEUE, "secret": True, **said})


def exchange(service: Service, secret: str, stamp: str = "p1", request_id: str | None = None):
    body = {"request_id": request_id or str(uuid4())}
    return service.client(secret).post(f"/api/v1/pilots/{stamp}/token", json=body)


def test_a_secret_becomes_a_token_for_its_queue_and_its_stamp(service: Service):
    answer = register(service)
    assert answer.status_code == 201
    exchanged = exchange(service, answer.json()["secret"])
    assert exchanged.status_code == 200, exchanged.text

    pilot = service.client(exchanged.json()["token"])
    resource = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 1000}
    assert pilot.post("/api/v1/matcher/requestJob", json=resource).status_code == 200
    elsewhere = {**resource, "Queue": "short"}
    assert pilot.post("/api/v1/matcher/requestJob", json=elsewhere).status_code == 403
    assert pilot.post("/api/v1/tokens/renew").status_code == 200
    assert pilot.post("/api/v1/pilots/p1/status", json={"status": "Done"}).json()["status"] == "Done"


def test_a_secret_is_shown_only_when_it_is_asked_for(service: Service):
    plain = register(service, secret=False)
    assert (plain.status_code, plain.json()["secret"]) == (201, None)
    asked = register(service)
    assert asked.status_code == 200
    listed = service.as_role("director", vo="cms").get("/api/v1/pilots")
    assert asked.json()["secret"] not in listed.text
    assert "secret" not in listed.json()["pilots"][0]


def test_registering_again_gives_another_secret_until_one_was_used(service: Service):
    first, second = (register(service).json()["secret"] for _ in range(2))
    assert exchange(service, first).status_code == 401
    assert exchange(service, second).status_code == 200
    third = register(service)
    assert (third.status_code, third.json()["error"]["code"]) == (409, "secret_used")


def test_another_director_gets_no_secret_for_the_stamp(service: Service):
    secret = register(service).json()["secret"]
    other = service.as_role("director", vo="cms", site="LCG.A.org,LCG.B.org")
    assert register(service, by=other).json()["error"]["code"] == "idempotency_conflict"
    assert exchange(service, secret).status_code == 200


def test_the_second_that_uses_a_secret_learns_that_it_is_the_twin(service: Service):
    secret = register(service).json()["secret"]
    answers = concurrency.at_once(2, lambda _: exchange(service, secret))
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    [refused] = [answer for answer in answers if answer.status_code == 409]
    assert refused.json()["error"]["code"] == "secret_used"


def test_the_same_request_gets_a_token_again(service: Service):
    secret, mine = register(service).json()["secret"], str(uuid4())
    tokens = [exchange(service, secret, request_id=mine).json()["token"] for _ in range(2)]
    assert [service.client(token).get("/api/v1/pools").status_code for token in tokens] == [200, 200]
    assert exchange(service, secret).status_code == 409


def test_nobody_learns_from_a_refusal_whether_there_is_such_a_pilot(service: Service):
    secret = register(service).json()["secret"]
    answers = [
        exchange(service, "wrong"),
        exchange(service, "wrong", stamp="unknown"),
        exchange(service, secret, stamp="unknown"),
        exchange(service, service.token("operator")),
    ]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].headers["WWW-Authenticate"] == "Bearer"


def test_a_secret_is_no_token(service: Service):
    secret = register(service).json()["secret"]
    assert service.client(secret).get("/api/v1/pools").status_code == 401


@pytest.mark.parametrize("life", [0, 4 * 86_400 + 1])
def test_a_secret_lives_four_days_at_most(service: Service, life: int):
    assert register(service, secret_lifetime=life).status_code == 400


@pytest.mark.parametrize("body", [{}, {"request_id": "x"}, {"request_id": str(uuid4()), "more": "x" * 9000}])
def test_a_bad_exchange_uses_nothing_up(service: Service, body: dict[str, str]):
    secret = register(service).json()["secret"]
    answer = service.client(secret).post("/api/v1/pilots/p1/token", json=body)
    assert answer.status_code in (400, 413)
    assert exchange(service, secret).status_code == 200


@pytest.mark.usefixtures("_rates_gain_nothing")
def test_strangers_are_counted_by_their_address(service: Service, config_text: str):
    service.configure(config_text.replace("Defaults:", "Defaults:\n    Limits: {RequestsPerSecond: 0.1}"))
    secret = register(service).json()["secret"]
    assert exchange(service, "wrong").status_code == 401
    late = exchange(service, secret)
    assert (late.status_code, late.json()["error"]["code"]) == (429, "too_many_requests")
    assert int(late.headers["Retry-After"]) >= 1


def test_exchanges_are_in_the_audit_log_without_what_was_shown(
    service: Service, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.DEBUG):
        secret = register(service).json()["secret"]
        exchange(service, "a-wrong-one")
        token = exchange(service, secret).json()["token"]
        exchange(service, secret)
    lines = [record.getMessage() for record in caplog.records if record.name == "pilotage.audit"]
    assert ["reason" in line for line in lines] == [True, False, True]
    assert all('"pilot secret"' in line and "127.0.0.1" in line for line in lines)
    assert "pilot:p1" in lines[1]
    assert not [text for text in (secret, "a-wrong-one", token) if text in caplog.text]


def test_a_pilot_of_which_the_batch_system_knows_nothing_renews_its_token(service: Service):
    token = exchange(service, register(service).json()["secret"]).json()["token"]
    director = service.as_role("director", vo="cms")
    director.post("/api/v1/pilots/p1/status", json={"status": "Unknown"})
    assert service.client(token).post("/api/v1/tokens/renew").status_code == 200
    director.post("/api/v1/pilots/p1/status", json={"status": "Deleted"})
    assert service.client(token).post("/api/v1/tokens/renew").status_code == 403


def test_a_pilot_that_was_not_heard_for_long_does_not_renew_its_token(service: Service):
    token = exchange(service, register(service).json()["secret"]).json()["token"]
    now, engine = utc_now(), service.parts.engine
    with database.writing(engine) as conn:
        stored_rows.force_pilot(conn, "p1", last_seen_at=now - timedelta(hours=1))
    # The service was away meanwhile: no pilot could be heard.
    assert service.client(token).post("/api/v1/tokens/renew").status_code == 200

    stored_rows.service_up(engine, now - timedelta(hours=2), utc_now())
    refused = service.client(token).post("/api/v1/tokens/renew")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_heard")

    service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "true"}]})
    place = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000}
    assert service.client(token).post("/api/v1/matcher/requestJob", json=place).json()["matches"]
    with database.writing(engine) as conn:
        stored_rows.force_pilot(conn, "p1", last_seen_at=now - timedelta(hours=1))
    assert service.client(token).post("/api/v1/tokens/renew").status_code == 200, "it holds a job"
