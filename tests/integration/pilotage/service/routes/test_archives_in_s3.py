"""Sandboxes and outputs in a bucket: the same answers as from a directory, and 503 while it is away."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pilotage.service.queries import archives
from tests.support import databases
from tests.support.factories.archives import tar
from tests.support.servers.s3_server import S3Server, make_store
from tests.support.service import CONFIG, Service, running

QUEUE = "LCG.A.org/ce1/long"
PLACE = "of-the-service"


@pytest.fixture
def service(
    sqlite_url: str, tmp_path: Path, own_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    store, engine = make_store(own_server.place(PLACE), monkeypatch), databases.connect(sqlite_url)
    with running(engine, tmp_path, CONFIG, store=store) as service:
        yield service
    engine.dispose()


def _archive(size: int) -> bytes:
    return tar({"run.sh": b"echo hello\n", "data": os.urandom(size)})


def _start(service: Service, data: bytes) -> tuple[int, str, httpx.Client]:
    """A job with this sandbox that a pilot has; its id and lease."""
    user = service.user()
    sandbox = user.post("/api/v1/sandboxes", content=data).json()["sandbox"]
    job = {"Executable": "run.sh", "InputSandbox": ["run.sh"]}
    answer = user.post("/api/v1/jobs", json={"jobs": [job], "sandbox": sandbox})
    assert answer.status_code == 201, answer.text
    pilot = service.pilot(QUEUE)
    resource = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000}
    [match] = pilot.post("/api/v1/matcher/requestJob", json=resource).json()["matches"]
    return match["job_id"], match["lease"], pilot


def test_archives_go_through_a_bucket_whole(service: Service) -> None:
    sandbox, output = _archive(12 << 20), _archive(7 << 20)
    job_id, lease, pilot = _start(service, sandbox)
    assert pilot.get(f"/api/v1/leases/{lease}/sandbox").content == sandbox
    assert pilot.put(f"/api/v1/leases/{lease}/output", content=output).status_code == 200
    answer = service.user().get(f"/api/v1/jobs/{job_id}/output")
    assert (answer.content, answer.headers["Content-Length"]) == (output, str(len(output)))
    with service.parts.blobs.open(hashlib.sha256(output).hexdigest()) as archive:
        listing = archives.read(archive)
    assert [(each.name, each.head) for each in listing.members][:1] == [("run.sh", "echo hello\n")]
    assert listing.trouble is None


def test_refused_archives_leave_nothing_in_the_bucket(service: Service, own_server: S3Server) -> None:
    quota = "  cms: {Limits: {SandboxQuota: 10}}\n  dune:\n    Job"
    service.configure(CONFIG.replace("  dune:\n    Job", quota))
    assert service.user().post("/api/v1/sandboxes", content=_archive(100)).status_code == 429
    assert service.user().post("/api/v1/sandboxes", content=b"").status_code == 400
    unknown = service.pilot(QUEUE).put("/api/v1/leases/" + "a" * 32 + "/output", content=_archive(100))
    assert unknown.status_code == 404
    assert own_server.list_keys(own_server.place(PLACE)) == []


def test_while_the_bucket_is_away_answers_are_503_and_jobs_go_on(
    service: Service, own_server: S3Server
) -> None:
    _, lease, pilot = _start(service, _archive(100))
    own_server.kill()
    for refused in (
        service.user().post("/api/v1/sandboxes", content=_archive(100)),
        pilot.put(f"/api/v1/leases/{lease}/output", content=_archive(100)),
        pilot.get(f"/api/v1/leases/{lease}/sandbox"),
    ):
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_away")
        assert int(refused.headers["Retry-After"]) > 0
    assert pilot.post(f"/api/v1/leases/{lease}/heartbeat", json={}).status_code == 200
    assert service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "true"}]}).status_code == 201
    assert service.client().get("/readyz").status_code == 200
    own_server.start()
    assert pilot.put(f"/api/v1/leases/{lease}/output", content=_archive(100)).status_code == 200


def test_a_download_whose_bucket_goes_away_is_cut_and_is_no_bug(
    service: Service, own_server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    _, lease, pilot = _start(service, _archive(60 << 20))
    with pilot.stream("GET", f"/api/v1/leases/{lease}/sandbox") as answer:
        assert answer.status_code == 200
        own_server.kill()
        with pytest.raises(httpx.RemoteProtocolError):
            answer.read()
    assert not [each for each in caplog.records if each.exc_info]
    assert "cannot be stored or read now" in caplog.text
