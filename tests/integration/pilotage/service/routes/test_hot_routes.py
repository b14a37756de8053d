"""The most frequent requests of pilots are answered as by the framework, in any form of HTTP."""

import asyncio
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Response

from matcher.request.match_request import MatchRequest, MatchResult
from pilotage.service.app import create_app
from pilotage.service.auth import access
from pilotage.service.hot_routes import JobRequestCache
from pilotage.service.models.matching import JobRequest
from pilotage.service.routes import leases, matcher
from pilotage.service.routes.matcher import RequestedJobs
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, ClientOf, PartsOf, parse
from requirements.errors import PilotageError
from tests.support import service as running_service
from tests.support import wait
from tests.support.service import Service

QUEUE = "LCG.A.org/ce1/long"
NODE = {
    "site": "LCG.A.org",
    "GridCE": "ce1",
    "Queue": "long",
    "system": {"name": "Linux"},
    "wall_time": 3600,
    "cpu_power_db12": 20,
    "cpu": {
        "num_nodes": 1,
        "num_cores": 1,
        "ram_mb": 2000,
        "architecture": {"name": "x86_64", "features": ["avx2"]},
    },
    "gpu": {"count": 0},
    "io": {"scratch_mb": 5000},
}
PLAIN = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100}

BODIES = [
    *(
        json.dumps({**PLAIN, **more}).encode()
        for more in (
            {},
            {"request_id": "one"},
            {"request_id": "two"},
            {"request_id": "two", "said_before": False},
            {"request_id": ""},
            {"request_id": "x" * 256},
            {"request_id": 5},
            {"request_id": None},
            {"request_id": "ä"},
            {"count": 0},
            {"count": 3},
            {"count": "3"},
            {"count": True},
            {"CPUTime": "x"},
            {"CPUTime": None},
            {"Unknown": {"request_id": "inner"}},
            {"Unknown": {"request_id": "inner"}, "request_id": "outer"},
            {"Queue": "short"},
            {"Queue": "none"},
            {"Site": ["LCG.A.org", "LCG.B.org"]},
            {"SubmitPool": "x"},
            {"said_before": "perhaps"},
        )
    ),
    *(
        json.dumps({**NODE, **more}).encode()
        for more in (
            {},
            {"wall_time": 60},
            {"wall_time": 60.5},
            {"wall_time": 60.0, "request_id": "one"},
            {"wall_time": 0, "request_id": "two"},
            {"wall_time": 10**12},
            {"wall_time": 10**13},
            {"wall_time": -1},
            {"wall_time": 1e-7},
            {"wall_time": "60"},
            {"wall_time": True},
            {"wall_time": None},
            {"CPUTime": 5},
            {"CPUTime": 5, "wall_time": 60},
            {"io": {"scratch_mb": 5000, "wall_time": 60}},
            {"cpu": {"wall_time": 5}, "wall_time": 60},
            {"cpu": 5},
        )
    ),
    b'{"cpu": {}, "wall_time": 5, "wall_time": 5}',
    b'{"cpu": {}, "wall_time": 5, "wall\\u005ftime": 5}',
    b'{"cpu": {}, "wall_time": 05}',
    b'{"cpu": {}, "wall_time": 5.}',
    b'{"cpu": {}, "wall_time": 5e1}',
    b'{"cpu": {}, "wall_time": 5 5}',
    b"",
    b"{",
    b"null",
    b"[]",
    b'{"CPUTime": 1, "CPUTime": 1}',
    b'{"CPUTime": 1, "request_id": "a", "request_id": "b"}',
    b'{"CPUTime": 1, "request_id": "a", "request\\u005fid": "b"}',
    b'{"CPUTime": NaN}',
    b'{"CPUTime": 1e999}',
    b'{"CPUTime": 99999999999999999999}',
    b'{"CPUTime": 1, "x": "\\u0000"}',
    b'{"CPUTime": 1, "x": "\xff"}',
    b'{"CPUTime": 1, "x": ' + b"[" * 70 + b"]" * 70 + b"}",
]


def _read(known: JobRequestCache, content: bytes) -> RequestedJobs | None:
    """As a request does: it is looked up, or read and stored."""
    if (found := known.find(content)) is None:
        try:
            found = RequestedJobs.from_body(JobRequest.model_validate(parse(content)))
        except (PilotageError, ValueError):
            return None
        known.store(content, found)
    return found


def test_bodies_that_were_read_before_are_read_as_new_ones() -> None:
    known = JobRequestCache()
    for content in BODIES * 3:
        assert _read(known, content) == _read(JobRequestCache(), content), content


def test_only_the_request_id_of_the_body_itself_may_differ() -> None:
    known = JobRequestCache()
    for before in (b'{"request\\u005fid": "a", "x": {', b'{"request_id": "a", "x": {'):
        inner = before + b'"request_id": "%b"}}'
        assert [_read(known, inner % name).request_id for name in (b"a", b"b")] == ["a", "a"]  # type: ignore[union-attr]
    outer = b'{"CPUTime": 1, "request_id": "%b"}'
    found = [_read(known, outer % name) for name in (b"a", b"b")]
    assert [each.request_id for each in found if each] == ["a", "b"]
    assert known.find(outer % b"c") is not None, "its rest is known"


def test_both_values_of_a_node_may_differ() -> None:
    known = JobRequestCache()
    for form in (
        b'{"cpu": {}, "request_id": "%b", "wall_time": %b}',
        b'{"wall_time": %b, "cpu": {}, "request_id" : "%b"}',
        b'{"wall_time" : %b , "cpu": {}}',
    ):
        values = [(b"a", b"5"), (b"b", b"60.5"), (b"c", b"0")]
        for request_id, time in values:
            said = (request_id, time) if form.index(b"wall") > form.index(b"cpu") else (time, request_id)
            content = form % said[: form.count(b"%b")]
            if (request_id, time) != values[0]:
                assert known.find(content) is not None, "its rest is known"
            assert _read(known, content) == _read(JobRequestCache(), content)
            found = _read(known, content)
            assert found is not None
            assert found.time_left == json.loads(time)
            assert json.loads(found.stated) == {"cpu": {}, "wall_time": 0}


JSON = b"Content-Type: application/json\r\n"


def write(path: str, body: bytes, headers: bytes, token: str | None, *, method: str = "POST") -> bytes:
    """A request as a client writes it."""
    if token is not None:
        headers += f"Authorization: Bearer {token}\r\n".encode()
    head = f"{method} /api/v1{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode()
    return head + headers + b"\r\n" + body


@contextmanager
def connected(service: Service) -> Iterator[socket.socket]:
    url = httpx.URL(service.url)
    with closing(socket.create_connection((url.host, url.port), timeout=300)) as client:
        yield client


def read(client: socket.socket) -> bytes:
    """One answer, without its date; empty if the connection was closed."""
    seen = b""
    while b"\r\n\r\n" not in seen:
        if not (piece := client.recv(1)):
            return seen
        seen += piece
    length = re.search(rb"content-length: (\d+)", seen)
    left = int(length[1]) if length else 0
    while left and (piece := client.recv(left)):
        seen, left = seen + piece, left - len(piece)
    return re.sub(rb"date: [^\r]*\r\n", b"", seen)


REPORTS = [
    ("start", b""),
    ("start", b"{}"),
    ("start", b"null"),
    ("start", b"[]"),
    ("heartbeat", b""),
    ("heartbeat", b'{"progress": "half"}'),
    ("heartbeat", b'{"progress": 5}'),
    ("heartbeat", b'{"phases": [{"name": "x"}]}'),
    ("note", b'{"parameters": {"a": "b"}}'),
    ("note", b""),
    ("finish", b'{"status": "Done"}'),
    ("finish", b'{"status": "Gone"}'),
    ("finish", b""),
    ("release", b""),
    ("release", b'{"reason": "x"}'),
    ("release", b'{"reason": null}'),
    ("else", b"{}"),
]


@access.allow(*access.allowed_roles(matcher.request_job), most_bytes=SMALL)
async def twin_of_request_job(
    parts: PartsOf,
    caller: CallerOf,
    client: ClientOf,
    body: JobRequest,
    request_timeout: matcher.RequestTimeout = None,
) -> Response:
    found = await matcher.request_job(parts, caller, client, body, request_timeout)
    return Response(found, media_type="application/json")


def add_twins(app: FastAPI) -> None:
    """The same routes, answered by the framework."""
    twins = APIRouter(prefix="/api/v1/twins", route_class=ApiRoute, strict_content_type=False)
    twins.add_api_route("/matcher/requestJob", twin_of_request_job, methods=["POST"])
    for route in leases.router.routes:
        assert isinstance(route, ApiRoute)
        twins.add_api_route(route.path, route.endpoint, methods=list(route.methods or ()))
    app.include_router(twins)


def test_every_request_is_answered_as_by_the_framework(service: Service) -> None:
    pilot, user = service.token("pilot", vo="cms", queue=QUEUE), service.token("user", vo="cms", user="ada")
    long = [b'{"CPUTime": 1, "x": "' + b"x" * size + b'"}' for size in (70_000, 300_000)]
    paths = [("/matcher/requestJob", body) for body in (*BODIES, *long, b'"text"')]
    paths += [("/matcher/requestJob?x=%00", BODIES[0]), ("/matcher/requestJob?x", BODIES[0])]
    leases_ = ("0" * 32, "%41", "", "x" * 65, "a%00b", "a%2Fb")
    paths += [(f"/leases/{lease}/{report}", body) for lease in leases_ for report, body in REPORTS]
    ways = [
        (JSON, pilot),
        (b"", pilot),
        (JSON, user),
        (JSON, None),
        (JSON, "x.y.z"),
        (JSON, pilot[:-9] + "AAAAAAAAA"),
        (b"Content-Type: text/plain\r\n", pilot),
        (b"Content-Type: application/x+JSON\r\n", pilot),
        (JSON + b"Request-Timeout: none\r\n", pilot),
        (JSON + b"Accept: text/html\r\n", user),
    ]
    app = create_app(service.parts)
    add_twins(app)
    with running_service.served(app) as url:
        for path, body in paths:
            for headers, token in ways:
                answers = []
                for prefix in ("", "/twins"):
                    with connected(Service(service.parts, url)) as client:
                        client.sendall(write(prefix + path, body, headers, token))
                        answers.append(read(client))
                assert answers[0] == answers[1], (path, body, headers)
                assert answers[0] or len(body) > 100_000  # refused, and lost as the rest was not read


def test_every_request_is_counted_by_its_route(service: Service) -> None:
    token = service.token("pilot", vo="cms", queue=QUEUE)
    with connected(service) as client:
        for path, content in (("/matcher/requestJob", BODY), (f"/leases/{'0' * 32}/start", b"")):
            for sender in (token, None):
                client.sendall(write(path, content, JSON, sender))
                read(client)
    text = service.operator().get("/metrics").text
    found = re.findall(r'requests_total{method="POST",route="([^"]*)",status="(\d+)"} (\d+)', text)
    assert {(route, status): number for route, status, number in found} == {
        ("/matcher/requestJob", "200"): "1",
        ("/matcher/requestJob", "401"): "1",
        ("/leases/{lease}/start", "404"): "1",
        ("/leases/{lease}/start", "401"): "1",
    }


HEAD = b"POST /api/v1/matcher/requestJob HTTP/1.1\r\nHost: x\r\n"
BODY = json.dumps(PLAIN).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
ANSWERED = b"HTTP/1.1 200 OK"
REFUSED = b"HTTP/1.1 400 Bad Request"

#: Requests in unusual forms: with the token in place of `@`, and the status lines of all answers.
HOSTILE: dict[str, tuple[bytes, list[bytes]]] = {
    "two lengths": (HEAD + LENGTH + b"Content-Length: 1\r\n@\r\n" + BODY, [REFUSED]),
    "the same length twice": (HEAD + LENGTH + LENGTH + b"@\r\n" + BODY, [REFUSED]),
    "lengths in one header": (HEAD + b"Content-Length: 5, 5\r\n@\r\n" + BODY, [REFUSED]),
    "a length with a sign": (HEAD + b"Content-Length: +%d\r\n@\r\n" % len(BODY) + BODY, [REFUSED]),
    "a negative length": (HEAD + b"Content-Length: -1\r\n@\r\n" + BODY, [REFUSED]),
    "a hexadecimal length": (HEAD + b"Content-Length: 0x10\r\n@\r\n" + BODY, [REFUSED]),
    "an endless length": (HEAD + b"Content-Length: " + b"9" * 40 + b"\r\n@\r\n" + BODY, [REFUSED]),
    "length and chunks": (
        HEAD + LENGTH + b"Transfer-Encoding: chunked\r\n@\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
        [REFUSED],
    ),
    "an unknown encoding": (
        HEAD + b"Transfer-Encoding: x, chunked\r\n" + LENGTH + b"@\r\n" + BODY,
        [REFUSED],
    ),
    "a space before the colon": (HEAD + b"Content-Length : 2\r\n@\r\n{}", [REFUSED]),
    "a folded header": (HEAD + b"X: a\r\n b\r\n" + LENGTH + b"@\r\n" + BODY, [REFUSED]),
    "NUL in a header": (HEAD + b"X: a\0b\r\n" + LENGTH + b"@\r\n" + BODY, [REFUSED]),
    "chunks": (
        HEAD + b"Transfer-Encoding: chunked\r\n@\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
        [ANSWERED],
    ),
    "HTTP/1.0": (HEAD.replace(b"1.1", b"1.0") + LENGTH + b"@\r\n" + BODY, [ANSWERED]),
    "close": (HEAD + b"Connection: close\r\n" + LENGTH + b"@\r\n" + BODY, [ANSWERED]),
    "another protocol": (
        HEAD + b"Connection: upgrade\r\nUpgrade: websocket\r\n" + LENGTH + b"@\r\n" + BODY,
        [REFUSED],
    ),
    "an absolute address": (
        HEAD.replace(b"/api", b"http://y/api") + LENGTH + b"@\r\n" + BODY,
        [ANSWERED],
    ),
    "an escaped address": (HEAD.replace(b"Job", b"%4Aob") + LENGTH + b"@\r\n" + BODY, [ANSWERED]),
    "three at once": ((HEAD + LENGTH + b"@\r\n" + BODY) * 3, [ANSWERED] * 3),
    "a request within a body": (
        HEAD + b"Content-Length: 0\r\n@\r\n" + HEAD + LENGTH + b"@\r\n" + BODY,
        [b"HTTP/1.1 400 Bad Request", ANSWERED],
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_requests_in_any_form_of_http_are_answered_or_refused(service: Service, name: str) -> None:
    token = service.token("pilot", vo="cms", queue=QUEUE)
    text, expected = HOSTILE[name]
    text = text.replace(b"@", f"Authorization: Bearer {token}\r\n".encode())
    for size in (len(text), 7):  # whole, and in pieces
        with connected(service) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for start in range(0, len(text), size):
                try:
                    client.sendall(text[start : start + size])
                except (BrokenPipeError, ConnectionResetError):  # refused already
                    break
            for status in expected:
                try:
                    seen = read(client).partition(b"\r\n")[0]
                except ConnectionResetError:
                    seen = b""
                # A refusal closes the connection with what was not read of it: it may be lost.
                assert seen == status or (status == REFUSED and not seen), (name, size)
    assert service.client().get("/healthz").is_success


def test_a_client_that_goes_in_the_middle_of_a_body_disturbs_nobody(service: Service) -> None:
    token = service.token("pilot", vo="cms", queue=QUEUE)
    with connected(service) as client:
        client.sendall(write("/matcher/requestJob", BODY, JSON, token)[:-3])
    with connected(service) as client:
        for _ in range(3):
            client.sendall(write("/matcher/requestJob", BODY, JSON, token))
            assert read(client).startswith(ANSWERED)


def test_a_body_is_not_awaited_without_a_valid_token(service: Service) -> None:
    for token in (None, "x.y.z"):
        with connected(service) as client:
            client.sendall(write("/matcher/requestJob", BODY, JSON, token)[:-3])
            assert read(client).startswith(b"HTTP/1.1 401 ")


class Failing:
    """Claims that fail."""

    async def claim(self, request: MatchRequest, is_gone: Callable[[], bool]) -> None:
        del request, is_gone
        raise ZeroDivisionError

    async def close(self) -> None: ...


def test_a_claim_that_fails_ends_the_turn_of_its_pilot(service: Service) -> None:
    parts = service.parts
    token = service.token("pilot", vo="cms", queue=QUEUE)
    request = write("/matcher/requestJob", json.dumps({**PLAIN, "request_id": "a"}).encode(), JSON, token)
    with connected(service) as client:
        client.sendall(request)  # the pilot's queue is known from then on
        assert read(client).startswith(ANSWERED)
        working = parts.claims
        object.__setattr__(parts, "claims", Failing())
        client.sendall(request)
        assert read(client).startswith(b"HTTP/1.1 500 ")
        object.__setattr__(parts, "claims", working)
        client.sendall(request)
        assert read(client).startswith(ANSWERED)
    assert not parts.places._turns


class Claims:
    """Claims that the test answers."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[MatchResult | None]] = []
        self.given_back: list[MatchResult] = []

    async def claim(self, request: MatchRequest, is_gone: Callable[[], bool]) -> MatchResult | None:
        del request
        self.is_gone = is_gone
        self.waiting.append(asyncio.get_running_loop().create_future())
        return await self.waiting[-1]

    def give_back(self, request: MatchRequest, answer: MatchResult) -> None:
        del request
        self.given_back.append(answer)

    async def close(self) -> None: ...


def test_a_job_that_comes_after_its_client_has_gone_is_given_back(service: Service) -> None:
    claims, parts = Claims(), service.parts
    object.__setattr__(parts, "claims", claims)
    token, answer = service.token("gateway", vo="cms", site="LCG.A.org"), MatchResult()
    app = create_app(parts)
    with running_service.served(app) as url:
        with connected(Service(parts, url)) as client:
            client.sendall(write("/matcher/requestJob", BODY, JSON, token))
            wait.until(lambda: claims.waiting)
        [claim] = claims.waiting
        wait.until(claims.is_gone)
        claim.get_loop().call_soon_threadsafe(claim.set_result, answer)
        wait.until(lambda: claims.given_back)
    assert claims.given_back == [answer]


def test_a_claim_that_the_event_loop_could_not_make_goes_to_the_claim_thread(service: Service) -> None:
    claims, parts = Claims(), service.parts
    object.__setattr__(parts, "claims", claims)
    token = service.token("gateway", vo="cms", site="LCG.A.org")
    with running_service.served(create_app(parts)) as url, connected(Service(parts, url)) as client:
        client.sendall(write("/matcher/requestJob", BODY, JSON, token))
        wait.until(lambda: claims.waiting)
        [claim] = claims.waiting
        claim.get_loop().call_soon_threadsafe(claim.set_result, None)
        assert read(client).startswith(ANSWERED)
    assert claims.waiting == [claim]
