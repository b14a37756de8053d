import pytest

from tests.support.service import Service


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/api/v1/sites", 200),
        ("GET", "/api/v1/nothing", 404),
        ("POST", "/api/v1/matcher/requestJob", 200),
        ("POST", "/api/v1/leases/nope/start", 404),
        ("GET", "/login", 200),
        ("GET", "/assets/pilotage.css", 200),
    ],
)
def test_every_answer_tells_browsers_what_not_to_do(service: Service, method, path, status):
    client = service.operator() if "requestJob" not in path and "leases" not in path else service.pilot()
    body = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 1} if "request" in path else {}
    answer = client.request(method, path, **({"json": body} if method == "POST" else {}))
    assert answer.status_code == status, answer.text
    policy = answer.headers.get_list("content-security-policy")
    assert len(policy) == 1
    assert policy[0].startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in policy[0]
    assert "frame-ancestors 'none'" in policy[0]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert "strict-transport-security" not in answer.headers


def test_behind_tls_browsers_are_told_to_stay_there(service: Service):
    answer = service.client().get("/login", headers={"X-Forwarded-Proto": "https"})
    assert answer.headers["strict-transport-security"] == "max-age=31536000"


def test_an_answer_to_a_defect_has_the_headers_too(service: Service, monkeypatch):
    def broken(*_args, **_kwargs):
        raise RuntimeError("a defect")

    monkeypatch.setattr("taskqueue.db.database.schema_state", broken)
    answer = service.client().get("/readyz")
    assert answer.status_code == 500
    assert len(answer.headers.get_list("content-security-policy")) == 1
    assert answer.headers["x-content-type-options"] == "nosniff"
