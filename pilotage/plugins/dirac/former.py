"""The former services of a DIRAC, with which jobs and VOs stay while others have moved.

The door acts there as a host that DIRAC trusts (`TrustedHost`), for the DN and group that it has verified.
DIRAC checks these with its own registry, and decides what they may do.

Source: DIRAC 9.1, `Core/DISET/AuthManager.py`, `Core/DISET/private/BaseClient.py`, `Core/Tornado/Client`.
"""

import asyncio
import json
import logging
import math
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import anyio.to_thread
import httpx

from cs_config.options import bounds
from pilotage.plugins.dirac import jencode
from pilotage.plugins.dirac.jencode import Result
from pilotage.plugins.dirac.peers import Peer
from pilotage.service.auth.rate_limits import Bounds, Limiter
from pilotage.service.http_errors import NotAuthenticated
from requirements.errors import InvalidRequest, PilotageError, Problem

_log = logging.getLogger(__name__)

#: Calls that wait for the former services at once; the subject is a DN at one address.
CALLS: Final = Bounds(of_all=200, of_vo=50, of_one=8)
#: In the header `Via` of calls that are passed on: they are not passed on again.
VIA: Final = "pilotage-dirac-door"
#: Seconds after which changed certificates, authorities and revocation lists are read again.
_RENEWED_EVERY: Final = 600.0
#: Digits of the length of a message.
_DIGITS: Final = 12
#: Bytes of an answer that is parsed without a thread.
_AT_ONCE: Final = 64 << 10
#: What a client of DIRAC 9.1 states.
_SETUP, _VERSION = "None", "v9r1p22"
_NO_ACCESS, _UNKNOWN_METHOD = (401, 403), 501


class FormerAway(PilotageError):
    """The former services cannot be reached, or too many calls wait for them: nothing was sent."""

    code = "unavailable"


class OutcomeUnknown(FormerAway):
    """The former services have got a call, and did not answer, or not as DIRAC does."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; the call may have been carried out: look before you repeat it")


class UnknownThere(PilotageError):
    """The former services have no such method."""

    code = "not_found"


@dataclass(frozen=True, slots=True)
class DiracUrl:
    """A URL of a service of DIRAC."""

    scheme: str
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}{self.path}"


def read_url(text: str) -> DiracUrl:
    """A URL of a service as it stands in DIRAC's configuration; `InvalidRequest` says what is wrong."""
    try:
        parts = urlsplit(text)
        found = DiracUrl(parts.scheme, parts.hostname or "", parts.port or 0, parts.path.rstrip("/"))
    except ValueError:
        found = DiracUrl("", "", 0, "")
    if found.scheme not in ("https", "dips") or not (found.host and found.port and found.path):
        message = (
            f"{text!r:.200} is no URL such as https://dirac.example.org:8443/WorkloadManagement/JobManager"
        )
        raise InvalidRequest([Problem(path="former", message=message)])
    return found


class FormerServices:
    """The former services by the path of their URLs (`https`, or DIRAC's own protocol `dips`)."""

    def __init__(
        self, urls: Iterable[str], *, first_job_id: int, make_context: Callable[[], ssl.SSLContext]
    ) -> None:
        """Connect to nothing yet.

        Args:
            urls: As in DIRAC's configuration; several of one service are tried in turn.
            first_job_id: Jobs with smaller ids are theirs.
            make_context: Makes the TLS context of the door as a client.
        """
        self.first_job_id = first_job_id
        self._urls: defaultdict[str, list[DiracUrl]] = defaultdict(list)
        for url in map(read_url, urls):
            self._urls[url.path].append(url)
        self._make_context = make_context
        self._context: tuple[float, ssl.SSLContext] | None = None
        self._renewing = asyncio.Lock()  # of many calls one reads the files
        self._open = Limiter(CALLS)
        self._dead: dict[DiracUrl, float] = {}  # when there was no connection

    @property
    def paths(self) -> frozenset[str]:
        """The services that are known."""
        return frozenset(self._urls)

    async def call(self, path: str, method: str, arguments: Sequence[object], peer: Peer) -> Result:
        """The result of a method, called for a peer.

        `FormerAway`: nothing was sent; `OutcomeUnknown`: the call may or may not have had an effect;
        `NotAuthenticated`: it was refused; `UnknownThere`.
        """
        seconds = bounds.FORMER_SUBMIT_SECONDS if method == "submitJob" else bounds.FORMER_SECONDS
        with self._count(peer):
            try:
                async with asyncio.timeout(seconds):
                    return await self._try_urls(path, method, arguments, peer)
            except TimeoutError:
                raise OutcomeUnknown(f"the former service {path} did not answer in time") from None

    @contextmanager
    def _count(self, peer: Peer) -> Iterator[None]:
        """Count a call; `FormerAway` if too many of all, of its VO or of its sender are open."""
        vo, subject = peer.vo, f"{peer.dn} at {peer.address}"
        if (full := self._open.find_full(vo, subject)) is not None:
            whose = {"all": "all", "VO": f"the VO {vo}" if vo else "hosts"}.get(full.kind, subject)
            raise FormerAway(f"{full.most} calls of {whose:.300} wait for the former services: try later")
        with self._open.keep(vo, subject, 1):
            yield

    async def _try_urls(self, path: str, method: str, arguments: Sequence[object], peer: Peer) -> Result:
        away: Exception = FormerAway(f"no former service {path} is configured")
        for url in self._order(path):
            send = _call_dips if url.scheme == "dips" else _call_https
            try:
                return await send(url, method, arguments, peer, await self._current_context())
            except NotReached as fault:  # nothing was sent: the next one may have the call
                self._dead[url] = time.monotonic()
                away = FormerAway(f"the former service {url} cannot be reached: {fault}")
                _log.warning("%s", away)
            except (OSError, EOFError, httpx.HTTPError, InvalidRequest, ValueError) as fault:
                away = OutcomeUnknown(
                    f"the former service {url} does not answer as DIRAC does: {fault!r:.300}"
                )
                _log.warning("%s", away)
                break
        raise away

    def _order(self, path: str) -> list[DiracUrl]:
        """The URLs of a service; last those that could not be reached just now."""
        since = time.monotonic() - bounds.FORMER_DEAD_SECONDS
        return sorted(self._urls.get(path, ()), key=lambda url: self._dead.get(url, -math.inf) > since)

    async def _current_context(self) -> ssl.SSLContext:
        async with self._renewing:
            if self._context is None or time.monotonic() - self._context[0] > _RENEWED_EVERY:
                try:
                    made = await anyio.to_thread.run_sync(self._make_context)
                except (OSError, ValueError) as fault:  # also of TLS
                    raise FormerAway(f"the certificate of the door cannot be read: {fault}") from None
                self._context = (time.monotonic(), made)
            return self._context[1]


class NotReached(Exception):
    """There was no connection."""


async def _read(content: bytes) -> Result:
    if len(content) < _AT_ONCE:
        return jencode.decode_result(content.decode())
    return await anyio.to_thread.run_sync(lambda: jencode.decode_result(content.decode()))


async def _call_https(
    url: DiracUrl, method: str, arguments: Sequence[object], peer: Peer, context: ssl.SSLContext
) -> Result:
    form = {
        "method": method,
        "args": jencode.encode(list(arguments)).decode(),
        "clientVO": peer.vo or "unknown",
        "clientSetup": _SETUP,
        "extraCredentials": json.dumps([peer.dn, peer.group]),
    }
    content = bytearray()
    times = httpx.Timeout(None, connect=bounds.FORMER_CONNECT_SECONDS)
    try:
        async with (
            httpx.AsyncClient(verify=context, timeout=times, trust_env=False) as client,
            client.stream("POST", str(url), data=form, headers={"Via": f"1.1 {VIA}"}) as response,
        ):
            async for chunk in response.aiter_bytes():
                content += chunk
                _require_size(len(content))
    except (httpx.ConnectError, httpx.ConnectTimeout) as fault:
        raise NotReached(str(fault) or "no connection in time") from None
    if response.status_code in _NO_ACCESS:
        raise _refuse(url, peer, bytes(content))
    if response.status_code == _UNKNOWN_METHOD:
        raise UnknownThere(f"{method[:80]} is no method of {url.path}")
    if response.status_code != httpx.codes.OK:
        raise ValueError(f"status {response.status_code}")
    return await _read(bytes(content))


def _refuse(url: DiracUrl, peer: Peer, content: bytes) -> NotAuthenticated:
    text = content[:200].decode(errors="replace")
    _log.warning(
        "%s refused a call for %s with the group %s (is the host of the door a TrustedHost there?): %r",
        *(url, peer.dn, peer.group, text),
    )
    return NotAuthenticated("the former services refused the call")


def _require_size(size: int) -> None:
    if size > bounds.FORMER_BYTES:
        raise ValueError(f"more than {bounds.FORMER_BYTES} bytes")


async def _call_dips(
    url: DiracUrl, method: str, arguments: Sequence[object], peer: Peer, context: ssl.SSLContext
) -> Result:
    caller = (peer.vo or "unknown", [peer.dn, peer.group])
    return await call_dips(url, method, arguments, caller=caller, context=context)


async def call_dips(
    url: DiracUrl,
    method: str,
    arguments: Sequence[object],
    *,
    caller: tuple[str, object],
    context: ssl.SSLContext,
) -> Result:
    """The result of a call by DIRAC's own protocol: a proposal with its answer, then the arguments.

    `caller`: the VO, and for whom a host calls, as DN and group (else empty); `NotReached`: nothing was sent;
    OSError, EOFError, ValueError and `InvalidRequest`: the service did not answer as DIRAC does.
    """
    try:
        async with asyncio.timeout(bounds.FORMER_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(url.host, url.port, ssl=context)
    except OSError as fault:  # also of TLS, and of time
        raise NotReached(str(fault) or "no connection in time") from None
    try:
        vo, credentials = caller
        service = [url.path.strip("/"), _SETUP, vo]
        await _send(writer, [service, ["RPC", method], credentials, _VERSION])
        accepted = await _read(await _receive(reader))
        if not accepted["OK"]:
            return accepted
        await _send(writer, list(arguments))
        return await _read(await _receive(reader))
    finally:
        writer.transport.abort()  # all was received: some services do not answer the end of TLS


async def _send(writer: asyncio.StreamWriter, value: object) -> None:
    content = jencode.encode(jencode.ok(value))
    writer.write(b"%d:%b" % (len(content), content))
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> bytes:
    length = b""
    while (sign := await reader.readexactly(1)) != b":":
        length += sign
        if not sign.isdigit() or len(length) > _DIGITS:
            raise ValueError(f"{length!r} is no length")
    _require_size(int(length))
    return await reader.readexactly(int(length))


def split_ids(given: object, first_job_id: int) -> tuple[object, object]:
    """The ids of our jobs and those of the former ones in an argument, in its form; None: there are none.

    The argument is an id, also as text, a list of ids or a mapping by id. What is no id is ours to refuse.
    """
    if isinstance(given, list):
        theirs = [each for each in given if _is_former(each, first_job_id)]
        ours = [each for each in given if not _is_former(each, first_job_id)]
        return (ours or None) if theirs else given, theirs or None
    if isinstance(given, Mapping):
        there = {name: value for name, value in given.items() if _is_former(name, first_job_id)}
        here = {name: value for name, value in given.items() if name not in there}
        return (here or None) if there else given, there or None
    return (None, given) if _is_former(given, first_job_id) else (given, None)


def _is_former(given: object, first_job_id: int) -> bool:
    if isinstance(given, str) and given.isdecimal() and len(given) < 20:
        given = int(given)
    return isinstance(given, int) and not isinstance(given, bool) and 0 < given < first_job_id
