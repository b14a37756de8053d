"""Sends messages of web hooks with a `mailto:` address as e-mail, through the operator's mail server."""

import json
import smtplib
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from email.message import EmailMessage
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pilotage.plugins.web_hooks.messages import TRY_SECONDS, SendResult
from requirements.errors import format_count

SCHEME: Final = "mailto:"
#: Entries of a message that are listed.
_LISTED: Final = 50
#: What each entry shows, by the list that it is in.
_FIELDS: Final = {
    "jobs": ("job_id", "status", "minor_status", "job_name", "job_group", "site"),
    "pools": ("pool_id", "state", "since", "reason"),
    "throttles": ("scope", "state", "since", "reason"),
}


class MailSender:
    """Sends through one mail server, `smtp://host[:port]` or `smtps://host[:port]`; `send` is thread-safe."""

    def __init__(self, server: str | None, sender: str) -> None:
        """Without a server nothing is sent."""
        self._server, self._sender = server, sender

    def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> SendResult:
        """Send a message. It has the id of the delivery, so that mail programs show repetitions as one."""
        if self._server is None:
            return SendResult(
                answer="this installation sends no mail: mail_server is not set", is_delivered=False
            )
        message = write_message(json.loads(body))
        message["From"], message["To"] = self._sender, unquote(url.removeprefix(SCHEME))
        message["Message-ID"] = f"<{headers['webhook-id']}@{self._sender.rpartition('@')[2]}>"
        try:
            with _connecting(self._server) as connection:
                connection.send_message(message)
        except (smtplib.SMTPException, OSError) as error:
            return SendResult(answer=f"{error}"[:200] or type(error).__name__, is_delivered=False)
        return SendResult(answer="accepted by the mail server", is_delivered=True)


@contextmanager
def _connecting(server: str) -> Iterator[smtplib.SMTP]:
    """A connection that is closed after `TRY_SECONDS`; how it ends is no error of the message."""
    parts = urlsplit(server)
    host, port = parts.hostname or "", parts.port or 0
    connection: smtplib.SMTP
    if parts.scheme == "smtps":
        tls = ssl.create_default_context()
        connection = smtplib.SMTP_SSL(host, port, timeout=TRY_SECONDS, context=tls)
    else:
        connection = smtplib.SMTP(host, port, timeout=TRY_SECONDS)
    timer = threading.Timer(TRY_SECONDS, _shut_down, [connection])
    timer.daemon = True
    timer.start()
    try:
        yield connection
        with suppress(smtplib.SMTPException, OSError):
            connection.quit()
    finally:
        timer.cancel()
        connection.close()


def _shut_down(connection: smtplib.SMTP) -> None:
    """End what another thread waits for on this connection."""
    with suppress(OSError):
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)


def write_message(sent: Mapping[str, Any]) -> EmailMessage:
    """The text of a message, without its addresses."""
    data = sent["data"]
    message = EmailMessage()
    message["Subject"] = _one_line(f"Pilotage, {data['vo']}: {_summary(sent)}")
    message["Date"] = datetime.fromisoformat(sent["timestamp"])
    message["Auto-Submitted"] = "auto-generated"  # no replies of absence
    lines = [f"VO: {data['vo']}", f"Web hook: {data['hook']}", f"Time: {sent['timestamp']}", "", *_list(data)]
    message.set_content("\n".join(map(_one_line, lines)) + "\n")
    return message


def _summary(sent: Mapping[str, Any]) -> str:
    data = sent["data"]
    if "jobs" not in data:
        return str(sent["type"])
    counts = Counter(str(job["status"]) for job in data["jobs"])
    jobs = format_count(len(data["jobs"]), "job")
    return f"{jobs} ended: {', '.join(f'{number} {status}' for status, number in sorted(counts.items()))}"


def _list(data: Mapping[str, Any]) -> Iterator[str]:
    for name, fields in _FIELDS.items():
        entries = data.get(name, ())
        for entry in entries[:_LISTED]:
            yield "  ".join(str(entry[field]) for field in fields if entry.get(field) not in (None, ""))
        if len(entries) > _LISTED:
            yield f"and {len(entries) - _LISTED} more"


def _one_line(text: str) -> str:
    """A text without control characters: names of jobs are chosen by users."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
