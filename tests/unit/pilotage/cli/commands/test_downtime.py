"""`pilotage downtime`: feeds and times that cannot be read are refused by name."""

import io
import re
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from pilotage.cli import options
from pilotage.cli.commands import downtime
from pilotage.cli.errors import CommandRefused, WrongUsage


def test_a_feed_in_another_encoding_is_read_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "feed.xml"
    file.write_bytes("Kühlung".encode("latin-1"))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(file.read_bytes())))
    assert [downtime._fetch(each) for each in (str(file), "-")] == ["K\ufffdhlung"] * 2


def test_a_feed_that_is_too_long_is_refused_and_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downtime, "MOST", 1 << 20)
    file = tmp_path / "feed.xml"
    file.write_bytes(bytes((1 << 20) + 1))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(file.read_bytes())))
    for each in (str(file), "-"):
        with pytest.raises(WrongUsage, match="more than 1 MB"):
            downtime._fetch(each)


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/a b", "http://[::1/feed", "http://a.example:b/"])
def test_an_address_that_cannot_be_read_is_named(address: str) -> None:
    with pytest.raises(CommandRefused, match=re.escape(f"{address}: ")):
        downtime._fetch(address)


def test_a_time_before_all_calendars_is_refused() -> None:
    with pytest.raises(WrongUsage, match=r"^--from: 0001-01-01 00:00:00 is no time"):
        options.to_iso(datetime(1, 1, 1), "--from")  # noqa: DTZ001
    assert datetime.fromisoformat(options.to_iso(datetime(2030, 5, 6, 9), "--from")).tzinfo  # noqa: DTZ001
