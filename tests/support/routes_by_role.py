"""Which role may use which route: the table that tests of the interface share."""

import logging
from collections.abc import Mapping, Sequence
from uuid import uuid4

import httpx
import pytest

from pilotage import extensions
from tests.support.service import Service

#: Method, route, body, and the roles that may use it beside the operator.
Route = tuple[str, str, Mapping[str, object] | None, set[str]]

QUEUE = "LCG.A.org/ce1/long"
TREE = {"config": {"Resources": {}}, "message": ""}

TOKENS = {
    "user": {"vo": "cms", "user": "ada"},
    "vo_admin": {"vo": "cms", "user": "eve"},
    "site_admin": {"vo": "cms", "site": "LCG.A.org"},
    "director": {"vo": "cms", "site": "LCG.A.org"},
    "gateway": {"vo": "cms", "site": "LCG.A.org"},
    "pilot": {"vo": "cms", "queue": QUEUE},
    "operator": {"user": "root"},
    "monitor": {},
}

#: Those of the program; plug-ins have tables of their own.
ROUTES: Sequence[Route] = [
    ("POST", "/jobs", {"jobs": [{"Executable": "x"}]}, {"user", "vo_admin"}),
    ("GET", "/jobs", None, {"user", "vo_admin"}),
    ("GET", "/accounting", None, {"user", "vo_admin", "site_admin"}),
    ("GET", "/accounting.csv", None, {"user", "vo_admin", "site_admin"}),
    ("GET", "/accounting/depths", None, {"user", "vo_admin", "site_admin"}),
    ("GET", "/accounting/records?site=LCG.A.org&month=2026-10", None, {"site_admin"}),
    ("GET", "/jobs/summary", None, {"user", "vo_admin", "site_admin"}),
    ("GET", "/jobs/end?job_group=scan", None, {"user", "vo_admin"}),
    ("GET", "/jobs/changes", None, {"user", "vo_admin"}),
    ("GET", "/jobs/events?seconds=0.1", None, {"user", "vo_admin"}),
    ("GET", "/jobs/1", None, {"user", "vo_admin"}),
    ("GET", "/jobs/1/local-jobs", None, {"user", "vo_admin"}),
    ("GET", "/jobs/1/log", None, {"user", "vo_admin"}),
    ("GET", "/jobs/1/output", None, {"user", "vo_admin"}),
    ("POST", "/jobs/1/kill", None, {"user", "vo_admin"}),
    ("POST", "/jobs/1/reset", None, {"user", "vo_admin"}),
    ("POST", "/jobs/1/hold", None, {"user", "vo_admin"}),
    ("POST", "/jobs/1/release", None, {"user", "vo_admin"}),
    ("POST", "/jobs/1/complete", {"status": "Done"}, {"vo_admin"}),
    ("POST", "/jobs/1/reschedule", None, {"user", "vo_admin"}),
    # A copy is submitted for the job's owner: a VO admin submits only the own ones again.
    ("POST", "/jobs/1/resubmit", None, {"user"}),
    ("POST", "/jobs/resubmit", {"ids": [1]}, {"user"}),
    ("POST", "/jobs/kill", {"ids": [1]}, {"user", "vo_admin"}),
    ("POST", "/jobs/edit", {"ids": [1], "set": {"Memory": 1}}, {"user", "vo_admin"}),
    ("POST", "/jobs/hold", {"ids": [1]}, {"user", "vo_admin"}),
    ("POST", "/jobs/release", {"ids": [1]}, {"user", "vo_admin"}),
    ("POST", "/jobs/plan", {"sources": [{"jdl": "Executable = x"}]}, {"user", "vo_admin"}),
    ("POST", "/jobs/reset", {"ids": [1]}, {"user", "vo_admin"}),
    ("POST", "/jobs/reschedule", {"ids": [1]}, {"user", "vo_admin"}),
    ("POST", "/sandboxes", None, {"user", "vo_admin"}),
    (
        "GET",
        "/jobs/1/explain",
        None,
        {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"},
    ),
    (
        "GET",
        "/jobs/1/start",
        None,
        {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"},
    ),
    (
        "GET",
        "/jobs/1/queues",
        None,
        {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"},
    ),
    ("POST", "/explain", {"jobs": [{"Executable": "x"}]}, {"user", "vo_admin"}),
    (
        "GET",
        f"/resources/queues/{QUEUE}/explain",
        None,
        {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"},
    ),
    ("POST", f"/resources/queues/{QUEUE}/drain", {"message": ""}, {"site_admin"}),
    ("POST", f"/resources/queues/{QUEUE}/resume", {"message": ""}, {"site_admin"}),
    ("GET", "/pools", None, {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"}),
    ("GET", "/pools/0", None, {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"}),
    (
        "GET",
        f"/resources/queues/{QUEUE}",
        None,
        {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"},
    ),
    (
        "GET",
        "/resources/queues?vo=cms",
        None,
        {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"},
    ),
    (
        "POST",
        "/resources/queues",
        {"queues": [QUEUE], "vo": "cms"},
        {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"},
    ),
    (
        "POST",
        "/resources/getEligibleNodes",
        {},
        {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"},
    ),
    ("GET", "/config", None, {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"}),
    ("PUT", "/config", TREE, set()),
    ("PATCH", "/config", {"set": {"Resources/X": 1}}, {"vo_admin", "site_admin"}),
    ("POST", "/config/preview", {}, {"vo_admin", "site_admin"}),
    ("GET", "/config/temporary", None, {"vo_admin", "site_admin"}),
    ("GET", "/config/versions", None, {"vo_admin", "site_admin"}),
    (
        "GET",
        f"/config/blame?path={QUEUE}&vo=cms",
        None,
        {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"},
    ),
    (
        "GET",
        f"/config/values?path={QUEUE}&vo=cms",
        None,
        {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"},
    ),
    ("GET", "/config/diff?from=1", None, {"vo_admin", "site_admin"}),
    ("POST", "/config/rollback", {"version": 1}, {"vo_admin", "site_admin"}),
    (
        "POST",
        "/matcher/getSubmitPoolsForQueue",
        {"queues": [QUEUE]},
        {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"},
    ),
    (
        "POST",
        "/matcher/requestJob",
        {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 1},
        {"gateway", "pilot"},
    ),
    ("POST", "/matcher/getMatchingTaskQueues", {"CPUTime": 1, "Site": "LCG.A.org"}, {"director"}),
    (
        "POST",
        "/matcher/getDemand",
        {"resources": [{"CPUTime": 1, "Site": "LCG.A.org"}]},
        {"director"},
    ),
    ("POST", "/leases/nope/start", {}, {"gateway", "pilot"}),
    ("POST", "/leases/nope/heartbeat", {}, {"gateway", "pilot"}),
    ("POST", "/leases/nope/note", {}, {"gateway", "pilot"}),
    ("PUT", "/leases/nope/local-jobs", {"local_jobs": []}, {"gateway"}),
    ("POST", "/leases/nope/finish", {"status": "Done"}, {"gateway", "pilot"}),
    ("POST", "/leases/nope/release", {}, {"gateway", "pilot"}),
    ("GET", "/leases/nope/sandbox", None, {"gateway", "pilot"}),
    ("PUT", "/leases/nope/output", None, {"gateway", "pilot"}),
    ("POST", "/pilots", {"stamp": "s1", "queue": QUEUE}, {"director"}),
    ("POST", "/pilots/registrations", {"pilots": [{"stamp": "s2", "queue": QUEUE}]}, {"director"}),
    ("POST", "/pilots/statuses", {"reports": [{"stamp": "nope", "status": "Done"}]}, {"director"}),
    ("POST", "/pilots/nope/status", {"status": "Done"}, {"director", "pilot"}),
    ("POST", "/pilots/nope/node", {"node": "n1", "process": "p"}, {"pilot"}),
    ("GET", "/pilots", None, {"vo_admin", "site_admin", "director", "gateway"}),
    ("GET", "/pilots/nope", None, {"vo_admin", "site_admin", "director", "gateway"}),
    ("GET", "/pilots/nope/output", None, {"vo_admin", "site_admin", "director", "gateway"}),
    ("POST", "/pilots/nope/output", {"stdout": "x"}, {"director"}),
    ("POST", "/pilots/nope/log", {"log": "x"}, {"pilot"}),
    (
        "POST",
        "/site-processes",
        {"kind": "director", "name": "north", "holder": "h:1:2", "every": 60},
        {"director"},
    ),
    (
        "POST",
        "/site-processes/forget",
        {"name": "nobody"},
        {"vo_admin", "site_admin", "director", "gateway"},
    ),
    ("GET", "/shares?vo=cms", None, {"user", "vo_admin"}),
    ("GET", "/shares/order?first=1&second=2", None, {"user", "vo_admin"}),
    ("GET", "/site-processes", None, {"vo_admin", "site_admin", "director", "gateway"}),
    ("GET", "/pilots/summary", None, {"vo_admin", "site_admin", "director", "gateway"}),
    ("POST", "/pilots/standings", {"stamps": ["s1"]}, {"director"}),
    ("POST", "/sites/LCG.A.org/ban", {"reason": "x"}, {"site_admin"}),
    ("POST", "/sites/LCG.A.org/allow", None, {"site_admin"}),
    (
        "GET",
        "/downtimes",
        None,
        {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"},
    ),
    (
        "POST",
        "/downtimes",
        {
            "place": "LCG.A.org",
            "begins": "2090-01-01T00:00:00Z",
            "ends": "2090-01-02T00:00:00Z",
            "reason": "x",
        },
        {"site_admin"},
    ),
    ("POST", "/downtimes/import", {"source": "gocdb", "downtimes": []}, {"site_admin"}),
    ("POST", "/downtimes/1/remove", None, {"site_admin"}),
    ("GET", "/sites/LCG.A.org/nodes", None, {"vo_admin", "site_admin", "director", "gateway"}),
    ("GET", "/hardware", None, {"user", "vo_admin", "site_admin", "director", "gateway"}),
    ("POST", "/sites/LCG.A.org/readmit", {"node": "n1"}, {"site_admin"}),
    ("GET", "/sites", None, {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"}),
    ("GET", "/sites/LCG.A.org", None, {"user", "vo_admin", "site_admin", "director", "gateway", "pilot"}),
    ("POST", "/sites/LCG.A.org/watermark", None, {"site_admin", "gateway"}),
    ("POST", "/sites/LCG.A.org/advertisement", {}, {"site_admin", "gateway"}),
    ("POST", "/sites/LCG.A.org/ces/ce1/advertisement", {}, {"site_admin", "gateway"}),
    ("POST", "/sites/LCG.A.org/ces/ce1/queues/long/advertisement", {}, {"site_admin", "gateway"}),
    # Whoever shows no good secret is nobody, whatever its role: 401.
    ("POST", "/pilots/nope/token", {"request_id": str(uuid4())}, set(TOKENS)),
    ("GET", "/tokens/me", None, set(TOKENS)),
    ("POST", "/tokens/renew", None, {"director", "gateway", "pilot"}),
    ("POST", "/login-links", {}, {"user", "vo_admin", "site_admin"}),
    ("POST", "/tokens/revoke", {"jti": "x"}, set()),
    ("POST", "/device-logins/token", None, set(TOKENS)),
    ("POST", "/jobs/1/delete", None, {"user", "vo_admin"}),
    ("POST", "/jobs/delete", {"ids": [1]}, {"user", "vo_admin"}),
]


def check_roles(routes: Sequence[Route], service: Service, caplog: pytest.LogCaptureFixture) -> None:
    """Check that each role may use its routes and no other, and that each refusal is in the audit log."""
    clients = {role: service.as_role(role, **wishes) for role, wishes in TOKENS.items()}
    wrong, refused = [], 0
    caplog.set_level(logging.WARNING, logger="pilotage.audit")
    for method, path, body, roles in routes:
        for role, client in clients.items():
            answer = client.request(method, f"/api/v1{path}", json=body)
            assert answer.status_code < 500, answer.text
            is_refused = answer.status_code == 403
            refused += is_refused
            if is_refused == (role in roles | {"operator"}):
                wrong.append((method, path, role, answer.status_code, answer.text))
    assert not wrong
    written = [line for line in caplog.messages if '"action": "refused"' in line]
    assert len([line for line in written if "this is for" in line or "may not" in line]) == refused


def check_strangers(routes: Sequence[Route], service: Service) -> None:
    """Check that without a token every route is 401."""
    client = service.client()
    for method, path, body, _ in routes:
        check_401(client.request(method, f"/api/v1{path}", json=body))


def check_401(answer: httpx.Response) -> None:
    """Check an answer to somebody without a good token."""
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "not_authenticated"


def list_routes_of_plugins() -> set[tuple[str, str]]:
    """Method and path of each route that a plug-in adds."""
    return {
        (method, f"/api/v1{route.path}")
        for router in extensions.list_routers()
        for route in router.routes
        for method in route.methods
    }
