"""E-mail of web hooks, through a mail server that is a socket of this test."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage

import pytest

from pilotage.cli.processes.hook_sender import HookSender, MailSender

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
def mail_server(accepts: bool = True) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
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
                    self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")

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


@pytest.mark.parametrize(
    ("address", "answer"), [(None, "mail_server is not set"), ("smtp://127.0.0.1:1", "refused")]
)
def test_without_a_mail_server_the_delivery_says_so(address: str | None, answer: str) -> None:
    result = sender(address).send("mailto:ada@example.org", BODY, {"webhook-id": "msg_7"})
    assert not result.is_delivered
    assert answer in result.answer
