"""Connections to Redis by a URL: to one server, or to the master that Sentinels name.

`redis://host:6379/0`, `rediss://…` (TLS) and `unix:///path` are one server. `redis+sentinel://h1:26379,h2,h3/NAME/0`
is the master of that name: each new connection asks the Sentinels which server it is, so that a process
finds the next one by itself. `rediss+sentinel://` takes TLS to all of them. A password in the URL is that of
Redis; `?sentinel_password=` is that of the Sentinels.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from taskqueue.db.server_urls import split_url

if TYPE_CHECKING:
    from redis import Redis

_SERVERS: Final = frozenset({"redis", "rediss", "unix"})
_SENTINELS: Final = frozenset({"redis+sentinel", "rediss+sentinel"})
_PORT: Final = 26379
_FORM: Final = "redis+sentinel://host:26379,host:26379/name-of-the-master/0"
#: Seconds for the answer of a Sentinel, where the server's has no limit.
_SENTINEL_TIMEOUT: Final = 2.0
_OPTIONS: Final = frozenset({"sentinel_username", "sentinel_password"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelAddress:
    """The master of a name, the Sentinels that know it, and how to log in."""

    sentinels: tuple[tuple[str, int], ...]
    master: str
    database: int
    username: str | None
    password: str | None
    tls: bool
    of_sentinels: tuple[tuple[str, str], ...]  #: their user name and password, by redis-py's names


def check_url(url: str) -> str:
    """The URL; ValueError if it is none of Redis."""
    scheme = split_url(url).scheme
    if scheme in _SENTINELS:
        parse_sentinels(url)
    elif scheme not in _SERVERS:
        raise ValueError(f"has the scheme {scheme!r}; use redis://, rediss://, unix:// or {_FORM}")
    return url


def is_open(url: str) -> bool:
    """Whether it names servers that every process which reaches them over TCP may use: without a login."""
    parts = split_url(url)
    if parts.scheme in _SENTINELS:
        return parse_sentinels(url).password is None
    has_login = parts.login.partition(":")[2] or parse_qs(parts.query).keys() & {"password", "ssl_certfile"}
    return parts.scheme != "unix" and not has_login


def parse_sentinels(url: str) -> SentinelAddress:
    """The parts of a URL with Sentinels; ValueError if one is missing or wrong."""
    parts = split_url(url)
    username, _, password = parts.login.partition(":")
    master, _, database = parts.path.strip("/").partition("/")
    if not (parts.hosts and master and (database or "0").isdecimal()):
        raise ValueError(f"names no Sentinels or no master; use {_FORM}")
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if unknown := sorted(query.keys() - _OPTIONS):
        raise ValueError(
            f"{', '.join(unknown)}: unknown; with Sentinels there are {', '.join(sorted(_OPTIONS))}"
        )
    return SentinelAddress(
        sentinels=tuple(map(_parse_host, parts.hosts)),
        master=unquote(master),
        database=int(database or 0),
        username=unquote(username) or None,
        password=unquote(password) or None,
        tls=parts.scheme.startswith("rediss"),
        of_sentinels=tuple(sorted((name.removeprefix("sentinel_"), value) for name, value in query.items())),
    )


def _parse_host(text: str) -> tuple[str, int]:
    address = urlsplit(f"//{text}")
    if not address.hostname:
        raise ValueError(f"{text!r} is no Sentinel; use {_FORM}")
    return address.hostname, address.port or _PORT


def connect(url: str, *, timeout: float | None = None, **more: Any) -> "Redis":
    """A client, which connects when it is first used; `more` is for redis-py.

    `timeout`: seconds that connecting and each answer may take, of which nothing is tried twice.
    """
    from redis import Redis  # optional package
    from redis.backoff import NoBackoff
    from redis.retry import Retry
    from redis.sentinel import Sentinel

    options = dict(more)
    if timeout is not None:
        options |= {
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),
        }
    if split_url(url).scheme not in _SENTINELS:
        return Redis.from_url(url, **options)
    given = parse_sentinels(url)
    login = {"db": given.database, "username": given.username, "password": given.password}
    tls = {"ssl": True} if given.tls else {}
    to_sentinels = {"socket_timeout": timeout or _SENTINEL_TIMEOUT, **tls, **dict(given.of_sentinels)}
    sentinel: Any = Sentinel(given.sentinels, sentinel_kwargs=to_sentinels)  # type: ignore[no-untyped-call]
    master: Redis = sentinel.master_for(given.master, **login, **tls, **options)
    return master
