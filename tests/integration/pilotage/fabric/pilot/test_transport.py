"""The pilot's HTTP at servers that do not behave."""

import http.client as http_client
import io
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from examples.servers.certificates import Authority
from pilotage.client.api import ApiError, ServiceAway, ServiceClient
from pilotage.fabric.pilot.service import transport
from pilotage.fabric.pilot.service.transport import (
    Away,
    InvalidAddress,
    Refused,
    TokenNotAccepted,
    TooLarge,
    Transport,
)
from tests.support.servers.http_proxy import ForwardProxy


@contextmanager
def answering(
    answer: bytes, wrap: Callable[[socket.socket], socket.socket] = lambda each: each
) -> Iterator[str]:
    """A server that answers every request with these bytes and closes the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                with wrap(connection) as speaking:
                    speaking.recv(65536)
                    speaking.sendall(answer)
            except OSError:
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(300)


def http(body: bytes, status: str = "200 OK", *headers: str, length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def call(answer: bytes) -> object:
    with answering(answer) as address:
        return Transport(f"http://{address}", "token", timeout=300).call("POST", "/x", {}).body


def test_an_answer_is_read() -> None:
    assert call(http(b'{"a": 1}')) == {"a": 1}


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        http(b"<html>a proxy's page</html>"),
        http(b"[1, 2]"),
        http(b'{"a": ', length=100),
        http(b"", "500 Internal Server Error"),
        http(b"<html>Bad gateway</html>", "502 Bad Gateway"),
        http(b"{}", "503 Service Unavailable", "Retry-After: soon"),
        http(b"<html>Default backend</html>", "404 Not Found"),
        http(b'{"error": {"code": "not_found", "message": "x", "details": {}}}', "404 Not Found"),
        http(b"<html>Closed for maintenance</html>", "403 Forbidden"),
        http(b"", "409 Conflict"),
        http(b"", "401 Unauthorized"),
        http(b"", "408 Request Timeout"),
        http(b"", "425 Too Early"),
        http(b'{"error": {"code": "not_authenticated", "message": "x", "details": {}}}', "401 Unauthorized"),
    ],
)
def test_what_is_no_answer_may_be_tried_again(answer: bytes) -> None:
    with pytest.raises(Away):
        call(answer)


@pytest.mark.parametrize(
    ("text", "pause"), [("17", 17), ("inf", None), ("1e999", None), ("nan", None), ("soon", None)]
)
def test_the_service_says_when_to_come_back_and_a_pause_without_an_end_is_none(
    text: str, pause: float | None
) -> None:
    with pytest.raises(Away) as caught:
        call(http(b"{}", "429 Too Many Requests", f"Retry-After: {text}"))
    assert caught.value.retry_after == pause


@pytest.mark.parametrize(
    ("status", "code", "ends"),
    [
        (401, "revoked", True),
        (404, "lease_not_found", True),
        (409, "stale_lease", True),
        (409, "illegal_transition", True),
        (409, "output_missing", False),
        (400, "invalid_request", False),
        (403, "not_allowed", False),
        (413, "body_too_large", False),
        (422, "invalid_request", False),
    ],
)
def test_what_ends_an_attempt_is_told_from_what_a_report_should_not_hold(
    status: int, code: str, ends: bool
) -> None:
    body = f'{{"error": {{"code": "{code}", "message": "it is closed", "details": {{}}}}}}'.encode()

    with pytest.raises(Refused, match="it is closed") as caught:
        call(http(body, f"{status} No"))
    assert (caught.value.status, caught.value.code) == (status, code)
    assert caught.value.ends_attempt is ends


def test_a_refusal_that_is_not_ours_is_one_all_the_same() -> None:
    with pytest.raises(Refused) as caught:
        call(http(b"<html>", "413 Content Too Large"))
    assert caught.value.status == 413


@pytest.mark.parametrize("status", ["301 Moved Permanently", "302 Found", "307 Temporary Redirect"])
def test_a_redirect_is_not_followed_with_our_token_and_may_be_tried_again(status: str) -> None:
    with pytest.raises(Away, match="to 'http://elsewhere/'"):
        call(http(b"", status, "Location: http://elsewhere/"))


def test_a_download_that_breaks_off_may_be_tried_again() -> None:
    with answering(http(b"half", length=8)) as address, pytest.raises(Away):
        Transport(f"http://{address}", "token").download("/x", io.BytesIO(), limit=100)


def test_a_download_beyond_the_limit_is_not_stored() -> None:
    to = io.BytesIO()
    with answering(http(b"x" * 1000)) as address, pytest.raises(TooLarge):
        Transport(f"http://{address}", "token").download("/x", to, limit=100)
    assert to.getvalue() == b""


def test_a_refusal_in_the_middle_of_an_upload_is_heard() -> None:
    size = 20 << 20
    body = b'{"error": {"code": "body_too_large", "message": "too large"}}'
    with answering(http(body, "413 Content Too Large")) as address, pytest.raises((Refused, Away)):
        Transport(f"http://{address}", "token", timeout=300).upload("/x", io.BytesIO(b"x" * size), size=size)


def test_nobody_there_may_be_tried_again() -> None:
    with pytest.raises(Away, match=r"127\.0\.0\.1"):
        Transport("http://127.0.0.1:1", "token").call("GET", "/x")


WRONG_ADDRESSES = [
    "",
    "service",
    "ftp://x",
    "http://",
    "/api",
    "http://h:99999",
    "http://h:x",
    "https://[::1",
]
WRONG_ADDRESSES += [f"http://{'a' * 64}.org", "https://a..b", "http://a b"]


@pytest.mark.parametrize("url", WRONG_ADDRESSES)
def test_an_address_that_is_none_is_told(url: str) -> None:
    told = re.escape(f"{url!r} is not a service address such as https://")
    with pytest.raises(InvalidAddress, match=told):
        Transport(url, "token")
    with pytest.raises(ServiceAway, match=told):
        ServiceClient(url, "token")


@pytest.mark.parametrize("url", ["http://[::1", "http://h:99999", "socks5://h"])
def test_an_address_of_a_proxy_that_is_none_is_told(url: str) -> None:
    told = re.escape(f"{url!r} is not a proxy address such as http://")
    with pytest.raises(ValueError, match=told):
        transport.choose_proxy("https://pilotage.example.org", url, {})


@contextmanager
def answering_with_tls(directory: Path) -> Iterator[str]:
    """With a certificate of the authority of which `ca.pem` is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority(directory).sign("localhost"))
    with answering(http(b'{"a": 1}'), lambda each: context.wrap_socket(each, server_side=True)) as address:
        yield f"https://localhost:{address.rpartition(':')[2]}"


def test_tls_is_verified(tmp_path: Path) -> None:
    with answering_with_tls(tmp_path) as url:
        for trusted in (tmp_path / "ca.pem", tmp_path):
            trusting = Transport(url, "token", context=transport.tls_context(trusted))
            assert trusting.call("GET", "/x").body == {"a": 1}
        with pytest.raises(Away, match=r"(?i)certificate"):
            Transport(url, "token", context=transport.tls_context(None)).call("GET", "/x")


def test_a_damaged_certificate_in_a_directory_spoils_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.pem").write_text("no certificate")
    with pytest.raises(ValueError, match="contains no CA certificate"):
        transport.tls_context(tmp_path)
    with answering_with_tls(tmp_path) as url:
        trusting = Transport(url, "token", context=transport.tls_context(tmp_path))
        assert trusting.call("GET", "/x").body == {"a": 1}


@pytest.mark.parametrize("named", ["missing", "broken"])
def test_a_file_without_certificates_is_wrong_usage(tmp_path: Path, named: str) -> None:
    (tmp_path / "broken").write_text("no certificate")
    with pytest.raises(ValueError, match=f"authorities .*{named}"):
        transport.tls_context(tmp_path / named)


def test_through_a_proxy_tls_goes_to_the_service_itself(tmp_path: Path) -> None:
    with answering_with_tls(tmp_path) as url, ForwardProxy(authorization="Basic bWU6c2VjcmV0") as between:
        environment = {"HTTPS_PROXY": between.url.replace("//", "//me:secret@")}
        on_the_way = transport.choose_proxy(url, None, environment)
        going = Transport(url, "token", context=transport.tls_context(tmp_path), proxy=on_the_way)
        assert going.call("GET", "/x").body == {"a": 1}
    assert between.asked == [f"CONNECT {url.removeprefix('https://')}"], "nothing of the request is seen"


def test_through_a_proxy_plain_http_is_asked_with_the_whole_address() -> None:
    with answering(http(b'{"a": 1}')) as address, ForwardProxy() as between:
        going = Transport(
            f"http://{address}", "token", proxy=transport.choose_proxy(f"http://{address}", between.url, {})
        )
        assert going.call("POST", "/x", {}).body == {"a": 1}
    assert between.asked == [f"POST http://{address}/api/v1/x"]


def test_a_proxy_that_refuses_may_be_tried_again(tmp_path: Path) -> None:
    with (
        answering_with_tls(tmp_path) as url,
        ForwardProxy(authorization="Basic x") as between,
        pytest.raises(Away, match="407"),
    ):
        Transport(url, "token", proxy=transport.choose_proxy(url, between.url, {})).call("GET", "/x")


class Lines:
    """A server that answers each request on a connection with the next of some bytes, while it has any."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.paths: list[str] = []
        self.tokens: list[str] = []
        self.connections = 0
        self.ended = threading.Event()  #: a connection was closed by the server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(300)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                self._answer(connection)
            self.ended.set()

    def _answer(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as sent:
            while self.answers and (line := sent.readline()):
                self.paths.append(line.split()[1].decode())
                head = http_client.parse_headers(sent)
                sent.read(int(head.get("Content-Length", 0)))
                self.tokens.append(head["Authorization"].removeprefix("Bearer "))
                answer = self.answers.pop(0)
                connection.sendall(answer)
                if b"Connection: close" in answer:
                    return


ANSWER = http(b'{"a": 1}')


def test_requests_share_a_connection_that_the_service_leaves_open() -> None:
    with Lines(ANSWER, http(b"", "204 No Content"), ANSWER) as server:
        going = Transport(server.url, "token")
        going._idle._clock = lambda: 0.0
        assert [going.call("GET", "/x").body for _ in range(3)] == [{"a": 1}, {}, {"a": 1}]
        going.close()
        assert server.connections == 1


def test_a_connection_that_the_service_closed_is_not_used_again() -> None:
    with Lines(http(b'{"a": 1}', "200 OK", "Connection: close"), ANSWER) as server:
        going = Transport(server.url, "token")
        assert going.call("POST", "/x", {}).body == {"a": 1}
        assert going.call("POST", "/x", {}).body == {"a": 1}
        going.close()
        assert server.connections == 2


def test_a_connection_that_ends_while_it_is_idle_is_not_used_again() -> None:
    with Lines(ANSWER) as server:
        going = Transport(server.url, "token")
        assert going.call("POST", "/x", {}).body == {"a": 1}
        assert server.ended.wait(300)
        server.answers.append(ANSWER)
        assert going.call("POST", "/x", {}).body == {"a": 1}
        going.close()
        assert server.connections == 2


def test_a_connection_is_not_used_again_after_seconds_or_with_a_response_that_was_not_read() -> None:
    now = [0.0]
    with Lines(ANSWER, ANSWER, http(b"x" * 1000), ANSWER) as server:
        going = Transport(server.url, "token")
        going._idle._clock = lambda: now[0]
        going.call("GET", "/x")
        now[0] = 4.0
        going.call("GET", "/x")
        assert server.connections == 2
        with pytest.raises(TooLarge):
            going.download("/x", io.BytesIO(), limit=10)
        assert going.call("GET", "/x").body == {"a": 1}
        going.close()
        assert server.connections == 3


@pytest.mark.parametrize(
    ("method", "headers", "is_repeated"),
    [("GET", {}, True), ("POST", {"Idempotency-Key": "a"}, True), ("POST", {}, False)],
    ids=["reading", "with a key", "any other"],
)
def test_a_connection_that_ends_as_it_is_used_again_fails_only_what_is_not_to_be_done_twice(
    method: str, headers: dict[str, str], is_repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_has_input", lambda _: False)  # it ends after the look
    with Lines(http(b"{}")) as server:
        service = Transport(server.url, "t")
        service._idle._clock = lambda: 0.0
        service.call("GET", "/first")
        assert server.ended.wait(300)
        server.answers.append(http(b'{"again": 1}'))
        if is_repeated:
            assert service.call(method, "/second", {}, headers=headers).body == {"again": 1}
        else:
            with pytest.raises(Away):
                service.call(method, "/second", {}, headers=headers)


class Tokens:
    """A source that has another token when one is refused."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)

    def __call__(self) -> str:
        return self.tokens[0]

    def reject(self, token: str) -> None:
        assert token == self.tokens[0]
        if len(self.tokens) > 1:
            self.tokens.pop(0)


@pytest.mark.parametrize("body", [{"b": 1}, io.BytesIO(b"archive")])
def test_a_request_with_a_refused_token_is_sent_again_with_another(body: dict[str, int] | io.BytesIO) -> None:
    error = b'{"error": {"code": "not_authenticated", "message": "it has expired", "details": {}}}'
    refusal = http(error, "401 Unauthorized")
    with Lines(refusal, ANSWER, refusal) as server:
        going = Transport(server.url, Tokens("old", "new"))
        if isinstance(body, dict):
            assert going.call("POST", "/x", body).body == {"a": 1}
        else:
            assert going.upload("/x", body, size=7).body == {"a": 1}
        with pytest.raises(TokenNotAccepted, match="it has expired"):
            going.call("GET", "/x")
        going.close()
        assert server.tokens == ["old", "new", "new"]


def test_errors_of_all_clients_are_one_family() -> None:
    assert issubclass(ApiError, Refused)
    assert issubclass(ServiceAway, Away)
    busy = http(
        b'{"error": {"code": "busy", "message": "x", "details": {"a": 1}}}', "503 No", "Retry-After: 7"
    )
    with Lines(busy) as server, ServiceClient(server.url, "token") as client:
        with pytest.raises(ApiError, match=r"^x$") as refused:
            client.whoami()
        found = refused.value
        assert (found.status, found.code, found.details, found.retry_after) == (503, "busy", {"a": 1}, 7)
    with ServiceClient("http://127.0.0.1:1", "token") as client, pytest.raises(ServiceAway, match="reached"):
        client.whoami()


def test_names_and_filters_are_sent_whatever_is_in_them() -> None:
    page = http(b'{"jobs": [], "next": null}')
    with Lines(ANSWER, ANSWER, page) as server, ServiceClient(server.url, "token") as client:
        client.drain_queue("LCG.A.org/c\u00e9 1/q", message="x")
        client.site("a/b c")
        client.jobs({"job_name": "a&b \u00e9"}, limit=7)
        assert server.paths == [
            "/api/v1/resources/queues/LCG.A.org/c%C3%A9%201/q/drain",
            "/api/v1/sites/a%2Fb%20c",
            "/api/v1/jobs?job_name=a%26b+%C3%A9&limit=7",
        ]


def test_values_of_a_query_are_sent_as_the_service_reads_them() -> None:
    values = {"q": ["a", "b c"], "none": None, "yes": True, "no": False, "one": 1, "left_out": []}
    page = http(b'{"jobs": [], "next": null}')
    with Lines(page, page) as server, ServiceClient(server.url, "token") as client:
        client.jobs(values, limit=7)  # type: ignore[arg-type]  # of programs without types
        client.jobs({}, limit=7)
    query = "q=a&q=b+c&none=&yes=true&no=false&one=1&limit=7"
    assert server.paths == [f"/api/v1/jobs?{query}", "/api/v1/jobs?limit=7"]


def test_a_prefix_of_the_address_is_quoted_unless_it_is_already() -> None:
    with Lines(ANSWER, ANSWER) as server:
        for prefix in ("/a b/c\u00e9/", "/a%20b/c%C3%A9"):
            with ServiceClient(f"{server.url}{prefix}", "token") as client:
                client.whoami()
    assert server.paths == ["/a%20b/c%C3%A9/api/v1/tokens/me"] * 2


@pytest.mark.parametrize("secret", ["a\nb", "a\n", "a\n b", "a\x00", "caf\u00e9", "\u20ac"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(secret: str) -> None:
    with Lines(ANSWER) as server:
        told = r"^the file: the token has signs that"
        speaking = ServiceClient(server.url, secret, whose="the file")
        with speaking as client, pytest.raises(ApiError, match=told) as refused:
            client.whoami()
        with pytest.raises(TokenNotAccepted, match=r"^the token has signs that"):
            Transport(server.url, secret).call("GET", "/x")
    assert (refused.value.status, refused.value.code) == (401, "not_authenticated")
    assert server.paths == []
    assert secret not in str(refused.value)


def test_an_answer_that_is_no_json_is_no_error_of_the_program() -> None:
    with (
        Lines(http(b"<html>a sign-in page</html>")) as server,
        ServiceClient(server.url, "token") as client,
        pytest.raises(ServiceAway, match="not JSON"),
    ):
        client.whoami()
