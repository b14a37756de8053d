"""Sends the messages of web hooks: each in a bounded time, and only to addresses that a VO may reach.

The address of a hook is a VO's, and the agent stands in the operator's network. So the address is resolved
here, checked, and used for the connection: a name that changes its address meanwhile gains nothing.
Redirects are not followed, proxies not used, and of the answer only the status is kept.
"""

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

import httpcore
import httpx

from pilotage.bounded_http import BoundedTransport
from pilotage.plugins.web_hooks import mail as hook_mail
from pilotage.plugins.web_hooks.mail import MailSender
from pilotage.plugins.web_hooks.messages import TRY_SECONDS, SendResult

log = logging.getLogger(__name__)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
#: Bytes of an answer, of which nothing is read but its head.
_MOST: Final = 256 << 10
#: The part of IPv6 that is assigned to the internet. Source: IANA, IPv6 Global Unicast Address Assignments.
_INTERNET_6: Final = ip_network("2000::/3")
#: Its networks that are not of the internet, or contain other addresses: protocol assignments with Teredo,
#: documentation, 6to4. Those for translation (NAT64) are outside. Of IPv4 the relays of 6to4, and protocol
#: assignments, of which Python's versions know different parts.
_SPECIAL: Final[Sequence[Network]] = tuple(
    map(
        ip_network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "192.88.99.0/24", "192.0.0.0/24")
    )
)

_NOT_OF_INTERNET: Final = "has an address of this host or not of the internet; the operator may allow it"
_ONLY_TLS: Final = "only https, but to networks that the operator allows"


class RefusedAddressError(Exception):
    """An address that web hooks may not reach. The message is shown to the VO, so it has no address."""

    def __init__(self, message: str, address: object = "") -> None:
        """Refuse an address, which only the log has."""
        super().__init__(message)
        self.address = address


@dataclass(frozen=True, slots=True)
class HookNetworks:
    """Networks that web hooks may reach beside the internet, and those of both that they may not."""

    allowed: Sequence[Network]
    refused: Sequence[Network]

    @classmethod
    def read(cls, *, allowed: Iterable[str], refused: Iterable[str]) -> "HookNetworks":
        """Read them as the settings have them."""
        return cls(tuple(map(ip_network, allowed)), tuple(map(ip_network, refused)))

    def is_allowed(self, host: str, address: Address) -> bool:
        """Whether an address is in an allowed network; `RefusedAddressError` if it may not be reached."""
        if any(address in network for network in self.refused):
            raise RefusedAddressError(f"{host} has an address that web hooks may not reach here", address)
        if any(address in network for network in self.allowed):
            return True
        if not _is_of_internet(address):
            raise RefusedAddressError(f"{host} {_NOT_OF_INTERNET}", address)
        return False

    def check_literal(self, url: str) -> None:
        """Raise `RefusedAddressError` for an address in place of a name to which no message may go.

        Names are resolved for each message; one that cannot be part of a URL is refused, too.
        """
        try:
            parts = httpx.URL(url)
            found = socket.getaddrinfo(parts.host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except httpx.InvalidURL as error:
            raise RefusedAddressError(str(error)) from None
        except (OSError, ValueError):
            return
        for each in found:
            if not self.is_allowed(parts.host, _read_address(str(each[4][0]))) and parts.scheme != "https":
                raise RefusedAddressError(f"{parts.host}: {_ONLY_TLS}")


class HookSender:
    """Sends messages to the internet, and to networks that the operator allows; `send` is thread-safe."""

    def __init__(
        self,
        *,
        allowed: Iterable[str] = (),
        refused: Iterable[str] = (),
        tls: ssl.SSLContext | None = None,
        mail: MailSender | None = None,
    ) -> None:
        """Networks beside the internet, also without TLS, and those of both that may not be reached."""
        self._mail = mail or MailSender(None, "")
        self._networks = HookNetworks.read(allowed=allowed, refused=refused)
        self._tls = tls or ssl.create_default_context()

    def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> SendResult:
        """Send a message. An answer of 200 to 299 is success."""
        if url.startswith(hook_mail.SCHEME):
            return self._mail.send(url, body, headers)
        backend = _CheckedBackend(self)
        try:
            message = httpx.Request("POST", url, headers=headers, content=body)
            with (
                BoundedTransport(self._tls, seconds=TRY_SECONDS, most=_MOST, backend=backend) as to,
                contextlib.closing(to.handle_request(message)) as answer,
            ):
                return SendResult(answer=str(answer.status_code), is_delivered=answer.is_success)
        except RefusedAddressError as refused:
            log.info("a web hook was not sent to %s: %s", refused.address, refused)
            return SendResult(answer=str(refused), is_delivered=False)
        except httpx.TimeoutException:
            return SendResult(answer=f"no answer within {TRY_SECONDS:.0f} s", is_delivered=False)
        except (
            *(httpx.HTTPError, httpx.InvalidURL, OSError, ValueError),  # also a name without an address
        ) as error:
            return SendResult(answer=f"{error}"[:200] or type(error).__name__, is_delivered=False)

    def find_address(self, host: str, port: int, timeout: float) -> tuple[str, bool]:
        """An address of a host that may be reached, and whether it lies in an allowed network."""
        found = _resolve(host, port, timeout)
        # All of them: whoever may choose one could choose another.
        checked = [(address, self._is_allowed(host, address)) for address in sorted(found, key=_prefer_short)]
        return checked[0][0], all(is_own for _, is_own in checked)

    def _is_allowed(self, host: str, text: str) -> bool:
        address = _read_address(text)
        if self._networks.is_allowed(host, address):
            return True
        if _is_of_this_host(str(address)):
            raise RefusedAddressError(f"{host} {_NOT_OF_INTERNET}", address)
        return False


def _read_address(text: str) -> Address:
    """An address without its zone, of IPv4 also where it is written as one of IPv6."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _resolve(host: str, port: int, timeout: float) -> set[str]:
    """The addresses of a host, in a bounded time: a name server of a VO may answer late, or never."""
    found: Future[set[str]] = Future()

    def look_up() -> None:
        try:
            answer = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.set_result({str(each[4][0]) for each in answer})
        except (OSError, ValueError) as error:
            found.set_exception(error)

    # Of its own, and not waited for when the process ends: the resolver itself cannot be interrupted.
    threading.Thread(target=look_up, name="web hook address", daemon=True).start()
    try:
        return found.result(timeout)
    except TimeoutError:
        raise httpcore.ConnectTimeout("the address was not found in time") from None


def _is_of_internet(address: Address) -> bool:
    """Whether an address is of the internet. For IPv6 Python is not relied on: its versions differ."""
    if any(address in network for network in _SPECIAL):
        return False
    if isinstance(address, IPv6Address):
        return address in _INTERNET_6
    return address.is_global and not address.is_multicast


def _is_of_this_host(address: str) -> bool:
    """Whether this host would reach an address from that same address, as only its own. Nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as trial:
        try:
            trial.connect((address, 9))
        except OSError:
            return False
        return ip_address(trial.getsockname()[0]) == ip_address(address)


def _prefer_short(address: str) -> tuple[bool, str]:
    """Order addresses: IPv4 first, since many hosts have no route for the other."""
    return ":" in address, address


class _CheckedBackend(httpcore.NetworkBackend):
    """Connects to checked addresses only."""

    def __init__(self, sender: HookSender) -> None:
        self._sender = sender
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        until = time.monotonic() + (timeout or 0)
        address, is_own = self._sender.find_address(host, port, timeout or 0)
        left = max(0.001, until - time.monotonic())
        stream = self._backend.connect_tcp(address, port, left, local_address, socket_options)
        return stream if is_own else _OnlyTls(stream, host)


class _OnlyTls(httpcore.NetworkStream):
    """A connection on which nothing is sent without TLS."""

    def __init__(self, stream: httpcore.NetworkStream, host: str) -> None:
        self._stream, self._host = stream, host

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - as httpcore calls it
        raise RefusedAddressError(f"{self._host}: {_ONLY_TLS}")

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return self._stream.start_tls(ssl_context, server_hostname, timeout)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
