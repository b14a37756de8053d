"""Client of the REST interface of A-REX, and the settings of an ARC CE.

Source: NorduGrid, ARC CE REST interface 1.0.
"""

import re
import ssl
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx
from pydantic import Field, model_validator

from pilotage.bounded_http import BoundedTransport
from pilotage.fabric.batch.batch_system import BatchSystemAway
from pilotage.fabric.batch.settings import Connect
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.file_section import SettingsPart
from pilotage.fabric.pilot.service import transport as service_transport
from requirements.errors import format_count

#: What an object of an answer holds: A-REX knows texts only.
Item = Mapping[str, Any]
#: Jobs in one request: A-REX reads a megabyte of it at most.
_AT_ONCE = 1000
#: Seconds that a request may pause, and take in all.
_PATIENCE, LONGEST = 30.0, 120.0
#: Bytes of an answer: those of a hundred thousand jobs. A CE is a site's, and a director serves several.
MOST = 32 << 20
#: Header with the size of a file.
_SIZE = "Content-Length"


def connect(context: ssl.SSLContext) -> httpx.BaseTransport:
    """Connections over TLS; a proxy of the environment must not see the token."""
    return BoundedTransport(context, seconds=LONGEST, most=MOST)


class Credentials(SettingsPart):
    """Token or certificate for the CE, and trusted CA certificates. The files may be renewed at any time."""

    authorities: Path | None = None  #: CA certificates of the CE, a file or a directory; none: the host's
    token_file: Path | None = None  #: of a token that the CE takes; read anew whenever it changes
    certificate: Path | None = None  #: of the client, or a proxy (PEM)
    key: Path | None = None  #: of the certificate; none: it is in the same file

    @property
    def secret_files(self) -> tuple[Path, ...]:
        """The token, the certificate and its key."""
        named = (self.token_file, self.certificate, self.key)
        return tuple(path for path in named if path is not None)

    def context(self) -> ssl.SSLContext:
        """TLS context of a connection, from the present content of the files."""
        context = service_transport.tls_context(self.authorities)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context

    def headers(self) -> Mapping[str, str]:
        """Headers of each request."""
        if self.token_file is None:
            return {}
        return {"Authorization": f"Bearer {self.token_file.read_text(encoding='ascii').strip()}"}

    def age(self) -> tuple[int, ...]:
        """Changes with the files. A-REX asks who we are once a connection, the token not excepted."""
        files = (self.authorities, self.token_file, self.certificate, self.key)
        return tuple(file.stat().st_mtime_ns for file in files if file is not None)


class ArcRest:
    """Connection to one CE with a token or a certificate."""

    def __init__(self, url: str, credentials: Credentials, *, connect: Connect = connect) -> None:
        self.url = f"{url.rstrip('/')}/rest/1.0"
        self._credentials = credentials
        self._connect = connect
        self._http: httpx.Client | None = None
        self._age: tuple[int, ...] = ()

    def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def create(self, description: bytes) -> Item:
        """Hand in a job (ADL); what A-REX says of it: a `status-code` of 201 with an `id`, else a `reason`.

        After `NoAnswer` it may have taken the job, after other errors it has not.
        """
        headers = {"Content-Type": "application/xml"}
        response = self._send("POST", "/jobs", params={"action": "new"}, content=description, headers=headers)
        if response.is_server_error:
            raise NoAnswer(_error_text(response))
        items = self._items(response)
        if len(items) != 1:
            raise NoAnswer(f"{self.url}: one job was handed in, the answer is about {len(items)}")
        return items[0]

    def jobs(self, states: Collection[str] = ()) -> Sequence[Item]:
        """All our jobs (`id`); with states, those in one of them (`state`) as A-REX itself knows it now."""
        asked = {"state": ",".join(sorted(states))} if states else None
        return self._items(self._send("GET", "/jobs", params=asked))

    def each(self, action: str, references: Sequence[str]) -> Mapping[str, Item]:
        """Apply `status`, `info`, `kill` or `clean` to many jobs; what A-REX answers, by job.

        A job that is not there is answered with a `status-code` of 404; an answer for some of them is none.
        """
        found: dict[str, Item] = {}
        for begin in range(0, len(references), _AT_ONCE):
            asked = {"job": [{"id": each} for each in references[begin : begin + _AT_ONCE]]}
            response = self._send("POST", "/jobs", params={"action": action}, json=asked)
            found.update((str(item.get("id")), item) for item in self._items(response))
        if unanswered := [each for each in references if each not in found]:
            raise BatchSystemAway(
                f"{self.url}: {action} of {format_count(len(references), 'job')} is answered for all but "
                f"{len(unanswered)}, such as {unanswered[0]}"
            )
        return found

    def write(self, reference: str, name: str, content: bytes) -> None:
        """Hand in an input file of a job."""
        response = self._send("PUT", _path(reference, "session", *name.split("/")), content=content)
        if not response.is_success:
            raise BatchSystemAway(_error_text(response))

    def read(self, reference: str, name: str, *, last: int) -> bytes:
        """The last bytes of a file of a job; empty if there is none."""
        path = _path(reference, "session", *name.split("/"))
        stated = self._text("HEAD", path).headers.get(_SIZE, "")
        size = int(stated) if re.fullmatch(r"[0-9]{1,18}", stated) else 0
        if size == 0:
            return b""
        return self._text("GET", path, headers={"Range": f"bytes={max(0, size - last)}-"}).content[-last:]

    def note(self, reference: str, name: str) -> str:
        """One of the notes that A-REX keeps of a job, such as `failed` or `local`; empty if there is none."""
        return self._text("GET", _path(reference, "diagnose", name)).text

    def information(self) -> Item:
        """The CE with its queues. Source: GLUE 2."""
        return self._object(self._send("GET", "/info", params={"schema": "glue2"}))

    def _items(self, response: httpx.Response) -> list[Item]:
        """The jobs of an answer. A-REX 6 says nothing for none, and one without a list."""
        if response.is_success and not response.content:
            return []
        jobs = self._object(response).get("job", [])
        items = jobs if isinstance(jobs, list) else [jobs]
        if not all(isinstance(each, dict) for each in items):
            raise NoAnswer(f"{self.url}: does not answer with jobs, but {jobs!r:.80}")
        return items

    def _object(self, response: httpx.Response) -> Item:
        if not response.is_success:
            raise BatchSystemAway(_error_text(response))
        try:
            answer = response.json()
        except ValueError as error:
            raise NoAnswer(f"{self.url}: the answer breaks off or is none: {error}") from error
        if not isinstance(answer, dict):
            raise NoAnswer(f"{self.url}: does not answer with an object, but {answer!r:.80}")
        return answer

    def _text(self, method: str, path: str, **sent: Any) -> httpx.Response:
        response = self._send(method, path, **sent)
        if response.status_code == HTTPStatus.NOT_FOUND:
            return httpx.Response(HTTPStatus.NOT_FOUND, content=b"")
        if not response.is_success:
            raise BatchSystemAway(_error_text(response))
        return response

    def _send(self, method: str, path: str, **sent: Any) -> httpx.Response:
        with self._failures():
            headers = {
                "Accept": "application/json",
                **self._credentials.headers(),
                **sent.pop("headers", {}),
            }
            return self._client().request(method, self.url + path, headers=headers, **sent)

    def _client(self) -> httpx.Client:
        """Connections with the files as they are now."""
        age = self._credentials.age()
        if self._http is None or age != self._age:
            self.close()
            transport = self._connect(self._credentials.context())
            self._http = httpx.Client(transport=transport, timeout=_PATIENCE, trust_env=False)
            self._age = age
        return self._http

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise BatchSystemAway(f"{self.url} cannot be reached: {error}") from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise NoAnswer(f"{self.url} gave no answer: {type(error).__name__} {error}") from error
        except (OSError, ValueError) as error:
            raise BatchSystemAway(f"{self.url}: token, certificate or authorities: {error}") from error


def _path(reference: str, *parts: str) -> str:
    return "/".join(("/jobs", *(quote(each, safe="") for each in (reference, *parts))))


def _error_text(response: httpx.Response) -> str:
    asked = response.request
    why = (response.text.strip() or response.reason_phrase)[:300]
    return f"{asked.method} {asked.url}: answered with {response.status_code}, {why}"


class ComputingElement(Credentials):
    """Address of a CE, and the credentials for it."""

    url: str = Field(
        pattern=r"^https://[^\s/?#@]+(/[^\s?#]*)?$"
    )  #: of its A-REX, such as https://ce.example.org/arex

    @model_validator(mode="after")
    def _has_credentials(self) -> Self:
        if self.token_file is None and self.certificate is None:
            raise ValueError("a CE needs a token_file, or a certificate with its key")
        if self.key is not None and self.certificate is None:
            raise ValueError("there is a key without its certificate")
        return self
