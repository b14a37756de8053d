"""An operator's view of archives in S3: the check of the installation, and the copy to another store."""

import json
import os
import time
from pathlib import Path

import pytest

from pilotage.cli import doctor, settings
from pilotage.cli.doctor import Finding, Health
from taskqueue.blob_stores.directory import DirectoryStore
from taskqueue.blob_stores.place import S3Place
from tests.support.commands import Run, run
from tests.support.servers.s3_server import S3Server, make_store

__all__ = ("run",)


def _url(place: S3Place) -> str:
    return f"s3://{place.bucket}/{place.prefix}?endpoint={place.endpoint}&region={place.region}"


def _check(home: Path, **variables: str) -> list[Finding]:
    given = {"PILOTAGE_HOME": str(home), **variables}
    return [each for each in doctor.check_files(settings.load({}, given)) if "blobs" in each.subject]


def test_archives_are_copied_once_and_the_exit_status_tells_of_corrupt_ones(
    run: Run, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, directory = s3_server.place(), DirectoryStore(tmp_path / "blobs")
    bucket = make_store(place, monkeypatch)
    digests = []
    for content in (b"one", b"another"):
        staged = directory.stage([content], limit=100)
        directory.store(staged)
        digests.append(staged.digest)
    in_a_minute = time.time() + 60  # by the clock of a file server
    os.utime(tmp_path / "blobs" / digests[0][:2] / digests[0], (in_a_minute, in_a_minute))
    monkeypatch.setenv("PILOTAGE_HOME", str(tmp_path))
    monkeypatch.setenv("PILOTAGE_BLOBS", _url(place))
    status, _, said = run("blobs", "copy")
    assert (status, "other_blobs" in said) == (1, True)
    monkeypatch.setenv("PILOTAGE_OTHER_BLOBS", str(tmp_path / "blobs"))
    for copied, present in ((2, 0), (0, 2)):
        status, out, _ = run("blobs", "copy", "--json")
        done = json.loads(out)
        assert (status, done["copied"], done["present"], done["corrupt"]) == (0, copied, present, 0)
    assert bucket.open(digests[0]).read() == b"one"
    bucket.delete(digests[0])
    (tmp_path / "blobs" / digests[0][:2] / digests[0]).write_bytes(b"damaged")
    status, out, _ = run("blobs", "copy")
    assert (status, "1 are corrupt" in out) == (1, True)


def test_a_bucket_is_probed_and_left_as_it_was(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = s3_server.place()
    make_store(place, monkeypatch)
    (tmp_path / "blobs").mkdir()
    found = _check(tmp_path, PILOTAGE_BLOBS=_url(place), PILOTAGE_OTHER_BLOBS=str(tmp_path / "blobs"))
    assert [(each.subject, each.health) for each in found] == [
        ("blobs", Health.GOOD),
        ("other blobs", Health.GOOD),
    ]
    assert s3_server.list_keys(place) == []


def test_a_bucket_that_is_missing_is_bad(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(s3_server.place(), monkeypatch)
    url = f"s3://nowhere?endpoint={s3_server.url}&region=us-east-1"
    [finding] = _check(tmp_path, PILOTAGE_BLOBS=url)
    assert finding.health is Health.BAD
    assert "NoSuchBucket" in finding.message
