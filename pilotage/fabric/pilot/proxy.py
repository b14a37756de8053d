"""The HTTP proxy between a worker node and the service, where a site has one."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

#: Said instead of an address: whatever the environment says, there is none.
NONE = "none"
_PORT = 3128


@dataclass(frozen=True)
class Proxy:
    """Where it listens, and what it wants to see."""

    host: str
    port: int
    headers: Mapping[str, str]


def choose(url: str, said: str | None, environment: Mapping[str, str]) -> Proxy | None:
    """The proxy on the way to a service; None: there is none.

    Args:
        url: Of the service.
        said: Address of the proxy, or `none`; None: as the environment says.
        environment: With HTTPS_PROXY, HTTP_PROXY and NO_PROXY, in small letters or capitals.

    Raises:
        ValueError: The address makes no sense.
    """
    if said is not None:
        return None if said.lower() == NONE else _read(said)
    parts = urlsplit(url)
    named = {name.lower(): value for name, value in sorted(environment.items()) if value}
    address = named.get(f"{parts.scheme}_proxy")
    if not address or _is_near(parts.hostname or "", named.get("no_proxy", "")):
        return None
    return _read(address)


def _is_near(host: str, exceptions: str) -> bool:
    """Whether a host, or a domain that it is in, is one of those that are reached without a proxy."""
    names = [name.strip().lower().lstrip(".") for name in exceptions.split(",")]
    return any(name == "*" or host == name or host.endswith(f".{name}") for name in names if name)


def _read(address: str) -> Proxy:
    parts = urlsplit(address if "//" in address else f"http://{address}")
    try:
        host, port = parts.hostname, parts.port or _PORT
    except ValueError:
        host, port = None, 0
    if parts.scheme != "http" or not host:
        # What stands before the @ may be a password.
        shown = address.rpartition("@")[2]
        raise ValueError(f"{shown!r} is no address of a proxy, such as http://proxy.example.org:3128")
    return Proxy(host, port, _authorization(parts.username, parts.password))


def _authorization(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    pair = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}
