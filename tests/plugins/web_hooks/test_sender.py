"""Messages of web hooks reach receivers, and nothing that a VO may not reach."""

import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from examples.servers import certificates
from examples.servers.starting import free_port, wait_until
from pilotage.plugins.web_hooks import messages
from pilotage.plugins.web_hooks import sender as hook_sender
from pilotage.plugins.web_hooks.messages import SendResult
from pilotage.plugins.web_hooks.sender import HookSender
from tests.support.servers.http_servers import answering

PAGE = Path(__file__).parents[3] / "docs" / "vo-admin" / "web-hooks.md"
LOCAL = ("127.0.0.0/8", "::1/128")


@contextmanager
def receiver(answer: Callable[[BaseHTTPRequestHandler], object], tls: Any = None) -> Iterator[int]:
    """A server that answers each request so; its port."""
    handler = type("Handler", (BaseHTTPRequestHandler,), {"do_POST": answer, "log_message": lambda *_: None})
    server = HTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with answering(server):
        yield server.server_address[1]


def respond(status: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(int(handler.headers["Content-Length"]))
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


@pytest.mark.parametrize(("status", "is_delivered"), [(204, True), (200, True), (302, False), (500, False)])
def test_only_2xx_is_success_and_nobody_is_led_elsewhere(status: int, is_delivered: bool) -> None:
    with receiver(respond(status, Location="http://127.0.0.1:1/")) as port:
        result = HookSender(allowed=LOCAL).send(f"http://127.0.0.1:{port}/x", b"{}", {"webhook-id": "msg_1"})
    assert result == SendResult(answer=str(status), is_delivered=is_delivered)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "0", "10.1.2.3", "169.254.169.254", "192.168.1.1", "100.64.0.1"),
        *("[::1]", "[::ffff:127.0.0.1]", "[fd00::1]", "[fe80::1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"),
        *(
            "224.0.0.1",
            "2130706433",
            "0177.0.0.1",
            "[::7f00:1]",
            "[64:ff9b:1::a00:1]",
            "[5f00::1]",
            "[3fff::1]",
        ),
        *("[2001:db8::1]", "[2001::1]", "[200::1]", "[fec0::1]", "[::ffff:0:a00:1]", "192.88.99.1"),
        "192.0.0.8",
    ],
)
def test_addresses_that_are_not_of_the_internet_are_refused_before_any_connection(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_sender.httpcore.SyncBackend, "connect_tcp", lambda *_: pytest.fail("connected"))
    result = HookSender().send(f"https://{host}/", b"{}", {})
    assert not result.is_delivered
    refused = r"the operator may allow it|^Invalid IPv4 address: '0177\.0\.0\.1'$"
    assert re.search(refused, result.answer), result.answer


def test_the_answer_does_not_tell_internal_addresses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = [(0, 0, 0, "", ("10.1.2.3", 443))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with caplog.at_level("INFO"):
        for sender in (HookSender(), HookSender(refused=["10.0.0.0/8"])):
            assert "10.1.2.3" not in sender.send("https://a.example/", b"{}", {}).answer
    assert caplog.text.count("10.1.2.3") == 2


@pytest.mark.parametrize("address", ["2606:4700::1", "2a00:1450::1", "::ffff:198.41.0.4", "198.41.0.4"])
def test_addresses_of_the_internet_are_allowed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(0, 0, 0, "", (address, 443))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert HookSender().find_address("a.example", 443, 5.0) == (address, False)


def test_an_address_is_of_this_host_by_its_route() -> None:
    assert hook_sender._is_of_this_host("127.0.0.1")
    assert not hook_sender._is_of_this_host("198.41.0.4")


def test_a_name_server_that_does_not_answer_takes_no_longer_than_a_receiver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = threading.Event()
    monkeypatch.setattr(hook_sender, "TRY_SECONDS", 0.1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer.wait(300) and [])
    result = HookSender().send("https://slow.example/", b"{}", {})
    assert (result.answer, answer.is_set()) == ("no answer within 0 s", False)
    answer.set()


def test_a_name_counts_by_all_its_addresses_and_the_connection_goes_to_one_that_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = ["198.41.0.4"]
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (address, 443)) for address in found]
    )
    posts = HookSender(refused=["192.0.32.0/20"])
    assert posts.find_address("a.example", 443, 5.0) == ("198.41.0.4", False)
    for other in ("127.0.0.1", "192.0.33.8"):
        found[1:] = [other]
        with pytest.raises(hook_sender.RefusedAddressError):
            posts.find_address("a.example", 443, 5.0)


def test_without_tls_only_allowed_networks_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    posts, sent = HookSender(), []
    with receiver(lambda handler: sent.append(handler.path)) as port:
        monkeypatch.setattr(posts, "find_address", lambda *_: ("127.0.0.1", False))
        result = posts.send(f"http://a.example:{port}/x", b"{}", {})
    assert (result.is_delivered, sent) == (False, [])
    assert result.answer == "a.example: only https, but to networks that the operator allows"


def test_the_certificate_has_to_be_that_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = certificates.Authority(tmp_path)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*authority.sign("hooks"))
    trusted = ssl.create_default_context(cafile=authority.certificate)
    posts = HookSender(tls=trusted)
    monkeypatch.setattr(posts, "find_address", lambda *_: ("127.0.0.1", False))
    with receiver(respond(204), served) as port:
        assert posts.send(f"https://localhost:{port}/", b"{}", {}).is_delivered
        assert "CERTIFICATE_VERIFY_FAILED" in posts.send(f"https://other.example:{port}/", b"{}", {}).answer


def test_a_receiver_that_answers_a_byte_at_a_time_takes_no_longer_than_a_silent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hook_sender, "TRY_SECONDS", 0.5)
    stop = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        with suppress(OSError):
            handler.wfile.write(b"HTTP/1.1 204 ok\r\nx: ")
            while not stop.wait(0.05):
                handler.wfile.write(b"x")

    with receiver(drip) as port:
        result = HookSender(allowed=LOCAL).send(f"http://127.0.0.1:{port}/", b"{}", {})
        stop.set()
    assert result == SendResult(answer="no answer within 0 s", is_delivered=False)


@pytest.mark.parametrize(
    "url", ["https://nowhere.invalid/", "http://127.0.0.1:1/", "ftp://a.example/", "https://[/"]
)
def test_what_cannot_be_sent_is_a_result(url: str) -> None:
    result = HookSender(allowed=LOCAL).send(url, b"{}", {})
    assert not result.is_delivered
    assert result.answer


def test_the_receiver_of_the_documentation_takes_what_is_signed_once_and_nothing_else(tmp_path: Path) -> None:
    [text] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "receiver.py").write_text(text)
    secret, port = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", free_port()
    environment = {**os.environ, "HOOK_SECRET": secret, "PORT": str(port)}
    process = subprocess.Popen(
        [sys.executable, "receiver.py"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        wait_until(lambda: _answers(port))
        job = b'{"job_id": 7, "status": "Done", "minor_status": "Execution Complete"}'
        body = b'{"type": "job.ended", "data": {"vo": "cms", "jobs": [' + job + b"]}}"
        posts, now = HookSender(allowed=LOCAL), datetime.now(UTC)
        headers = messages.sign(secret, 1, body, now=now)

        def post(sent: bytes, headers: dict[str, str]) -> str:
            return posts.send(f"http://127.0.0.1:{port}/", sent, headers).answer

        assert [post(body, headers), post(body, headers)] == ["204", "204"]
        assert post(body.replace(b"7", b"8"), headers) == "401"
        assert post(body, messages.sign("whsec_AAAA", 2, body, now=now)) == "401"
        long_ago = datetime.fromtimestamp(time.time() - 600, UTC)
        assert post(body, messages.sign(secret, 3, body, now=long_ago)) == "401"
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=300)
    assert output == "7 Done Execution Complete\n"


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
