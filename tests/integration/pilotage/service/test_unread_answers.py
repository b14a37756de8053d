"""Answers that nobody reads: their bytes count for the caller and its VO until they are sent."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from pilotage.service.app import create_app
from pilotage.service.auth import rate_limits
from tests.support import service as running_service
from tests.support.factories import archives
from tests.support.service import Service
from tests.support.wait import until

QUEUE = "LCG.A.org/ce1/long"
_LONG = 900_000
_BODY = b'{"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100000}'


@pytest.fixture
def small(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service where one caller may leave some hundred kilobytes unread, and its VO twice as many."""
    few = replace(rate_limits.ANSWERS, of_one=300_000, of_vo=2_000_000, of_all=4_000_000)
    monkeypatch.setattr(rate_limits, "ANSWERS", few)
    parts = replace(service.parts)
    with running_service.served(create_app(parts)) as url:
        found = Service(parts, url)
        yield found
        found.close_clients()


def held(service: Service, vo: str = "cms") -> int:
    return service.parts.answers.under_way["VO", vo]


def _connect(service: Service) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
    address = urlsplit(service.url)
    client.connect((address.hostname, address.port))
    return client


def _write(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def _submit(service: Service) -> int:
    return service.submit({"Executable": "x", "Arguments": "x" * _LONG})[0]


def _prepare(service: Service, what: str) -> bytes:
    """A request with a long answer."""
    user = service.token("user", vo="cms", user="ada")
    host, bearer = urlsplit(service.url), f"Authorization: Bearer {user}"
    job_id = _submit(service)
    if what == "route":
        return _write("GET", f"/api/v1/jobs/{job_id}", "Host: x", bearer)
    if what == "page":
        cookie = f"Cookie: pilotage-{host.port}={user}"
        return _write("GET", f"/jobs/{job_id}", f"Host: {host.netloc}", cookie)
    pilot = service.pilot(QUEUE)
    lease = pilot.post("/api/v1/matcher/requestJob", content=_BODY).json()["matches"][0]["lease"]
    output = archives.tar({"out": bytes(_LONG)})
    pilot.put(f"/api/v1/leases/{lease}/output", content=output).raise_for_status()
    return _write("GET", f"/api/v1/jobs/{job_id}/output", "Host: x", bearer)


@pytest.mark.parametrize("what", ["route", "page", "output"])
def test_what_nobody_reads_counts_until_its_client_has_gone(small: Service, what: str) -> None:
    request, ada, bob = _prepare(small, what), small.user(), small.user("bob")
    with ExitStack() as at_end:
        while (answer := ada.get("/api/v1/jobs")).status_code == 200:
            client = at_end.enter_context(closing(_connect(small)))
            before = held(small)
            client.sendall(request)
            until(lambda before=before: held(small) > before)  # type: ignore[misc]
        assert answer.status_code == 429
        assert answer.headers["Retry-After"] == "1"
        assert answer.json()["error"]["message"] == "too many unread answers, try again in 1 s"
        assert held(small) <= 300_000 + 2 * _LONG
        assert bob.get("/api/v1/jobs").status_code == 200, "another one of the VO has room"
        assert small.operator().get("/api/v1/jobs").status_code == 200
    until(lambda: not held(small))
    assert ada.get("/api/v1/jobs").status_code == 200


def test_jobs_of_a_pilot_that_does_not_read_them_count_for_it(small: Service) -> None:
    _submit(small)
    pilot = small.pilot(QUEUE)
    bearer = f"Authorization: {pilot.headers['Authorization']}"
    with closing(_connect(small)) as client:
        client.sendall(_write("POST", "/api/v1/matcher/requestJob", "Host: x", bearer, body=_BODY))
        until(lambda: held(small) >= _LONG)
        refused = pilot.post("/api/v1/matcher/requestJob", content=_BODY)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert small.pilot(QUEUE).post("/api/v1/matcher/requestJob", content=_BODY).status_code == 200
    until(lambda: not held(small))
    assert pilot.post("/api/v1/matcher/requestJob", content=_BODY).status_code == 200


def test_the_unread_answers_of_one_vo_are_bounded_and_leave_room_to_others(small: Service) -> None:
    job_id = _submit(small)
    with ExitStack() as at_end:
        for number in range(3):
            admin = small.token("vo_admin", vo="cms", user=f"admin{number}")
            client = at_end.enter_context(closing(_connect(small)))
            client.sendall(
                _write("GET", f"/api/v1/jobs/{job_id}", "Host: x", f"Authorization: Bearer {admin}")
            )
            until(lambda number=number: held(small) > (number + 1) * _LONG)  # type: ignore[misc]
        assert small.user("bob").get("/api/v1/jobs").status_code == 429
        pilot = small.pilot(QUEUE)
        assert pilot.post("/api/v1/matcher/requestJob", content=_BODY).status_code == 200
        beat = pilot.post("/api/v1/leases/none/heartbeat", json={})
        assert beat.status_code != 429, "jobs do not end because others do not read"
        assert small.user("dan", vo="dune").get("/api/v1/jobs").status_code == 200


def test_an_answer_that_was_read_holds_nothing(small: Service) -> None:
    job_id = _submit(small)
    ada = small.user()
    for _ in range(5):
        assert len(ada.get(f"/api/v1/jobs/{job_id}").content) > _LONG
    until(lambda: not small.parts.answers.under_way)


def test_a_quiet_stream_of_events_holds_nothing(small: Service) -> None:
    with small.user().stream("GET", "/api/v1/jobs/events") as answer:
        assert next(answer.iter_lines()) == "retry: 1000"
        until(lambda: not small.parts.answers.under_way)
