"""`pilotage downtime`: feeds and times that cannot be read are refused by name."""

import io
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from pilotage.cli import reason_options
from pilotage.cli.application import main
from pilotage.cli.commands import downtime
from pilotage.cli.errors import CommandRefused, WrongUsage

#: What options for a time allow.
T = "2026-05-04, '2026-05-04 12:00' (local time without a zone) or 2026-05-04T12:00:00Z"


def test_a_feed_keeps_its_encoding_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "feed.xml"
    file.write_bytes("Kühlung".encode("latin-1"))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(file.read_bytes())))
    assert [downtime._fetch(each) for each in (str(file), "-")] == ["Kühlung".encode("latin-1")] * 2


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


@pytest.mark.parametrize(
    ("written", "read"),
    [("2026-5-4", "2026-05-04T00:00:00"), ("2026-5-4 1:02:3", "2026-05-04T01:02:03")],
)
def test_times_without_leading_zeros_are_taken_as_by_1_0(written: str, read: str) -> None:
    assert (
        reason_options._convert_local_time(written) == datetime.fromisoformat(read).astimezone().isoformat()
    )


@pytest.mark.parametrize(
    ("words", "option", "seen", "allowed"),
    [
        (
            ("downtime", "add", "LCG.A.org", "--reason", "x", "--until", "2030-01-01", "--from"),
            "--from",
            each,
            T,
        )
        for each in ("in 2h", "2h", "tomorrow", "12:00", "0001-01-01", "1777896000", "")
    ]
    + [
        (("site", "ban", "LCG.A.org", "--reason", "x", "--until"), "--until", "in 2h", T),
        (("config", "set", "A=1", "--for"), "--for", "soon", "90s, 30m, 6h, 2d"),
        (("replay", "--within"), "--within", "in 2h", "90s, 30m, 6h, 2d"),
    ],
)
def test_a_time_in_another_form_is_refused_with_the_forms_that_are_allowed(
    words: Sequence[str], option: str, seen: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main([*words, seen])
    error = " ".join(capsys.readouterr().err.split())
    assert f"Invalid value for '{option}': {seen!r} is not a" in error
    assert f"; allowed are {allowed}" in error


@pytest.mark.parametrize("typed", ["2030-05-06", "2030-05-06 09:00", "2030-05-06T09:00:00", " 20300506"])
def test_a_time_without_a_zone_is_local(typed: str) -> None:
    convert = reason_options.time_option("Begin", "--from").callback
    assert convert is not None
    sent = datetime.fromisoformat(str(convert(typed)))
    assert sent == datetime.fromisoformat(typed.strip()).astimezone()
    assert sent.tzinfo is not None
    assert convert("2030-05-06T09:00:00Z") == convert("2030-05-06T11:00:00+02:00")
