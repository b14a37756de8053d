"""Every route and every page answers on PostgreSQL: the life of a job, its pilot and its configuration."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, inspect, text
from starlette.routing import compile_path

from examples.servers.postgres import Postgres
from taskqueue.db import database
from tests.integration.pilotage.service.pages.test_access import PAGES, session
from tests.support.factories.archives import tar
from tests.support.routes_by_role import QUEUE, ROUTES, list_routes_of_plugins
from tests.support.service import CONFIG, Service, running

SITE, CE, NAME = QUEUE.split("/")
RESOURCE = {"NumberOfProcessors": 8, "Site": SITE, "GridCE": CE, "Queue": NAME, "CPUTime": 100_000}


class Walk:
    """Requests that succeed, and the routes of the interface that they went to."""

    def __init__(self, service: Service) -> None:
        paths = service.client().get("/openapi.json").json()["paths"]
        self.described = {
            (method.upper(), path)
            for path, methods in paths.items()
            for method in methods
            if path.startswith("/api/v1")
        }
        self.left = self.described - list_routes_of_plugins()

    def go(self, client: httpx.Client, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request, which has to succeed."""
        answer = client.request(method, f"/api/v1{path}", **more)
        assert answer.is_success, (method, path, answer.status_code, answer.text)
        plain = answer.url.path
        self.left -= {(m, t) for m, t in self.left if m == method and self._fits(t, plain)}
        return answer

    def _fits(self, template: str, path: str) -> bool:
        """Whether the path is one of the template and of no template without a parameter there."""
        if template == path:
            return True
        exact = any(path == known for _, known in self.described)
        return not exact and bool(compile_path(template)[0].match(path))


@pytest.fixture(scope="module")
def engine(postgres: Postgres) -> Iterator[Engine]:
    with postgres.fresh() as url:
        engine = database.connect(url)
        yield engine
        engine.dispose()


@pytest.fixture(scope="module")
def service(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(engine, tmp_path_factory.mktemp("service"), CONFIG) as service:
        service.parts.job_events.longest = 0.1
        yield service


def test_every_route_succeeds(service: Service):
    walk = Walk(service)
    _go_everywhere(walk, service)
    assert walk.left == set()
    assert {method for method, *_ in ROUTES} >= {"GET", "POST", "PUT", "PATCH"}


def _go_everywhere(walk: Walk, service: Service) -> None:
    user, operator = service.user(), service.operator()
    director = service.as_role("director", vo="cms", site=SITE)
    sandbox = walk.go(user, "POST", "/sandboxes", content=tar({"out.txt": b"ok"})).json()["sandbox"]
    job = {"Executable": "true", "Requirements": {"Memory": 100}}
    walk.go(user, "POST", "/jobs/plan", json={"sources": [{"job": job}]})
    ids = walk.go(user, "POST", "/jobs", json={"jobs": [job] * 3, "sandbox": sandbox}).json()["job_ids"]

    _look_at_jobs(walk, user, ids[0])
    waiting = _match(walk, service, director, ids)
    _kill_and_reschedule(walk, user, waiting)
    _administer_site(walk, service.as_role("site_admin", vo="cms", site=SITE))
    _readmit_node(walk, service, director)
    _configure(walk, operator)
    walk.go(operator, "POST", "/tokens/revoke", json={"token": service.token("user", vo="cms", user="bob")})
    walk.go(user, "POST", "/login-links", json={})
    begun = walk.go(service.client(), "POST", "/device-logins").json()
    waiting_client = service.client(begun["device_code"])
    assert walk.go(waiting_client, "POST", "/device-logins/token").json()["token"] is None


def _readmit_node(walk: Walk, service: Service, director: httpx.Client) -> None:
    for stamp in ("broken1", "broken2", "broken3"):
        new = {"stamp": stamp, "queue": QUEUE, "secret": True}
        secret = service.client(walk.go(director, "POST", "/pilots", json=new).json()["secret"])
        given = walk.go(secret, "POST", f"/pilots/{stamp}/token", json={"request_id": REQUEST})
        pilot = service.client(given.json()["token"])
        walk.go(pilot, "POST", f"/pilots/{stamp}/node", json={"node": "n9"})
        walk.go(pilot, "POST", f"/pilots/{stamp}/status", json={"status": "Failed", "host_trouble": True})
    assert len(walk.go(director, "GET", f"/sites/{SITE}/nodes").json()["nodes"]) == 1
    assert walk.go(director, "GET", "/hardware", params={"site": SITE}).json()["next"] is None
    admin = service.as_role("site_admin", vo="cms", site=SITE)
    walk.go(admin, "POST", f"/sites/{SITE}/readmit", json={"node": "n9"})
    walk.go(admin, "GET", "/accounting/records", params={"site": SITE, "month": "2026-10"})


def _look_at_jobs(walk: Walk, user: httpx.Client, job_id: int) -> None:
    for page in (
        "",
        "/summary",
        "/changes",
        "/events",
        f"/{job_id}",
        f"/{job_id}/log",
        f"/{job_id}/explain",
        f"/{job_id}/start",
        f"/{job_id}/queues",
    ):
        walk.go(user, "GET", f"/jobs{page}")
    walk.go(user, "GET", "/jobs/end", params={"job_group": "scan"})
    walk.go(user, "GET", f"/jobs/{job_id}/local-jobs")
    walk.go(
        user, "POST", "/explain", json={"jobs": [{"Executable": "true", "Requirements": {"Memory": 10**6}}]}
    )
    [pool, *_] = walk.go(user, "GET", "/pools").json()["pools"]
    walk.go(user, "GET", f"/pools/{pool['pool_id']}")
    walk.go(user, "GET", "/shares")
    walk.go(user, "GET", "/shares/order", params={"first": job_id, "second": job_id + 1})
    walk.go(user, "GET", "/accounting")
    walk.go(user, "GET", "/accounting.csv")
    walk.go(user, "GET", "/accounting/depths", params={"site": "LCG.A.org"})
    walk.go(user, "POST", "/resources/getEligibleNodes", json={})
    walk.go(user, "GET", "/resources/queues", params={"site": "LCG.A.org"})
    walk.go(user, "GET", "/config/values", params={"path": QUEUE})


def _match(walk: Walk, service: Service, director: httpx.Client, ids: list[int]) -> list[int]:
    """A pilot's life: its first job ends, its second one is given back; return the jobs that wait."""
    pools = walk.go(director, "POST", "/matcher/getSubmitPoolsForQueue", json={"queues": [QUEUE]}).json()
    assert pools["pools"][QUEUE]
    walk.go(director, "POST", "/matcher/getMatchingTaskQueues", json=RESOURCE)
    walk.go(director, "POST", "/matcher/getDemand", json={"resources": [RESOURCE]})
    walk.go(director, "POST", "/resources/queues", json={"queues": [QUEUE], "vo": "cms"})
    walk.go(director, "POST", "/pilots/registrations", json={"pilots": [{"stamp": "s0", "queue": QUEUE}]})
    walk.go(director, "POST", "/pilots/statuses", json={"reports": [{"stamp": "s0", "status": "Deleted"}]})
    registered = walk.go(
        director, "POST", "/pilots", json={"stamp": "s1", "queue": QUEUE, "secret": True}
    ).json()
    secret = service.client(registered["secret"])
    token = walk.go(secret, "POST", "/pilots/s1/token", json={"request_id": REQUEST}).json()["token"]
    pilot = service.client(token)
    walk.go(pilot, "POST", "/pilots/s1/node", json={"node": "n1"})
    walk.go(pilot, "POST", "/pilots/s1/log", json={"log": "x"})
    leases = [_request_job(walk, pilot) for _ in range(2)]
    walk.go(pilot, "POST", f"/leases/{leases[1]}/release", json={})
    walk.go(pilot, "POST", f"/leases/{leases[0]}/start", json={})
    walk.go(pilot, "GET", f"/leases/{leases[0]}/sandbox")
    walk.go(pilot, "POST", f"/leases/{leases[0]}/heartbeat", json={})
    operator, local = service.operator(), [{"number": 1, "state": "running", "tries": 1}]
    walk.go(operator, "PUT", f"/leases/{leases[0]}/local-jobs", json={"local_jobs": local})
    walk.go(pilot, "POST", "/tokens/renew")
    walk.go(pilot, "PUT", f"/leases/{leases[0]}/output", content=tar({"out.txt": b"ok"}))
    walk.go(pilot, "POST", f"/leases/{leases[0]}/note", json={"parameters": {"Node": "n1"}})
    walk.go(pilot, "POST", f"/leases/{leases[0]}/finish", json={"status": "Completed"})
    [completed] = walk.go(service.user(), "GET", "/jobs", params={"status": "Completed"}).json()["jobs"]
    walk.go(service.operator(), "POST", f"/jobs/{completed['job_id']}/complete", json={"status": "Done"})
    states = [walk.go(service.user(), "GET", f"/jobs/{job_id}").json()["status"] for job_id in ids]
    assert sorted(states) == ["Done", "Waiting", "Waiting"]
    walk.go(service.user(), "GET", f"/jobs/{ids[states.index('Done')]}/output")
    walk.go(director, "POST", "/pilots/s1/output", json={"stdout": "x"})
    walk.go(director, "POST", "/pilots/s1/status", json={"status": "Done"})
    report = {"kind": "director", "name": "north", "holder": "h:1:2", "every": 60, "sites": [SITE]}
    walk.go(director, "POST", "/site-processes", json=report)
    assert walk.go(director, "GET", "/site-processes").json()["processes"]
    walk.go(director, "POST", "/site-processes/forget", json={"name": "nobody"})
    walk.go(director, "POST", "/pilots/standings", json={"stamps": ["s1"]})
    for page in ("", "/summary", "/s1", "/s1/output"):
        walk.go(director, "GET", f"/pilots{page}")
    return [job_id for job_id, state in zip(ids, states, strict=True) if state == "Waiting"]


#: An advertisement without a job.
STATE = {"CurrentJobs": 0, "CurrentSubmittingJobs": 0, "CurrentPendingJobs": 0, "CurrentRunningJobs": 0}
#: The id of a pilot's request for its token.
REQUEST = "0b6f1e0a-5a55-4d0c-9d9f-3f1f8f0f5a11"


def _request_job(walk: Walk, pilot: httpx.Client) -> str:
    [match] = walk.go(pilot, "POST", "/matcher/requestJob", json=RESOURCE).json()["matches"]
    return str(match["lease"])


def _kill_and_reschedule(walk: Walk, user: httpx.Client, waiting: list[int]) -> None:
    walk.go(user, "POST", f"/jobs/{waiting[0]}/resubmit")
    walk.go(user, "POST", "/jobs/resubmit", json={"ids": waiting})
    walk.go(user, "GET", "/tokens/me")
    walk.go(user, "POST", f"/jobs/{waiting[0]}/reschedule")
    walk.go(user, "POST", f"/jobs/{waiting[0]}/reset")
    walk.go(user, "POST", f"/jobs/{waiting[0]}/hold")
    walk.go(user, "POST", f"/jobs/{waiting[0]}/release")
    walk.go(user, "POST", "/jobs/edit", json={"ids": waiting, "set": {"CPUTime": 600}})
    walk.go(user, "POST", "/jobs/hold", json={"ids": waiting})
    walk.go(user, "POST", "/jobs/release", json={"ids": waiting})
    walk.go(user, "POST", f"/jobs/{waiting[0]}/kill")
    walk.go(user, "POST", "/jobs/reschedule", json={"ids": waiting})
    walk.go(user, "POST", "/jobs/reset", json={"ids": waiting})
    walk.go(user, "POST", "/jobs/kill", json={"ids": waiting})
    walk.go(user, "POST", f"/jobs/{waiting[0]}/delete")
    walk.go(user, "POST", "/jobs/delete", json={"ids": waiting})


def _administer_site(walk: Walk, admin: httpx.Client) -> None:
    walk.go(admin, "GET", f"/resources/queues/{QUEUE}")
    walk.go(admin, "GET", f"/resources/queues/{QUEUE}/explain")
    walk.go(admin, "POST", f"/resources/queues/{QUEUE}/drain", json={"message": "repairs"})
    walk.go(admin, "POST", f"/resources/queues/{QUEUE}/resume", json={"message": ""})
    walk.go(admin, "GET", "/sites")
    walk.go(admin, "GET", f"/sites/{SITE}")
    walk.go(admin, "POST", f"/sites/{SITE}/ban", json={"reason": "repairs"})
    walk.go(admin, "POST", f"/sites/{SITE}/allow")
    times = {"begins": "2090-01-01T00:00:00Z", "ends": "2090-01-02T00:00:00Z"}
    planned = walk.go(admin, "POST", "/downtimes", json={"place": SITE, "reason": "repairs", **times}).json()
    walk.go(admin, "GET", "/downtimes")
    walk.go(admin, "POST", f"/downtimes/{planned['downtime_id']}/remove")
    walk.go(admin, "POST", "/downtimes/import", json={"source": "gocdb", "downtimes": []})
    for scope in ("", f"/ces/{CE}", f"/ces/{CE}/queues/{NAME}"):
        watermark = walk.go(admin, "POST", f"/sites/{SITE}/watermark").json()["watermark"]
        state = {**STATE, "as_of": watermark}
        walk.go(admin, "POST", f"/sites/{SITE}{scope}/advertisement", json=state)


def _configure(walk: Walk, operator: httpx.Client) -> None:
    read = walk.go(operator, "GET", "/config")
    as_read = {"If-Match": read.headers["ETag"]}
    body = {"config": read.json()["config"], "message": "again"}
    changed = walk.go(operator, "PUT", "/config", json=body, headers=as_read).json()
    edits = {"set": {f"Resources/Sites/{SITE}/MaxRAM": 3000}}
    walk.go(operator, "POST", "/config/preview", json=edits)
    as_changed = {"If-Match": str(changed["version"])}
    walk.go(operator, "PATCH", "/config", json={**edits, "message": "less memory"}, headers=as_changed)
    walk.go(operator, "GET", "/config/versions")
    walk.go(operator, "GET", "/config/temporary")
    walk.go(operator, "GET", "/config/diff?from=1")
    walk.go(operator, "GET", f"/config/blame?path={QUEUE}&vo=cms")
    walk.go(operator, "POST", "/config/rollback", json={"version": 1, "message": "back"})


#: The n-th change of a table since the sequence began fails, as if it met another transaction.
CONFLICT = """
CREATE SEQUENCE number_of_changes;
CREATE TABLE conflict AS SELECT 0 AS at;
CREATE FUNCTION fail_one() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('number_of_changes') = (SELECT at FROM conflict) THEN
        RAISE EXCEPTION 'a conflict, on purpose' USING ERRCODE = '40001';
    END IF;
    RETURN NULL;
END $$"""
#: Tables with a row for each thing that was done, and no others.
DONE = ("jobs", "job_log", "attempts", "descriptions", "blobs", "config_versions", "pilots", "site_bans")


class ConflictingWalk(Walk):
    """A walk in which the n-th change of each request that changes something meets a conflict once."""

    def __init__(self, service: Service, number: int) -> None:
        super().__init__(service)
        self._engine = service.engine
        with database.writing(self._engine) as conn:
            conn.execute(text(CONFLICT))
            conn.execute(text("UPDATE conflict SET at = :at"), {"at": number})
            for table in inspect(conn).get_table_names():
                if table != "conflict":
                    trigger = f"CREATE TRIGGER fail_one BEFORE INSERT OR UPDATE OR DELETE ON {table}"
                    conn.execute(text(f"{trigger} FOR EACH STATEMENT EXECUTE FUNCTION fail_one()"))

    def go(self, client: httpx.Client, method: str, path: str, **more: Any) -> httpx.Response:
        with database.writing(self._engine) as conn:
            conn.execute(text("SELECT setval('number_of_changes', 1, false)"))
        return super().go(client, method, path, **more)

    def count_done(self) -> dict[str, int]:
        with database.reading(self._engine) as conn:
            return {
                table: int(conn.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()) for table in DONE
            }


def test_every_request_is_carried_out_once_whichever_of_its_changes_meets_a_conflict(
    postgres: Postgres, tmp_path: Path
):
    found = []
    for number in range(6):
        (tmp_path / str(number)).mkdir()
        with postgres.fresh() as url:
            engine = database.connect(url)
            with running(engine, tmp_path / str(number), CONFIG) as service:
                service.parts.job_events.longest = 0.1
                walk = ConflictingWalk(service, number)
                _go_everywhere(walk, service)
                assert walk.left == set()
                found.append(walk.count_done())
            engine.dispose()
    assert found == [found[0]] * 6


def test_every_page_is_shown(service: Service, tmp_path: Path):
    user = service.user()
    job = {"Executable": "true", "Requirements": {"Memory": 100}}
    [job_id] = user.post("/api/v1/jobs", json={"jobs": [job]}).json()["job_ids"]
    pool = user.get(f"/api/v1/jobs/{job_id}").json()["submit_pool"]
    director = service.as_role("director", vo="cms", site=SITE)
    assert director.post("/api/v1/pilots", json={"stamp": "s2", "queue": QUEUE}).status_code == 201
    names = {"job_id": job_id, "pool_id": pool, "stamp": "s2", "site": SITE, "ce": CE, "queue": NAME}

    with session(service, "operator", user="root") as browser:
        shown = {
            page: browser.get(page.format(**names), params=_QUERIES.get(page)).status_code
            for method, page, _ in PAGES
            if method == "GET"
        }

    assert {page for page, status in shown.items() if status != 200} == _WITHOUT_OUTPUT


_QUERIES = {
    "/campaigns/end": {"job_group": "scan"},
    "/configuration/diff": {"from": "1"},
    "/configuration/rollback": {"version": "1"},
    "/configuration/paths": {"q": "Resources"},
    "/jobs/change": {"do": "kill", "ids": "1"},
    "/jobs/resubmit": {"ids": "1"},
    "/search": {"q": "nothing like this"},
}
#: The job has not run.
_WITHOUT_OUTPUT = {f"/jobs/{{job_id}}/{name}" for name in ("output", "output.tar", "stderr")}
