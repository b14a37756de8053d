"""The directory of archives: nothing half-written is ever in its place, and a full disk loses nothing."""

import errno
import hashlib
import os
import resource
import shutil
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from taskqueue.blobs import BlobStore
from taskqueue.errors import BlobNotFound, StorageAway, StorageFull, TooLarge

CHUNKS = [b"a" * 1000, b"", b"b" * 500]
CONTENT = b"".join(CHUNKS)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
LIMIT = 10_000


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def _files(store: BlobStore) -> list[Path]:
    return [path for path in store._path.rglob("*") if path.is_file()]


def _read(store: BlobStore, digest: str) -> bytes:
    with store.open(digest) as file:
        return file.read()


def test_what_is_kept_is_read_back_under_its_digest(store: BlobStore) -> None:
    staged = store.stage(CHUNKS, limit=LIMIT)
    assert (staged.digest, staged.size) == (DIGEST, len(CONTENT))
    store.store(staged)
    assert _read(store, DIGEST) == CONTENT
    assert len(_files(store)) == 1


def test_what_is_only_staged_is_not_there(store: BlobStore) -> None:
    staged = store.stage(CHUNKS, limit=LIMIT)
    with pytest.raises(BlobNotFound, match=DIGEST):
        store.open(DIGEST)
    store.discard(staged)
    assert _files(store) == []


def test_the_same_archive_twice_is_there_once(store: BlobStore) -> None:
    first, second = store.stage(CHUNKS, limit=LIMIT), store.stage(CHUNKS, limit=LIMIT)
    store.store(first)
    store.store(second)
    store.discard(second)
    assert _read(store, DIGEST) == CONTENT
    assert len(_files(store)) == 1


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
    assert _files(store) == []


def test_an_archive_of_exactly_the_limit_is_taken(store: BlobStore) -> None:
    assert store.stage([b"x" * LIMIT], limit=LIMIT).size == LIMIT
    assert store.stage([], limit=0).size == 0


def test_a_sender_that_goes_away_leaves_nothing(store: BlobStore) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        store.stage(broken(), limit=LIMIT)
    assert _files(store) == []


def test_a_full_disk_loses_nothing_and_says_so(store: BlobStore) -> None:
    """The process's own limit of a file's size, which fails a real write as a full disk does."""
    kept = store.stage(CHUNKS, limit=LIMIT)
    store.store(kept)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(StorageFull, match="no space"):
            store.stage([b"y" * 3000] * 100, limit=10**9)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert _read(store, DIGEST) == CONTENT
    assert len(_files(store)) == 1
    store.store(store.stage([b"y" * 30_000], limit=10**9))  # and when there is room again it goes on


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_only_at_the_fsync_is_noticed(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFull):
        store.stage(CHUNKS, limit=LIMIT)
    assert _files(store) == []


def test_another_fault_of_the_disk_is_not_taken_for_a_full_one(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StorageAway, match="stored or read now: broken") as raised:
        store.stage(CHUNKS, limit=LIMIT)
    assert not isinstance(raised.value, StorageFull)
    assert _files(store) == []


def test_a_directory_that_cannot_be_used_is_no_error_of_the_program(store: BlobStore, tmp_path: Path) -> None:
    """As one that became read-only, or whose server is away."""
    staged = store.stage(CHUNKS, limit=LIMIT)
    (tmp_path / "blobs" / DIGEST[:2]).write_text("no directory")
    uses = (lambda: store.store(staged), lambda: store.open(DIGEST), lambda: store.delete(DIGEST))
    for use in uses:
        with pytest.raises(StorageAway):
            use()
    shutil.rmtree(tmp_path / "blobs")
    (tmp_path / "blobs").write_text("no directory")
    store.discard(staged)
    for use in (
        *uses,
        lambda: store.stage(CHUNKS, limit=LIMIT),
        lambda: store.sweep(before=datetime.now(UTC)),
    ):
        with pytest.raises(StorageAway):
            use()


def test_the_bytes_are_on_disk_before_the_name_is(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        done.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def noted_replace(path: Path, target: Path) -> Path:
        done.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    store.store(store.stage(CHUNKS, limit=LIMIT))
    assert done == ["file", "directory", "rename", "directory"]


def test_after_a_crash_between_writing_and_renaming_the_rest_is_swept(store: BlobStore) -> None:
    left = store.stage(CHUNKS, limit=LIMIT)  # and the process dies here
    later = datetime.now(UTC) + timedelta(hours=1)
    assert store.sweep(before=datetime.now(UTC) - timedelta(hours=1)) == 0
    store.store(store.stage([b"other"], limit=LIMIT))
    assert store.sweep(before=later) == 1
    assert left.name not in {path.name for path in _files(store)}
    assert len(_files(store)) == 1


def test_archives_are_listed_by_age(store: BlobStore) -> None:
    store.store(store.stage(CHUNKS, limit=LIMIT))
    store.stage([b"only staged"], limit=LIMIT)
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
