"""URLs that may name several servers, as those of libpq and of Sentinels do; urllib refuses some of them."""

from typing import NamedTuple


class ServerUrl(NamedTuple):
    """The parts of `scheme://login@host,host/path?query`, each as it stands there."""

    scheme: str
    login: str
    hosts: tuple[str, ...]
    path: str  #: without its first slash
    query: str


def split_url(url: str) -> ServerUrl:
    """The parts of a URL, empty where there is none; nothing is checked."""
    scheme, separator, rest = url.partition("://")
    before, _, query = rest.partition("?")
    authority, _, path = before.partition("/")
    login, _, hosts = authority.rpartition("@")
    return ServerUrl(
        scheme=scheme.lower() if separator else "",
        login=login,
        hosts=tuple(hosts.split(",")) if hosts else (),
        path=path,
        query=query,
    )
