"""Archives and the rows that make them known: quota, races with their removal, crashes."""

import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine

from taskqueue import blobs, retention
from taskqueue.blob_stores.store import BlobStore
from taskqueue.db import database
from taskqueue.errors import BlobNotFound, QuotaExceeded, StorageAway
from tests.support import concurrency
from tests.support.factories import stored_rows
from tests.support.transactions import own_transaction

LIMIT = 10**6


def _keep(
    engine: Engine,
    store: BlobStore,
    content: bytes,
    now: datetime,
    *,
    vo: str = "lhcb",
    quota: int | None = None,
) -> str:
    """What the service does with an upload; a sender repeats what retention has just deleted."""
    staged = store.stage([content], limit=LIMIT)
    try:
        with database.writing(engine) as conn:
            return blobs.store_blob(conn, store, staged, vo=vo, quota=quota, now=now)
    except StorageAway:
        return _keep(engine, store, content, now, vo=vo, quota=quota)
    except QuotaExceeded:
        with database.writing(engine) as conn:
            blobs.remove_file(conn, store, staged.digest)
        raise
    finally:
        store.discard(staged)


@own_transaction
def _remove(conn: Connection, before: datetime, *, vo: str = "lhcb", most: int = 10) -> list[str]:
    """What retention does with the rows of a page of archives."""
    unused, _ = retention.list_unused_blobs(conn, after="", most=10, before={vo: before})
    return retention.remove_blobs(conn, unused[:most], before={vo: before})


def _is_there(store: BlobStore, digest: str) -> bool:
    try:
        store.open(digest).close()
    except BlobNotFound:
        return False
    return True


def test_a_vo_sees_only_what_it_brought_itself(engine: Engine, store: BlobStore, now: datetime) -> None:
    digest = _keep(engine, store, b"secret", now)
    with database.reading(engine) as conn:
        assert blobs.read_size(conn, digest, vo="lhcb") == 6
        with pytest.raises(BlobNotFound):
            blobs.read_size(conn, digest, vo="cms")
        assert blobs.read_quota_used(conn, "lhcb") == 6
        assert blobs.read_quota_used(conn, "cms") == 0


def test_the_same_archive_counts_once(engine: Engine, store: BlobStore, now: datetime) -> None:
    assert _keep(engine, store, b"twice", now, quota=5) == _keep(engine, store, b"twice", now, quota=5)
    with database.reading(engine) as conn:
        assert blobs.read_quota_used(conn, "lhcb") == 5


def test_what_is_over_the_quota_is_refused_and_leaves_nothing(
    engine: Engine, store: BlobStore, now: datetime
) -> None:
    first = _keep(engine, store, b"x" * 60, now, quota=100)
    with pytest.raises(QuotaExceeded, match="lhcb has archives of 60 bytes; 41 more"):
        _keep(engine, store, b"y" * 41, now, quota=100)
    _keep(engine, store, b"y" * 41, now, vo="cms", quota=100)  # others are not concerned
    _keep(engine, store, b"z" * 40, now, quota=100)
    assert _is_there(store, first)
    later = datetime.now(UTC) + timedelta(days=1)
    assert store.sweep(before=later) == 0
    assert len(list(store.digests(before=later))) == 3


def test_many_uploads_at_once_stay_within_the_quota(engine: Engine, store: BlobStore, now: datetime) -> None:
    def upload(number: int) -> bool:
        try:
            _keep(engine, store, bytes([number]) * 30, now, quota=100)
        except QuotaExceeded:
            return False
        return True

    assert sum(concurrency.at_once(6, upload)) == 3
    with database.reading(engine) as conn:
        assert blobs.read_quota_used(conn, "lhcb") == 90


def test_a_transaction_that_fails_after_the_rename_leaves_only_a_file_that_nobody_knows(
    engine: Engine, store: BlobStore, now: datetime
) -> None:
    staged = store.stage([b"orphan"], limit=LIMIT)

    def crash(conn: Connection) -> None:
        blobs.store_blob(conn, store, staged, vo="lhcb", quota=None, now=now)
        raise ConnectionError

    with pytest.raises(ConnectionError), database.writing(engine) as conn:
        crash(conn)
    with database.writing(engine) as conn:
        with pytest.raises(BlobNotFound):
            blobs.read_size(conn, staged.digest, vo="lhcb")
        later = datetime.now(UTC) + timedelta(hours=1)
        [orphan] = store.digests(before=later)
        assert blobs.remove_file(conn, store, orphan)
    assert not _is_there(store, staged.digest)


def test_the_bytes_stay_while_any_vo_has_them(engine: Engine, store: BlobStore, now: datetime) -> None:
    digest = _keep(engine, store, b"shared", now, vo="lhcb")
    _keep(engine, store, b"shared", now, vo="cms")
    later = now + timedelta(days=1)
    assert _remove(engine, later) == [digest]
    with database.writing(engine) as conn:
        assert not blobs.remove_file(conn, store, digest)
        _remove(conn, later, vo="cms")
    with database.writing(engine) as conn:
        assert blobs.remove_file(conn, store, digest)
    assert not _is_there(store, digest)


def test_an_upload_that_waits_for_the_removal_of_the_same_archive_brings_it_back(
    engine: Engine, store: BlobStore, now: datetime
) -> None:
    digest = _keep(engine, store, b"back again", now)
    _remove(engine, now + timedelta(days=1))

    def remove(conn: Connection) -> None:
        assert blobs.remove_file(conn, store, digest)

    assert concurrency.meanwhile(engine, remove, lambda: _keep(engine, store, b"back again", now)) == digest
    assert _is_there(store, digest)


def test_a_removal_that_waits_for_an_upload_of_the_same_archive_leaves_it(
    engine: Engine, store: BlobStore, now: datetime
) -> None:
    digest = _keep(engine, store, b"stays", now)
    _remove(engine, now + timedelta(days=1))
    staged = store.stage([b"stays"], limit=LIMIT)

    def remove() -> bool:
        with database.writing(engine) as conn:
            return blobs.remove_file(conn, store, digest)

    def keep(conn: Connection) -> None:
        blobs.store_blob(conn, store, staged, vo="lhcb", quota=None, now=now)

    assert not concurrency.meanwhile(engine, keep, remove)
    assert _is_there(store, digest)


def test_what_is_known_is_always_there(engine: Engine, store: BlobStore, now: datetime) -> None:
    contents = [bytes([number]) * 10 for number in range(4)]

    def work(number: int) -> None:
        dice = random.Random(number)
        for _ in range(15):
            if number % 2:
                _keep(engine, store, dice.choice(contents), now)
                continue
            gone = _remove(engine, now + timedelta(days=1), most=2)
            for digest in gone:
                with database.writing(engine) as conn:
                    blobs.remove_file(conn, store, digest)

    concurrency.at_once(4, work)
    for content in contents:
        staged = store.stage([content], limit=LIMIT)
        store.discard(staged)
        with database.reading(engine) as conn, suppress(BlobNotFound):
            blobs.read_size(conn, staged.digest, vo="lhcb")
            assert _is_there(store, staged.digest)
        assert _is_there(store, _keep(engine, store, content, now)), "and what went can come again"


def test_an_archive_that_a_new_job_names_is_not_removed_meanwhile(
    engine: Engine, store: BlobStore, now: datetime
) -> None:
    digest = _keep(engine, store, b"sandbox", now)
    late = now + timedelta(days=30)

    def submit(conn: Connection) -> None:
        assert blobs.touch_blob(conn, digest, vo="lhcb", now=late)
        stored_rows.job_ids(conn, late, sandbox=digest)

    def retain() -> list[str]:
        return _remove(engine, late)

    assert concurrency.meanwhile(engine, submit, retain, waits=engine.dialect.name == "sqlite") == []


def test_an_archive_that_a_job_of_one_vo_needs_goes_from_another(
    engine: Engine, store: BlobStore, now: datetime
) -> None:
    digest = _keep(engine, store, b"sandbox", now)
    _keep(engine, store, b"sandbox", now, vo="cms")
    late = now + timedelta(days=30)
    with database.writing(engine) as conn:
        stored_rows.job_ids(conn, now, sandbox=digest)
        unused, _ = retention.list_unused_blobs(conn, after="", most=10, before={"lhcb": late, "cms": late})
        assert sorted(unused) == [("cms", digest), ("lhcb", digest)]
        assert retention.remove_blobs(conn, unused, before={"lhcb": late, "cms": late}) == [digest]
        assert blobs.read_size(conn, digest, vo="lhcb") == 7
        with pytest.raises(BlobNotFound):
            blobs.read_size(conn, digest, vo="cms")


def test_a_removal_does_not_wait_for_a_submission_of_another_vo_with_the_same_archive(
    engine: Engine, store: BlobStore, now: datetime
) -> None:
    """Each could wait for the other."""
    digest, late = _keep(engine, store, b"sandbox", now), now + timedelta(days=30)
    _keep(engine, store, b"sandbox", now, vo="cms")

    def submit(conn: Connection) -> None:
        assert blobs.touch_blob(conn, digest, vo="cms", now=late)

    def retain() -> list[str]:
        before = {"lhcb": late, "cms": late}
        with database.writing(engine) as conn:
            unused, _ = retention.list_unused_blobs(conn, after="", most=10, before=before)
            return retention.remove_blobs(conn, unused, before=before)

    assert concurrency.meanwhile(engine, submit, retain, waits=engine.dialect.name == "sqlite") == [digest]


def test_an_archive_that_is_gone_or_of_others_cannot_be_named(
    engine: Engine, store: BlobStore, now: datetime
) -> None:
    digest = _keep(engine, store, b"sandbox", now)
    with database.writing(engine) as conn:
        assert not blobs.touch_blob(conn, digest, vo="cms", now=now)
        _remove(conn, now + timedelta(days=1))
        assert not blobs.touch_blob(conn, digest, vo="lhcb", now=now)


def test_outputs_have_no_part_in_the_quota_of_sandboxes_and_are_none(
    engine: Engine, store: BlobStore, now: datetime
) -> None:
    staged = store.stage([b"x" * 90], limit=LIMIT)
    with database.writing(engine) as conn:
        blobs.store_output(conn, store, staged, vo="lhcb", replaced=None, now=now)
        assert blobs.read_quota_used(conn, "lhcb") == 0
        assert not blobs.touch_blob(conn, staged.digest, vo="lhcb", now=now)
    _keep(engine, store, b"y" * 50, now, quota=100)
    with pytest.raises(QuotaExceeded):
        _keep(engine, store, b"x" * 90, now, quota=100)
    # Sent as a sandbox as well, it counts as one.
    assert _keep(engine, store, b"x" * 90, now, quota=140) == staged.digest
    with database.writing(engine) as conn:
        assert blobs.read_quota_used(conn, "lhcb") == 140
        assert blobs.touch_blob(conn, staged.digest, vo="lhcb", now=now)
