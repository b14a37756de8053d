"""The fast path answers as the framework's routes do, and leaves to the server what is not plain HTTP."""

import asyncio
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import httpx
import pytest

from matcher.request.match_request import MatchRequest, MatchResult
from pilotage.service.app import create_app
from pilotage.service.fast_path import FastPath, JobRequestReader, NotPlain, PlainExchange, find_route
from requirements.errors import PilotageError
from tests.support import service as running_service
from tests.support import wait
from tests.support.service import Service

QUEUE = "LCG.A.org/ce1/long"
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


@pytest.mark.parametrize("role", ["pilot", "operator", "user", None])
def test_both_forms_answer_alike(service: Service, role: str | None) -> None:
    """A query that is not read sends a request to the framework; each body comes twice, known and unknown."""
    clients = {
        "pilot": lambda: service.pilot(QUEUE),
        "operator": service.operator,
        "user": service.user,
        None: service.client,
    }
    client = clients[role]()
    for body in BODIES * 2:
        for headers in ({}, {"Request-Timeout": "0"}, {"Content-Type": "text/plain"}):
            sent = {"Content-Type": "application/json", **headers}
            fast, framework = (
                client.post(f"/api/v1/matcher/requestJob{query}", content=body, headers=sent)
                for query in ("", "?slowly")
            )
            assert (fast.status_code, fast.json()) == (framework.status_code, framework.json()), (
                body,
                headers,
            )
            assert {*fast.headers} == {*framework.headers}


def test_a_job_is_described_alike_in_both_forms(service: Service) -> None:
    job = {"Executable": "x", "Arguments": "ä \\" + '"'}
    service.user().post("/api/v1/jobs", json={"jobs": [job, job]}).raise_for_status()
    fast, framework = (
        service.pilot(QUEUE)
        .post(f"/api/v1/matcher/requestJob{query}", json={**PLAIN, "CPUTime": 10**7})
        .json()["matches"][0]
        for query in ("", "?slowly")
    )
    assert fast.keys() == framework.keys()
    same = {"description": None, "processors": 0, "epoch": 0}
    assert fast["description"] | {"JobID": 0} == framework["description"] | {"JobID": 0}
    assert {name: fast.get(name) for name in same if name != "description"} == {
        name: framework.get(name) for name in same if name != "description"
    }


def _read(reader: JobRequestReader, body: bytes) -> object:
    try:
        return reader.read(body)
    except (PilotageError, NotPlain) as error:
        return type(error)


def test_bodies_that_were_read_before_are_read_as_new_ones() -> None:
    reader = JobRequestReader()
    for body in BODIES * 3:
        assert _read(reader, body) == _read(JobRequestReader(), body), body


def test_only_the_request_id_of_the_body_itself_may_differ() -> None:
    reader = JobRequestReader()
    inner = b'{"CPUTime": 1, "request\\u005fid": "a", "x": {"request_id": "%b"}}'
    assert [_read(reader, inner % name)[1] for name in (b"a", b"b")] == ["a", "a"]  # type: ignore[index]
    outer = b'{"CPUTime": 1, "request_id": "%b"}'
    assert [_read(reader, outer % name)[1] for name in (b"a", b"b")] == ["a", "b"]  # type: ignore[index]


#: A header that comes twice makes a request one for the framework.
TWICE = b"X-Twice: 1\r\nX-Twice: 2\r\n"
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


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each request that the connections took for plain: whether the fast path answered it."""
    begun, begin = list[bool](), FastPath.begin

    def watch(path: FastPath, exchange: object) -> bool:
        begun.append(begin(path, exchange))  # type: ignore[arg-type]
        return begun[-1]

    monkeypatch.setattr(FastPath, "begin", watch)
    return begun


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


def test_the_two_forms_answer_with_the_same_bytes(service: Service, handed: list[bool]) -> None:
    pilot, user = service.token("pilot", vo="cms", queue=QUEUE), service.token("user", vo="cms", user="ada")
    paths = [("/matcher/requestJob", body) for body in BODIES]
    paths += [
        (f"/leases/{lease}/{report}", body) for lease in ("0" * 32, "%41", "") for report, body in REPORTS
    ]
    ways = [
        (JSON, pilot),
        (b"", pilot),
        (JSON, user),
        (JSON, None),
        (JSON, "x.y.z"),
        (JSON, pilot[:-9] + "AAAAAAAAA"),
        (b"Content-Type: text/plain\r\n", pilot),
        (JSON + b"Request-Timeout: none\r\n", pilot),
        (JSON + b"Accept: text/html\r\n", user),
    ]
    with connected(service) as fast, connected(service) as slow:
        for path, body in paths:
            for headers, token in ways:
                fast.sendall(write(path, body, headers, token))
                answer, taken = read(fast), len(handed)
                slow.sendall(write(path, body, headers + TWICE, token))
                assert answer == read(slow), (path, body, headers)
                assert len(handed) == taken
    assert handed.count(True) > 100
    assert handed.count(False) > 100


def test_both_forms_are_counted(service: Service, handed: list[bool]) -> None:
    def count() -> dict[str, int]:
        text = service.operator().get("/metrics").text
        found = re.findall(r'requests_total{method="POST",route="([^"]*)",status="(\d+)"} (\d+)', text)
        return {f"{route} {status}": int(number) for route, status, number in found}

    token = service.token("pilot", vo="cms", queue=QUEUE)
    body = json.dumps(PLAIN).encode()
    counts = [count()]
    with connected(service) as client:
        for headers in (JSON, JSON + TWICE):
            for path, content in (("/matcher/requestJob", body), (f"/leases/{'0' * 32}/start", b"")):
                for sender in (token, None):
                    client.sendall(write(path, content, headers, sender))
                    read(client)
            counts.append(count())
    zero, first, second = counts
    assert handed == [True] * 2  # not those without a token
    api = {name.removeprefix("/api/v1") for name in second}
    assert any(name.startswith("/matcher/requestJob 200") for name in api)
    assert sum(first.values()) - sum(zero.values()) == sum(second.values()) - sum(first.values()) == 4


HEAD = b"POST /api/v1/matcher/requestJob HTTP/1.1\r\nHost: x\r\n"
BODY = json.dumps(PLAIN).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
ANSWERED = b"HTTP/1.1 200 OK"
REFUSED = b"HTTP/1.1 400 Bad Request"

#: Requests in other forms: with the token in place of `@`, and the status lines of all answers.
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
def test_what_is_not_plain_is_left_to_the_server(service: Service, name: str) -> None:
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


def test_a_client_that_goes_in_the_middle_of_a_body_disturbs_nobody(
    service: Service, handed: list[bool]
) -> None:
    token = service.token("pilot", vo="cms", queue=QUEUE)
    with connected(service) as client:
        client.sendall(write("/matcher/requestJob", BODY, JSON, token)[:-3])
    with connected(service) as client:
        for _ in range(3):
            client.sendall(write("/matcher/requestJob", BODY, JSON, token))
            assert read(client).startswith(ANSWERED)
    assert handed == [True] * 3


def test_a_body_is_not_awaited_without_a_valid_token(service: Service, handed: list[bool]) -> None:
    for token in (None, "x.y.z"):
        with connected(service) as client:
            client.sendall(write("/matcher/requestJob", BODY, JSON, token)[:-3])
            assert read(client).startswith(b"HTTP/1.1 401 ")
    assert not handed


class Failing:
    """Claims that fail."""

    def submit(self, request: MatchRequest, is_gone: Callable[[], bool]) -> None:
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

    def submit(
        self, request: MatchRequest, is_gone: Callable[[], bool]
    ) -> "asyncio.Future[MatchResult | None]":
        del request, is_gone
        self.waiting.append(asyncio.get_running_loop().create_future())
        return self.waiting[-1]

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
        [exchange] = app.fast_path._open  # type: ignore[attr-defined]
        wait.until(exchange.is_gone)
        claim.get_loop().call_soon_threadsafe(claim.set_result, answer)
        wait.until(lambda: claims.given_back)
    assert claims.given_back == [answer]


def test_a_claim_that_the_end_of_the_service_cuts_off_is_to_be_repeated(service: Service) -> None:
    claims, parts = Claims(), service.parts
    object.__setattr__(parts, "claims", claims)
    token = service.token("gateway", vo="cms", site="LCG.A.org")
    app = create_app(parts)
    with running_service.served(app) as url, connected(Service(parts, url)) as client:
        client.sendall(write("/matcher/requestJob", BODY, JSON, token))
        wait.until(lambda: claims.waiting)
        asyncio.run_coroutine_threadsafe(app.fast_path.close(), claims.waiting[0].get_loop())  # type: ignore[attr-defined]
        answer = read(client)
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"service_ending" in answer
    assert b"retry-after" in answer.lower()


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


class _Recorder:
    """A connection that keeps its answers."""

    def __init__(self, *, fails: bool = False) -> None:
        self.answers: list[int] = []
        self.is_aborted = False
        self._fails = fails

    def write_answer(self, status: int, headers: object, body: bytes) -> None:
        del headers, body
        if self._fails:
            raise ZeroDivisionError
        self.answers.append(status)

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.parametrize("fails", [False, True])
def test_a_request_that_has_just_begun_does_not_hold_up_the_end(service: Service, fails: bool) -> None:
    async def end() -> None:
        path, connection = FastPath(create_app(service.parts), service.parts), _Recorder(fails=fails)
        found = find_route(b"/api/v1/matcher/requestJob")
        assert found is not None
        scope = {"type": "http", "scheme": "http", "method": "POST", "path": "/", "headers": []}
        exchange = PlainExchange(connection, *found, scope, {})
        path._work(exchange, asyncio.sleep(3600))
        async with asyncio.timeout(300):
            await path.close()
        assert not path._open
        assert connection.answers == ([] if fails else [503])
        assert connection.is_aborted or not fails

    asyncio.run(end())
