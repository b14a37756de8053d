"""Places of archives, as settings name them."""

from pathlib import Path

import pytest

from pilotage.cli import settings
from pilotage.cli.settings import InvalidSettings
from taskqueue.blob_stores.place import S3Place


def _place(tmp_path: Path, text: str) -> object:
    return settings.load({}, {"PILOTAGE_HOME": str(tmp_path), "PILOTAGE_BLOBS": text}).blobs


def test_a_place_is_a_path_or_a_bucket(tmp_path: Path) -> None:
    assert _place(tmp_path, "/srv/blobs") == Path("/srv/blobs")
    assert _place(tmp_path, "s3://archives") == S3Place(bucket="archives")
    whole = "s3://archives/pilotage/test/?endpoint=https://s3.example.org:9000&region=garage"
    assert _place(tmp_path, whole) == S3Place(
        bucket="archives",
        prefix="pilotage/test",
        endpoint="https://s3.example.org:9000",
        region="garage",
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://me:hidden@archives", "has credentials"),
        ("s3://archives?endpiont=https://x.org&secret=hidden", "endpiont: there is no such part"),
        ("s3://archives?endpoint=x.org", "should be a URL"),
        ("S3://archives/pilotage", "should be a directory, or s3://bucket/prefix"),
        ("https://me:hidden@s3.example.org/archives", "should be a directory, or s3://bucket/prefix"),
    ],
)
def test_a_wrong_place_is_refused_with_its_setting_and_without_secrets(
    tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(InvalidSettings) as raised:
        _place(tmp_path, text)
    message = str(raised.value)
    assert told in message
    assert "PILOTAGE_BLOBS" in message
    assert "hidden" not in message
