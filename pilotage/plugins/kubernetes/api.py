"""Client of Kubernetes' API for the Jobs of one namespace, and its settings.

Source: Kubernetes API reference, batch/v1 and core/v1; API concepts (dry run, field validation, continue).
"""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
from pydantic import Field

from pilotage.bounded_http import BoundedTransport
from pilotage.fabric.batch.batch_system import BatchSystemAway, SubmissionRefused
from pilotage.fabric.batch.settings import Connect
from pilotage.fabric.batch.shell import NoAnswer
from pilotage.fabric.file_section import SettingsPart
from pilotage.fabric.pilot.service import transport as service_transport

#: An object of the API.
Item = Mapping[str, Any]
#: Objects in one answer of a list, and in all of them; such answers, of which some may be empty.
_PAGE, _MOST_OBJECTS, _MOST_PAGES = 500, 200_000, 1_000
#: Seconds that a request may pause, and take in all; bytes of an answer: those of so many pods, and logs.
_PATIENCE, LONGEST, MOST = 30.0, 120.0, 64 << 20
#: What never becomes a Job, whenever it is sent.
_REFUSED: Final = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)
_MOUNTED: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def connect(context: ssl.SSLContext) -> httpx.BaseTransport:
    """Connections over TLS; a proxy of the environment must not see the token."""
    return BoundedTransport(context, seconds=LONGEST, most=MOST)


class ApiServer(SettingsPart):
    """The API server of a cluster, with a namespace; by default those of the pod that this runs in."""

    url: str = Field(default="https://kubernetes.default.svc", pattern=r"^https://[^\s/?#@]+(/[^\s?#]*)?$")
    namespace: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    authorities: Path | None = _MOUNTED / "ca.crt"  #: CA certificates of the server; null: the host's
    token_file: Path = _MOUNTED / "token"  #: of a service account; read anew whenever it changes

    @property
    def secret_files(self) -> tuple[Path, ...]:
        """The token."""
        return (self.token_file,)


class KubernetesApi:
    """Connection to one API server, as one service account."""

    def __init__(self, server: ApiServer, *, connect: Connect = connect) -> None:
        """Contacts nothing."""
        self._server = server
        self._connect = connect
        self._http: httpx.Client | None = None
        self._age = 0

    def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def create_job(self, job: Item, *, dry_run: bool = False) -> None:
        """Create a Job, unless there is one with its name.

        `SubmissionRefused`: it is none that the server ever takes. After `NoAnswer` it may be there, after
        another `BatchSystemAway` it is not.
        """
        params = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        response = self._send("POST", self._path("jobs"), params=params, json=job)
        if response.is_success or _read_status(response).get("reason") == "AlreadyExists":
            return
        if response.status_code in _REFUSED:
            raise SubmissionRefused(_message(response))
        raise _error(response)

    def list(self, resource: str, selector: str = "") -> Sequence[Item]:
        """All objects of `jobs`, `pods` or `resourcequotas` with these labels, or an error."""
        found: list[Item] = []
        params = {"limit": str(_PAGE)} | ({"labelSelector": selector} if selector else {})
        for _ in range(_MOST_PAGES):
            answer = _read_object(self._done("GET", self._path(resource), params=params))
            items, metadata = answer.get("items"), answer.get("metadata", {})
            if not isinstance(items, list) or not isinstance(metadata, dict):
                raise NoAnswer(f"{self._server.url}: does not answer with a list, but {answer!r:.80}")
            found += items
            if not (after := metadata.get("continue")):
                return found
            if len(found) >= _MOST_OBJECTS:
                break
            params["continue"] = str(after)
        raise NoAnswer(f"{self._server.url}: the list of {resource} does not end")

    def patch_job(self, name: str, changes: Item) -> None:
        """Change a Job; one that is not there is no error."""
        headers = {"Content-Type": "application/merge-patch+json"}
        self._done("PATCH", self._path("jobs", name), json=changes, headers=headers, may_lack=True)

    def delete_job(self, name: str) -> None:
        """Delete a Job with its pods; one that is not there is no error."""
        params = {"propagationPolicy": "Background"}
        self._done("DELETE", self._path("jobs", name), params=params, may_lack=True)

    def read_log(self, pod: str, *, most: int) -> bytes:
        """The beginning of what a pod wrote, up to so many bytes; empty if there is nothing yet."""
        path = f"{self._path('pods', pod)}/log"
        response = self._send("GET", path, params={"limitBytes": str(most)})
        # Of a container that waits to start: BadRequest.
        if response.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST):
            return b""
        if not response.is_success:
            raise _error(response)
        return response.content

    def _path(self, resource: str, *name: str) -> str:
        group = "/apis/batch/v1" if resource == "jobs" else "/api/v1"
        return "/".join((f"{group}/namespaces/{self._server.namespace}/{resource}", *name))

    def _done(self, method: str, path: str, *, may_lack: bool = False, **sent: Any) -> httpx.Response:
        response = self._send(method, path, **sent)
        if response.is_success or (may_lack and response.status_code == HTTPStatus.NOT_FOUND):
            return response
        raise _error(response)

    def _send(self, method: str, path: str, **sent: Any) -> httpx.Response:
        with self._failures():
            token = self._server.token_file.read_text(encoding="ascii").strip()
            headers = {"Authorization": f"Bearer {token}", **sent.pop("headers", {})}
            return self._client().request(method, self._server.url + path, headers=headers, **sent)

    def _client(self) -> httpx.Client:
        """Connections with the certificates as they are now."""
        authorities = self._server.authorities
        age = authorities.stat().st_mtime_ns if authorities is not None else 0
        if self._http is None or age != self._age:
            self.close()
            transport = self._connect(service_transport.tls_context(authorities))
            self._http = httpx.Client(transport=transport, timeout=_PATIENCE, trust_env=False)
            self._age = age
        return self._http

    @contextmanager
    def _failures(self) -> Iterator[None]:
        url = self._server.url
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise BatchSystemAway(f"{url} cannot be reached: {error}") from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise NoAnswer(f"{url} gave no answer: {type(error).__name__} {error}") from error
        except (OSError, ValueError) as error:
            raise BatchSystemAway(f"{url}: token or authorities: {error}") from error


def _read_object(response: httpx.Response) -> Item:
    try:
        answer = response.json()
    except ValueError as error:
        raise NoAnswer(f"{response.request.url}: the answer breaks off or is none: {error}") from error
    return answer if isinstance(answer, dict) else {}


def _read_status(response: httpx.Response) -> Item:
    """The `Status` of an answer that is an error; empty if a proxy wrote it."""
    try:
        return _read_object(response)
    except NoAnswer:
        return {}


def _message(response: httpx.Response) -> str:
    text = str(_read_status(response).get("message") or response.text.strip() or response.reason_phrase)
    return text[:500]


def _error(response: httpx.Response) -> BatchSystemAway:
    asked = response.request
    text = f"{asked.method} {asked.url.path}: answered with {response.status_code}, {_message(response)}"
    return NoAnswer(text) if response.is_server_error else BatchSystemAway(text)
