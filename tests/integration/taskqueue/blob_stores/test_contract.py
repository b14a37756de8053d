"""What every store of archives promises: the same for a directory, a bucket, and two stores during a move."""

import hashlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from taskqueue.blob_stores.directory import DirectoryStore
from taskqueue.blob_stores.moving import MovingStore
from taskqueue.blob_stores.store import BlobStore, probe
from taskqueue.errors import BlobNotFound, TooLarge
from tests.support.servers.s3_server import S3Server, make_store

CHUNKS = [b"a" * 1000, b"", b"b" * 500]
CONTENT = b"".join(CHUNKS)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
LIMIT = 10_000


@pytest.fixture(params=["directory", "s3", "moving"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BlobStore:
    """The same suite runs on all kinds."""
    directory = DirectoryStore(tmp_path / "blobs")
    if request.param == "directory":
        return directory
    server: S3Server = request.getfixturevalue("s3_server")
    bucket = make_store(server.place(), monkeypatch)
    return bucket if request.param == "s3" else MovingStore(bucket, directory)


def _stored(store: BlobStore) -> list[str]:
    """What is there, also what staging left."""
    later = datetime.now(UTC) + timedelta(days=1)
    return [*store.digests(before=later), *["staged"] * store.sweep(before=later)]


def _read(store: BlobStore, digest: str) -> bytes:
    with store.open(digest) as file:
        return file.read()


def test_what_is_kept_is_read_back_under_its_digest(store: BlobStore) -> None:
    staged = store.stage(CHUNKS, limit=LIMIT)
    assert (staged.digest, staged.size) == (DIGEST, len(CONTENT))
    store.store(staged)
    assert _read(store, DIGEST) == CONTENT
    assert _stored(store) == [DIGEST]


def test_the_same_archive_twice_is_there_once(store: BlobStore) -> None:
    first, second = store.stage(CHUNKS, limit=LIMIT), store.stage(CHUNKS, limit=LIMIT)
    store.store(first)
    store.store(second)
    store.discard(second)
    assert _read(store, DIGEST) == CONTENT
    assert _stored(store) == [DIGEST]


def test_an_archive_over_the_limit_is_refused_while_it_comes_in(store: BlobStore) -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1000
            yield b"x" * 1000

    with pytest.raises(TooLarge, match="10,000 bytes"):
        store.stage(endless(), limit=LIMIT)
    assert taken == LIMIT + 1000
    assert _stored(store) == []


def test_an_archive_of_exactly_the_limit_is_taken(store: BlobStore) -> None:
    assert store.stage([b"x" * LIMIT], limit=LIMIT).size == LIMIT
    assert store.stage([], limit=0).size == 0


def test_a_sender_that_goes_away_leaves_nothing(store: BlobStore) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        store.stage(broken(), limit=LIMIT)
    assert _stored(store) == []


def test_archives_are_listed_by_age(store: BlobStore) -> None:
    store.store(store.stage(CHUNKS, limit=LIMIT))
    later = datetime.now(UTC) + timedelta(hours=1)
    assert list(store.digests(before=later)) == [DIGEST]
    assert list(store.digests(before=later - timedelta(hours=2))) == []


def test_deleting_twice_does_no_harm(store: BlobStore) -> None:
    store.store(store.stage(CHUNKS, limit=LIMIT))
    store.delete(DIGEST)
    store.delete(DIGEST)
    with pytest.raises(BlobNotFound):
        store.open(DIGEST)


@pytest.mark.parametrize(
    "digest", ["", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 62 + "/x", "sha256:" + "a" * 64]
)
def test_what_is_no_digest_never_becomes_a_path(store: BlobStore, digest: str) -> None:
    with pytest.raises(BlobNotFound):
        store.open(digest)
    with pytest.raises(BlobNotFound):
        store.delete(digest)


@pytest.mark.parametrize("size", [(5 << 20) - 1, 5 << 20, (17 << 20) + 1])
def test_an_archive_of_many_megabytes_is_read_back_from_any_byte(store: BlobStore, size: int) -> None:
    content = os.urandom(1 << 20) * 18
    pieces = [content[at : min(at + (700 << 10), size)] for at in range(0, size, 700 << 10)]
    staged = store.stage(pieces, limit=20 << 20)
    store.store(staged)
    assert (staged.size, staged.digest) == (size, hashlib.sha256(content[:size]).hexdigest())
    assert _stored(store) == [staged.digest]
    with store.open(staged.digest) as file:
        assert file.read(2) == content[:2]
        assert file.seek(size - 100) == size - 100
        assert file.read() == content[size - 100 : size]
        assert file.seek(-10, 2) == size - 10
        file.seek(0)
        assert file.read() == content[:size]


def test_a_probe_finds_a_good_store_good_and_leaves_nothing(store: BlobStore) -> None:
    probe(store)
    assert _stored(store) == []
