import contextlib
import hashlib
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from taskqueue import blobs
from taskqueue.blob_stores import directory as directories
from taskqueue.db import database
from tests.support import wait
from tests.support.factories import archives, stored_rows
from tests.support.service import Service

QUEUE = "LCG.A.org/ce1/long"


def archive(content: bytes = b"echo hello\n") -> bytes:
    return archives.tar({"run.sh": content})


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def match(service: Service, pilot) -> dict:
    resource = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000}
    answer = pilot.post("/api/v1/matcher/requestJob", json=resource)
    assert answer.status_code == 200, answer.text
    return answer.json()["matches"][0]


def run_with_sandbox(service: Service) -> tuple[int, str, object, bytes]:
    data = archive()
    user = service.user()
    sandbox = user.post("/api/v1/sandboxes", content=data).json()["sandbox"]
    job = {"Executable": "run.sh", "InputSandbox": ["run.sh"]}
    answer = user.post("/api/v1/jobs", json={"jobs": [job], "sandbox": sandbox})
    assert answer.status_code == 201, answer.text
    pilot = service.pilot(QUEUE)
    found = match(service, pilot)
    assert found["sandbox"] == sandbox
    return found["job_id"], found["lease"], pilot, data


def test_equal_archives_get_one_name(service: Service):
    user = service.user()
    data = archive()
    first = user.post("/api/v1/sandboxes", content=data)
    assert first.json() == {"sandbox": digest(data)}
    assert user.post("/api/v1/sandboxes", content=data).json() == first.json()
    with database.reading(service.engine) as conn:
        assert blobs.read_quota_used(conn, "cms") == len(data)


def test_a_large_archive_streams_through(service: Service):
    piece = os.urandom(1 << 20)

    def chunks():
        for _ in range(30):
            yield piece

    answer = service.user().post("/api/v1/sandboxes", content=chunks())
    assert answer.json() == {"sandbox": digest(piece * 30)}


def test_an_archive_beyond_the_limit_is_413_and_leaves_nothing(service: Service, config_text: str, tmp_path):
    service.configure(config_text.replace("Defaults:", "Defaults:\n    Limits: {SandboxBytes: 1000}"))
    user = service.user()
    said = user.post("/api/v1/sandboxes", content=b"x" * 1001)
    assert said.status_code == 413
    assert said.json()["error"]["code"] == "body_too_large"
    unsaid = user.post("/api/v1/sandboxes", content=iter([b"x" * 600, b"x" * 600]))
    assert unsaid.status_code == 413
    assert not list((tmp_path / "blobs" / "incoming").iterdir())
    assert not list((tmp_path / "blobs").glob("??/*"))


def test_a_vo_beyond_its_quota_is_429(service: Service, config_text: str, tmp_path):
    service.configure(config_text.replace("Defaults:", "Defaults:\n    Limits: {SandboxQuota: 1500}"))
    user = service.user()
    assert user.post("/api/v1/sandboxes", content=b"x" * 1000).status_code == 200
    answer = user.post("/api/v1/sandboxes", content=b"y" * 1000)
    assert answer.status_code == 429
    assert "Retry-After" in answer.headers
    assert service.user(vo="dune").post("/api/v1/sandboxes", content=b"y" * 1000).status_code == 200
    assert not list((tmp_path / "blobs" / "incoming").iterdir())


def test_an_empty_archive_is_400(service: Service):
    assert service.user().post("/api/v1/sandboxes").status_code == 400


def test_an_operator_names_the_vo_and_a_user_cannot_name_another(service: Service):
    operator = service.operator()
    assert operator.post("/api/v1/sandboxes", content=b"x").status_code == 400
    assert operator.post("/api/v1/sandboxes?vo=CMS", content=b"x").status_code == 200
    assert service.user().post("/api/v1/sandboxes?vo=dune", content=b"x").status_code == 400


def test_a_vo_uses_only_the_sandboxes_that_it_brought(service: Service):
    data = archive()
    sandbox = service.user(vo="dune").post("/api/v1/sandboxes", content=data).json()["sandbox"]
    job = {"Executable": "run.sh", "InputSandbox": ["run.sh"]}
    answer = service.user().post("/api/v1/jobs", json={"jobs": [job], "sandbox": sandbox})
    assert answer.status_code == 400


def test_what_is_no_sandbox_is_400(service: Service):
    user = service.user()
    for sandbox in ("x", "sha256:1", "sha256:" + "z" * 64, "../../etc/passwd", ""):
        body = {"jobs": [{"Executable": "x"}], "sandbox": sandbox}
        assert user.post("/api/v1/jobs", json=body).status_code == 400, sandbox


def test_a_pilot_fetches_the_sandbox_and_delivers_the_output(service: Service):
    job_id, lease, pilot, data = run_with_sandbox(service)
    fetched = pilot.get(f"/api/v1/leases/{lease}/sandbox")
    assert fetched.content == data
    assert fetched.headers["Content-Length"] == str(len(data))
    pilot.post(f"/api/v1/leases/{lease}/start", json={})
    output = archive(b"the output")
    user = service.user()
    assert user.get(f"/api/v1/jobs/{job_id}/output").status_code == 404
    answer = pilot.put(f"/api/v1/leases/{lease}/output", content=output)
    assert answer.json() == {"output": digest(output), "size": len(output)}
    assert user.get(f"/api/v1/jobs/{job_id}/output").content == output
    assert service.user("bob").get(f"/api/v1/jobs/{job_id}/output").status_code == 404


def test_other_pilots_get_nothing_of_a_lease(service: Service):
    _, lease, _, _ = run_with_sandbox(service)
    other = service.pilot(QUEUE)
    assert other.get(f"/api/v1/leases/{lease}/sandbox").status_code == 404
    assert other.put(f"/api/v1/leases/{lease}/output", content=b"x").status_code == 404
    assert other.post(f"/api/v1/leases/{lease}/start").status_code == 404


def test_the_output_of_a_closed_attempt_is_409_and_not_stored(service: Service, tmp_path):
    job_id, lease, pilot, _ = run_with_sandbox(service)
    pilot.post(f"/api/v1/leases/{lease}/release", json={"reason": "shutting down"})
    answer = pilot.put(f"/api/v1/leases/{lease}/output", content=b"late")
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "stale_lease"
    assert pilot.get(f"/api/v1/leases/{lease}/sandbox").status_code == 409
    assert service.user().get(f"/api/v1/jobs/{job_id}/output").status_code == 404
    assert not list((tmp_path / "blobs" / "incoming").iterdir())


def test_a_sender_that_breaks_off_leaves_nothing(service: Service, tmp_path):
    def broken():
        yield b"x" * 100_000
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        service.user().post("/api/v1/sandboxes", content=broken())
    assert service.user().post("/api/v1/sandboxes", content=b"fine").status_code == 200
    # The service notices the closed connection by itself: that may be after the answer to another request.
    wait.until(lambda: not list((tmp_path / "blobs" / "incoming").iterdir()))


def test_archives_that_cannot_be_stored_are_refused_until_they_can(service: Service, tmp_path: Path) -> None:
    _, lease, pilot, _ = run_with_sandbox(service)
    directory = tmp_path / "blobs"
    directory.rename(tmp_path / "aside")
    directory.write_text("as a disk that is away")
    for refused in (
        service.user().post("/api/v1/sandboxes", content=archive(b"new")),
        pilot.put(f"/api/v1/leases/{lease}/output", content=archive(b"out")),
        pilot.get(f"/api/v1/leases/{lease}/sandbox"),
    ):
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_away")
    directory.unlink()
    (tmp_path / "aside").rename(directory)
    assert pilot.put(f"/api/v1/leases/{lease}/output", content=archive(b"out")).status_code == 200


def test_an_output_is_stored_where_new_sandboxes_and_jobs_are_refused_for_space(
    service: Service, tmp_path, monkeypatch
):
    _, lease, pilot, _ = run_with_sandbox(service)
    system = os.statvfs(tmp_path)
    monkeypatch.setattr(directories, "_FREE_SHARE", 1.5)
    monkeypatch.setattr(directories, "_FREE_BYTES", system.f_bavail * system.f_frsize * 1.5)
    user = service.user()
    for refused in (
        user.post("/api/v1/sandboxes", content=archive(b"new")),
        user.post("/api/v1/jobs", json={"jobs": [{"Executable": "true"}]}),
    ):
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_full")
    assert pilot.put(f"/api/v1/leases/{lease}/output", content=archive(b"done")).status_code == 200


def test_an_output_that_replaces_another_drops_it(service: Service, tmp_path):
    job_id, lease, pilot, _ = run_with_sandbox(service)
    pilot.post(f"/api/v1/leases/{lease}/start", json={})
    for number in (1, 2, 2, 3):
        answer = pilot.put(f"/api/v1/leases/{lease}/output", content=archive(b"x" * number))
        assert answer.status_code == 200
    files = {path.name for path in (tmp_path / "blobs").glob("??/*")}
    assert files == {digest(archive()).partition(":")[2], digest(archive(b"xxx")).partition(":")[2]}
    assert service.user().get(f"/api/v1/jobs/{job_id}/output").content == archive(b"xxx")


def test_an_output_that_another_attempt_has_too_stays_when_it_is_replaced(service: Service):
    (one, lease, pilot, _), (other, second, its, _) = run_with_sandbox(service), run_with_sandbox(service)
    for each, sender in ((lease, pilot), (second, its)):
        sender.post(f"/api/v1/leases/{each}/start", json={})
        sender.put(f"/api/v1/leases/{each}/output", content=archive(b"same"))
    pilot.put(f"/api/v1/leases/{lease}/output", content=archive(b"new"))
    assert service.user().get(f"/api/v1/jobs/{other}/output").content == archive(b"same")
    assert service.user().get(f"/api/v1/jobs/{one}/output").content == archive(b"new")


def _end_without_its_output(service: Service, **named: object):
    """The answer to an end after the commit of the output was lost; with job, lease and pilot."""
    job_id, lease, pilot, _ = run_with_sandbox(service)
    pilot.post(f"/api/v1/leases/{lease}/start", json={})
    assert pilot.put(f"/api/v1/leases/{lease}/output", content=archive()).is_success
    with database.writing(service.engine) as conn:
        stored_rows.lose_output(conn, lease)
    answer = pilot.post(f"/api/v1/leases/{lease}/finish", json={"status": "Done", **named})
    return answer, job_id, lease, pilot


def test_an_end_waits_for_the_output_that_it_names(service: Service):
    named = {"output": digest(archive())}
    answer, job_id, lease, pilot = _end_without_its_output(service, **named)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "output_missing")
    assert service.user().get(f"/api/v1/jobs/{job_id}").json()["status"] == "Running"
    assert pilot.post(f"/api/v1/leases/{lease}/heartbeat").is_success

    assert pilot.put(f"/api/v1/leases/{lease}/output", content=archive()).is_success
    for _ in range(2):  # a repeated report gets the first answer
        assert pilot.post(f"/api/v1/leases/{lease}/finish", json={"status": "Done", **named}).is_success
    assert service.user().get(f"/api/v1/jobs/{job_id}").json()["status"] == "Done"
    assert service.user().get(f"/api/v1/jobs/{job_id}/output").content == archive()


def test_an_end_that_names_no_output_waits_for_none(service: Service):
    answer, job_id, _, _ = _end_without_its_output(service)
    assert answer.is_success
    assert service.user().get(f"/api/v1/jobs/{job_id}").json()["status"] == "Done"


@pytest.mark.parametrize("name", ["", "x", "0" * 64, "sha256:0", "sha256:" + "G" * 64])
def test_a_name_that_no_output_can_have_is_refused(service: Service, name: str):
    answer, job_id, _, _ = _end_without_its_output(service, output=name)
    assert answer.status_code == 400
    assert answer.json()["error"]["details"]["problems"][0]["path"] == "output"
    assert service.user().get(f"/api/v1/jobs/{job_id}").json()["status"] == "Running"


def _begin_upload(service: Service, token: str, method: str, path: str) -> socket.socket:
    """A sender that stops in the middle of its archive."""
    address = urlsplit(service.url)
    sender = socket.create_connection((address.hostname, address.port))
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\n"
    sender.sendall(f"{head}Content-Length: 1000\r\n\r\nx".encode())
    return sender


def test_slow_sandboxes_of_one_vo_leave_places_to_others(service: Service, tmp_path: Path) -> None:
    staged = tmp_path / "blobs" / "incoming"
    with contextlib.ExitStack() as at_end:
        for number in range(17):
            token = service.user(f"user{number}").headers["Authorization"]
            for _ in range(4):
                sender = _begin_upload(service, token, "POST", "/api/v1/sandboxes")
                at_end.enter_context(contextlib.closing(sender))
        wait.until(lambda: len(list(staged.iterdir())) == 32)
        other = service.user("dan", vo="dune")
        assert other.post("/api/v1/sandboxes", content=archive()).status_code == 200
        assert len(list(staged.iterdir())) == 32


def _take_job(service: Service, site: str, ce: str, queue: str) -> tuple[httpx.Client, str]:
    """A pilot with a job there: its client, and the lease."""
    service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).raise_for_status()
    pilot = service.pilot(f"{site}/{ce}/{queue}")
    resource = {"Site": site, "GridCE": ce, "Queue": queue, "CPUTime": 100_000}
    answer = pilot.post("/api/v1/matcher/requestJob", json=resource)
    return pilot, answer.json()["matches"][0]["lease"]


def test_slow_outputs_of_one_site_leave_places_to_others(service: Service, tmp_path: Path) -> None:
    staged = tmp_path / "blobs" / "incoming"
    with contextlib.ExitStack() as at_end:
        for _ in range(16):
            pilot, lease = _take_job(service, *QUEUE.split("/"))
            for _ in range(4):
                path = f"/api/v1/leases/{lease}/output"
                sender = _begin_upload(service, pilot.headers["Authorization"], "PUT", path)
                at_end.enter_context(contextlib.closing(sender))
        wait.until(lambda: len(list(staged.iterdir())) == 16)
        pilot, lease = _take_job(service, "LCG.B.org", "ce2", "all")
        assert pilot.put(f"/api/v1/leases/{lease}/output", content=archive()).status_code == 200
        assert len(list(staged.iterdir())) == 16
