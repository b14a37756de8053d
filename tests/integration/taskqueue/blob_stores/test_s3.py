"""A bucket that is away, slow, missing or closed, and uploads that are interrupted."""

import hashlib
import os
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from botocore.config import Config

from taskqueue.blob_stores import s3
from taskqueue.blob_stores.place import S3Place
from taskqueue.blob_stores.s3 import S3Store
from taskqueue.blob_stores.store import BlobStore, StagedBlob, probe
from taskqueue.errors import StorageAway
from tests.support.servers.s3_server import BUCKET, CREDENTIALS, S3Server, make_store

MB = 1 << 20
LIMIT = 1 << 30
MISSING = "0" * 64


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are not repeated."""
    monkeypatch.setattr(s3, "_CONFIG", s3._CONFIG.merge(Config(retries={"total_max_attempts": 1})))


def _uses(store: BlobStore) -> list[Callable[[], object]]:
    later = datetime.now(UTC) + timedelta(days=1)
    return [
        lambda: store.stage([b"x"], limit=LIMIT),
        lambda: store.stage([b"x" * 6 * MB], limit=LIMIT),
        lambda: store.store(StagedBlob(digest=MISSING, size=1)),
        lambda: store.open(MISSING),
        lambda: store.delete(MISSING),
        lambda: list(store.digests(before=later)),
        lambda: store.sweep(before=later),
        lambda: probe(store),
    ]


def _list_refusals(store: BlobStore) -> list[str]:
    """What each use of a store is refused with."""
    refusals = []
    for use in _uses(store):
        with pytest.raises(StorageAway) as raised:
            use()
        refusals.append(str(raised.value))
    return refusals


def test_a_missing_bucket_is_named(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    place = S3Place(bucket="nowhere", endpoint=s3_server.url, region="us-east-1")
    refusals = _list_refusals(make_store(place, monkeypatch))
    # A request for the head of an object has no text in its answer.
    assert [text for text in refusals if "NoSuchBucket" not in text] == [refusals[2]]


def test_a_wrong_key_is_refused_without_its_secret(
    own_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(own_server.place(), monkeypatch)
    own_server.check_keys(wanted=True)
    refusals = _list_refusals(store)
    assert sum("InvalidAccessKeyId" in text for text in refusals) == len(refusals) - 1
    assert not [text for text in refusals if any(secret in text for secret in CREDENTIALS.values())]


def test_without_credentials_a_store_is_away(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    assert set(_list_refusals(S3Store(s3_server.place()))) == {
        "archives cannot be stored or read now: NoCredentialsError"
    }


@pytest.mark.usefixtures("once")
def test_a_store_that_does_not_answer_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_CONFIG", s3._CONFIG.merge(Config(read_timeout=0.1, connect_timeout=0.1)))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = make_store(S3Place(bucket=BUCKET, endpoint=url, region="us-east-1"), monkeypatch)
        assert {text.rpartition(" ")[2] for text in _list_refusals(store)} <= {
            "ReadTimeoutError",
            "ConnectTimeoutError",
        }


@pytest.mark.usefixtures("once")
def test_a_server_that_is_killed_while_an_archive_comes_in_leaves_none(
    own_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(own_server.place(), monkeypatch)

    def send() -> Iterator[bytes]:
        yield b"x" * 6 * MB
        own_server.kill()
        yield b"y" * 6 * MB

    with pytest.raises(StorageAway, match=r"EndpointConnectionError|ConnectionClosedError"):
        store.stage(send(), limit=LIMIT)
    assert len(_list_refusals(store)) == len(_uses(store))
    own_server.start()
    staged = store.stage([b"x" * 6 * MB], limit=LIMIT)
    store.store(staged)
    assert store.open(staged.digest).read() == b"x" * 6 * MB


def test_a_sender_that_goes_away_after_some_parts_leaves_nothing(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = s3_server.place()
    store = make_store(place, monkeypatch)

    def broken() -> Iterator[bytes]:
        yield b"x" * 12 * MB
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        store.stage(broken(), limit=LIMIT)
    assert s3_server.list_keys(place) == []


def test_what_a_dead_process_left_of_uploads_is_swept(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = s3_server.place()
    store, client = make_store(place, monkeypatch), s3_server.client()
    client.create_multipart_upload(Bucket=BUCKET, Key=f"{place.prefix}/incoming/{'1' * 32}")
    client.create_multipart_upload(Bucket=BUCKET, Key=f"{place.prefix}/sha256/{MISSING}")
    client.put_object(Bucket=BUCKET, Key=f"{place.prefix}/incoming/{'2' * 32}", Body=b"whole")
    kept = store.stage([b"kept"], limit=LIMIT)
    # This server gives all uploads in parts one time of their begin, in 2010.
    assert store.sweep(before=datetime(2009, 1, 1, tzinfo=UTC)) == 0
    assert store.sweep(before=datetime.now(UTC) + timedelta(hours=1)) == 3
    assert s3_server.list_keys(place) == [f"{place.prefix}/sha256/{kept.digest}"]


def test_what_others_have_in_the_bucket_is_not_swept(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = s3_server.client()
    bucket = "shared-with-others"
    client.create_bucket(Bucket=bucket)
    place = S3Place(bucket=bucket, endpoint=s3_server.url, region="us-east-1")
    store = make_store(place, monkeypatch)
    for key in ("films/1.mkv", "incoming/2.mkv", f"films/sha256/{MISSING}", MISSING):
        client.create_multipart_upload(Bucket=bucket, Key=key)
    client.put_object(Bucket=bucket, Key="incoming/letter", Body=b"theirs")
    assert store.sweep(before=datetime.now(UTC) + timedelta(hours=1)) == 0
    assert len(client.list_multipart_uploads(Bucket=bucket)["Uploads"]) == 4
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 1


def test_an_archive_that_retention_deleted_after_its_upload_is_asked_for_again(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(s3_server.place(), monkeypatch)
    staged = store.stage([b"again"], limit=LIMIT)
    store.delete(staged.digest)
    with pytest.raises(StorageAway, match="send it again"):
        store.store(staged)


def test_a_download_goes_on_where_its_connection_broke(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(s3_server.place(), monkeypatch)
    content = os.urandom(3 * MB)
    digest = store.stage([content], limit=LIMIT).digest
    with store.open(digest) as file:
        begin = file.read(MB)
        file.raw._body.close()  # type: ignore[attr-defined]
        assert begin + file.read() == content


def test_a_download_whose_store_has_gone_ends_with_an_error(
    own_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(own_server.place(), monkeypatch)
    digest = store.stage([os.urandom(40 * MB)], limit=LIMIT).digest
    with store.open(digest) as file:
        assert file.read(MB)
        own_server.kill()
        with pytest.raises(StorageAway):
            file.read()


def test_two_installations_share_a_bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    one, other = (make_store(s3_server.place(), monkeypatch) for _ in range(2))
    digest = one.stage([b"shared"], limit=LIMIT).digest
    assert list(other.digests(before=later)) == []
    other.delete(digest)
    assert list(one.digests(before=later)) == [digest]


def test_an_upload_needs_little_memory(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(s3_server.place(), monkeypatch)
    piece = os.urandom(MB)
    store.stage([piece] * 6, limit=LIMIT)  # what is imported at the first time
    tracemalloc.start()
    try:
        staged = store.stage((piece for _ in range(64)), limit=LIMIT)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert staged.digest == hashlib.sha256(piece * 64).hexdigest()
    assert most < 5 * s3.PART


def test_what_is_no_archive_is_neither_listed_nor_deleted(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the empty object that a console makes for a folder: retention would fail at its name."""
    place = s3_server.place()
    store = make_store(place, monkeypatch)
    s3_server.client().put_object(Bucket=BUCKET, Key=f"{place.prefix}/sha256/", Body=b"")
    assert list(store.digests(before=datetime.now(UTC) + timedelta(days=1))) == []
