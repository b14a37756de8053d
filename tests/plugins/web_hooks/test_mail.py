"""E-mail of web hooks, through a mail server that is a socket of this test."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email import message_from_bytes, policy
from email.message import EmailMessage

import pytest

from pilotage.plugins.web_hooks import mail as hook_mail
from pilotage.plugins.web_hooks.mail import MailSender
from pilotage.plugins.web_hooks.sender import HookSender

JOBS = [
    {"job_id": 4, "status": "Done", "minor_status": "Execution Complete", "job_name": "a\r\nBcc: x@y"},
    {"job_id": 5, "status": "Failed", "minor_status": "exit", "site": "LCG.A.org"},
]
BODY = json.dumps(
    {
        "type": "job.ended",
        "timestamp": "2030-01-01T00:00:00Z",
        "data": {"vo": "cms", "hook": "ada", "jobs": JOBS},
    }
).encode()


@contextmanager
def mail_server(
    *, accepts: bool = True, farewell: bytes = b"221 bye\r\n"
) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A mail server; its address, and what it took: recipient and message."""
    taken: list[tuple[str, bytes]] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 test\r\n")
            recipient = ""
            while line := self.rfile.readline():
                word = line[:4].upper()
                if word == b"RCPT":
                    recipient = line.decode().strip()
                    self.wfile.write(b"250 ok\r\n" if accepts else b"550 no such user\r\n")
                elif word == b"DATA":
                    self.wfile.write(b"354 go\r\n")
                    lines = list(iter(self.rfile.readline, b".\r\n"))
                    taken.append((recipient, b"".join(lines)))
                    self.wfile.write(b"250 ok\r\n")
                else:
                    self.wfile.write(farewell if word == b"QUIT" else b"250 ok\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"smtp://127.0.0.1:{server.server_address[1]}", taken
        finally:
            server.shutdown()


def sender(address: str | None) -> HookSender:
    return HookSender(mail=MailSender(address, "pilotage@example.org"))


def test_the_end_of_jobs_comes_as_one_mail_whatever_their_names_are() -> None:
    with mail_server() as (address, taken):
        result = sender(address).send("mailto:ada@example.org", BODY, {"webhook-id": "msg_7"})
    assert (result.is_delivered, result.answer) == (True, "accepted by the mail server")
    [(recipient, raw)] = taken
    message = message_from_bytes(raw, policy=policy.default)
    assert isinstance(message, EmailMessage)
    assert recipient.endswith("TO:<ada@example.org>")
    assert message["Subject"] == "Pilotage, cms: 2 jobs ended: 1 Done, 1 Failed"
    assert message["Message-ID"] == "<msg_7@example.org>"
    assert (message["Date"], message["Auto-Submitted"]) == (
        "Tue, 01 Jan 2030 00:00:00 +0000",
        "auto-generated",
    )
    assert message["Bcc"] is None
    lines = message.get_content().splitlines()
    assert "4  Done  Execution Complete  a  Bcc: x@y" in lines
    assert "5  Failed  exit  LCG.A.org" in lines


def test_a_mail_that_is_refused_is_not_delivered_and_says_why() -> None:
    with mail_server(accepts=False) as (address, taken):
        result = sender(address).send("mailto:ada@example.org", BODY, {"webhook-id": "msg_7"})
    assert not result.is_delivered
    assert "no such user" in result.answer
    assert not taken


def test_a_mail_that_was_taken_is_not_sent_again_however_the_connection_ends() -> None:
    with mail_server(farewell=b"421 too many connections\r\n") as (address, taken):
        result = sender(address).send("mailto:ada@example.org", BODY, {"webhook-id": "msg_7"})
    assert result.is_delivered
    assert len(taken) == 1


def test_a_server_whose_answer_never_ends_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 test\r\n")
            with suppress(OSError):
                while True:
                    self.wfile.write(b"250-more\r\n")

    monkeypatch.setattr(hook_mail, "TRY_SECONDS", 0.2)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"smtp://127.0.0.1:{server.server_address[1]}"
        result = sender(address).send("mailto:ada@example.org", BODY, {"webhook-id": "msg_7"})
        server.shutdown()
    assert not result.is_delivered


@pytest.mark.parametrize(
    ("address", "answer"), [(None, "mail_server is not set"), ("smtp://127.0.0.1:1", "refused")]
)
def test_without_a_mail_server_the_delivery_says_so(address: str | None, answer: str) -> None:
    result = sender(address).send("mailto:ada@example.org", BODY, {"webhook-id": "msg_7"})
    assert not result.is_delivered
    assert answer in result.answer
