"""Archives move from a directory to S3 and back while they are used."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from taskqueue.blob_stores.directory import DirectoryStore
from taskqueue.blob_stores.moving import CopyResult, MovingStore, copy_all
from taskqueue.blob_stores.store import BlobStore
from taskqueue.errors import BlobNotFound
from tests.support.servers.s3_server import S3Server, make_store

LATER = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> BlobStore:
    return make_store(s3_server.place(), monkeypatch)


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "blobs")


def _put(store: BlobStore, content: bytes) -> str:
    staged = store.stage([content], limit=1 << 30)
    store.store(staged)
    return staged.digest


def _read(store: BlobStore, digest: str) -> bytes:
    with store.open(digest) as file:
        return file.read()


def _copy(source: BlobStore, target: BlobStore) -> CopyResult:
    [*_, done] = copy_all(source, target, before=LATER)
    return done


@pytest.mark.parametrize("back", [False, True], ids=["to S3", "back"])
def test_a_copy_that_was_stopped_goes_on(bucket: BlobStore, directory: DirectoryStore, back: bool) -> None:
    source, target = (bucket, directory) if back else (directory, bucket)
    contents = {_put(source, content): content for content in (b"one", b"two", b"x" * (6 << 20))}
    stopped = copy_all(source, target, before=LATER)
    assert next(stopped).copied == 1
    stopped.close()
    done = _copy(source, target)
    assert (done.copied, done.present, done.corrupt) == (2, 1, 0)
    assert _copy(source, target).present == 3
    assert {digest: _read(target, digest) for digest in target.digests(before=LATER)} == contents


def test_hosts_of_the_old_and_the_new_setting_read_what_either_stores(
    bucket: BlobStore, directory: DirectoryStore
) -> None:
    old, new = MovingStore(directory, bucket), MovingStore(bucket, directory)
    of_old, of_new = _put(old, b"old"), _put(new, b"new")
    for store in (old, new):
        assert (_read(store, of_old), _read(store, of_new)) == (b"old", b"new")
    old.delete(of_new)
    new.delete(of_old)
    for store in (bucket, directory):
        assert list(store.digests(before=LATER)) == []


def test_a_corrupt_archive_is_not_copied(
    bucket: BlobStore, directory: DirectoryStore, tmp_path: Path
) -> None:
    good, bad = _put(directory, b"good"), _put(directory, b"bad")
    (tmp_path / "blobs" / bad[:2] / bad).write_bytes(b"bat")
    done = _copy(directory, bucket)
    assert (done.copied, done.corrupt) == (1, 1)
    assert _read(bucket, good) == b"good"
    with pytest.raises(BlobNotFound):
        bucket.open(bad)


def test_an_archive_that_is_deleted_during_a_copy_is_passed_over(
    bucket: BlobStore, directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, kept = _put(directory, b"gone"), _put(directory, b"kept")
    monkeypatch.setattr(directory, "digests", lambda *, before: iter([gone, kept]))  # noqa: ARG005
    directory.delete(gone)
    done = _copy(directory, bucket)
    assert (done.copied, done.gone) == (1, 1)
