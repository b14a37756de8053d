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

from taskqueue import blobs
from taskqueue.blob_stores import directory
from taskqueue.blob_stores.directory import DirectoryStore
from taskqueue.errors import BlobNotFound, StorageAway, StorageFull

CHUNKS = [b"a" * 1000, b"", b"b" * 500]
CONTENT = b"".join(CHUNKS)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
LIMIT = 10_000


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "blobs")


def _files(store: DirectoryStore) -> list[Path]:
    return [path for path in store._path.rglob("*") if path.is_file()]


def _read(store: DirectoryStore, digest: str) -> bytes:
    with store.open(digest) as file:
        return file.read()


def test_what_is_only_staged_is_not_there(store: DirectoryStore) -> None:
    staged = store.stage(CHUNKS, limit=LIMIT)
    with pytest.raises(BlobNotFound, match=DIGEST):
        store.open(DIGEST)
    assert list(store.digests(before=datetime.now(UTC) + timedelta(hours=1))) == []
    store.discard(staged)
    assert _files(store) == []


def test_a_full_disk_loses_nothing_and_says_so(store: DirectoryStore) -> None:
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
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFull):
        store.stage(CHUNKS, limit=LIMIT)
    assert _files(store) == []


def test_another_fault_of_the_disk_is_not_taken_for_a_full_one(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StorageAway, match="stored or read now: broken") as raised:
        store.stage(CHUNKS, limit=LIMIT)
    assert not isinstance(raised.value, StorageFull)
    assert _files(store) == []


def test_a_directory_that_cannot_be_used_is_no_error_of_the_program(
    store: DirectoryStore, tmp_path: Path
) -> None:
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


def test_the_bytes_are_on_disk_before_the_name_is(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_after_a_crash_between_writing_and_renaming_the_rest_is_swept(store: DirectoryStore) -> None:
    left = store.stage(CHUNKS, limit=LIMIT)  # and the process dies here
    later = datetime.now(UTC) + timedelta(hours=1)
    assert store.sweep(before=datetime.now(UTC) - timedelta(hours=1)) == 0
    store.store(store.stage([b"other"], limit=LIMIT))
    assert store.sweep(before=later) == 1
    assert left.name not in {path.name for path in _files(store)}
    assert len(_files(store)) == 1


def test_outputs_may_use_a_part_of_the_space_that_new_sandboxes_and_jobs_leave_free(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: system)  # whatever others write and delete meanwhile
    monkeypatch.setattr(directory, "_FREE_SHARE", 1.5)
    monkeypatch.setattr(directory, "_FREE_BYTES", system.f_bavail * system.f_frsize * 1.5)
    with pytest.raises(StorageFull):
        store.stage([b"x"], limit=LIMIT)
    with pytest.raises(StorageFull):
        store.check_space()
    staged = store.stage([b"x"], limit=LIMIT, leave=blobs.OUTPUTS_LEAVE)
    store.discard(staged)
    monkeypatch.setattr(directory, "_FREE_BYTES", system.f_bavail * system.f_frsize * 4)
    monkeypatch.setattr(directory, "_FREE_SHARE", 4.0)
    with pytest.raises(StorageFull):
        store.stage([b"x"], limit=LIMIT, leave=blobs.OUTPUTS_LEAVE)


def test_below_the_space_that_stays_free_nothing_is_staged(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_LOOK_EVERY", 10)
    received = []

    def send() -> Iterator[bytes]:
        yield b"x" * 20
        received.append(1)
        monkeypatch.setattr(directory, "_FREE_SHARE", 1.0)  # all of the file system, as if others filled it
        monkeypatch.setattr(directory, "_FREE_BYTES", 2**63)
        yield b"x" * 20
        received.append(2)

    with pytest.raises(StorageFull, match="no space left"):
        store.stage(send(), limit=LIMIT)
    assert received == [1]
    with pytest.raises(StorageFull):
        store.stage([b"x"], limit=LIMIT)
    assert store.sweep(before=datetime.now(UTC) + timedelta(days=1)) == 0


def test_what_is_no_archive_is_not_listed(store: DirectoryStore, tmp_path: Path) -> None:
    """Such as a file of a network file system: retention would fail at its name."""
    (tmp_path / "blobs" / "ab").mkdir()
    (tmp_path / "blobs" / "ab" / ".nfs0001").touch()
    assert list(store.digests(before=datetime.now(UTC) + timedelta(hours=1))) == []
