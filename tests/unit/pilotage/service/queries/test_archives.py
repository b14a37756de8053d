"""What hostile and ordinary archives hold is told, within bounds."""

import asyncio
import gzip
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cs_config.options import bounds
from pilotage.service.http_errors import SenderSilent
from pilotage.service.queries import archives
from pilotage.service.queries.archives import HEAD, ArchiveListing, ArchiveMember
from taskqueue.blob_stores.directory import DirectoryStore
from tests.support.factories import archives as tests_archives


def _read(archive: bytes) -> ArchiveListing:
    return archives.read(io.BytesIO(archive))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_files_are_listed_with_the_beginning_of_their_text(pack: "type[bytes]") -> None:
    found = _read(pack(tests_archives.tar({"std.out": b"hello\n", "data.root": b"\0\1\2", "empty": b""})))
    assert found.members == [
        ArchiveMember(name="std.out", size=6, head="hello\n"),
        ArchiveMember(name="data.root", size=3, head=None),
        ArchiveMember(name="empty", size=0, head=""),
    ]
    assert found.trouble is None


def test_of_a_long_text_only_the_beginning_is_shown_up_to_a_whole_character() -> None:
    text = ("x" + "ä" * HEAD).encode()
    [member] = _read(tests_archives.tar({"log": text})).members
    assert member.head == "x" + "ä" * (HEAD // 2 - 1)
    assert not member.is_whole
    assert member.size == len(text)


def test_what_unpacks_to_gigabytes_is_looked_at_no_further_than_allowed() -> None:
    files = {"first": b"1"} | {f"zeros{n}": bytes(20 << 20) for n in range(2)}
    found = _read(gzip.compress(tests_archives.tar(files), compresslevel=1))
    assert [member.name for member in found.members][:1] == ["first"]
    assert found.trouble == "only its first 32 MB were looked at"


def test_of_very_many_files_the_first_are_listed() -> None:
    found = _read(tests_archives.tar({f"f{n}": b"" for n in range(archives.MOST_MEMBERS + 5)}))
    assert len(found.members) == archives.MOST_MEMBERS
    assert found.trouble is not None
    assert "first 1000" in found.trouble


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive at all",
        b"\x1f\x8b broken",
        gzip.compress(tests_archives.tar({"a": b"1" * 9000}))[:-40],
    ],
    ids=["empty", "text", "broken", "cut off"],
)
def test_what_is_no_whole_archive_is_said_to_be_none(content: bytes) -> None:
    assert _read(content).trouble is not None


def test_headers_that_are_about_headers_end_the_look_and_not_the_service() -> None:
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 2
    found = _read((name.tobuf(tarfile.GNU_FORMAT) + b"a\0".ljust(512, b"\0")) * 3000)
    assert not found.members
    assert found.trouble is not None
    assert "nested too deeply" in found.trouble


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_name_that_is_no_text_can_be_sent_all_the_same(form: int) -> None:
    header = tarfile.TarInfo("log-\udcff.txt").tobuf(form, encoding="utf-8", errors="surrogateescape")
    [member] = _read(header + bytes(1024)).members
    assert member.name.encode().startswith(b"log-")
    assert member.name.endswith(".txt")


def test_a_sender_whose_uploads_begin_anew_has_the_patience_that_it_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    async def fall_silent() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(3600)

    async def send_all() -> AsyncIterator[bytes]:
        yield b"all"

    async def send(uploads: archives.Uploads, body: AsyncIterator[bytes]) -> None:
        request: Any = SimpleNamespace(scope={"headers": []}, stream=lambda: body)
        store.discard(await uploads.receive(request, "eve", vo="a", limit=100))

    async def check() -> None:
        uploads = archives.Uploads(store)
        monkeypatch.setattr(bounds, "SENDER_PATIENCE", 0.01)
        with pytest.raises(SenderSilent):
            await send(uploads, fall_silent())
        monkeypatch.setattr(bounds, "SENDER_PATIENCE", 1000.0)
        assert archives._LEAST_PATIENCE <= uploads._patience_with("eve").seconds < 500
        assert uploads._patience_with("ada").seconds == 1000
        await send(uploads, send_all())
        assert uploads._patience_with("eve").seconds == 1000

    store = DirectoryStore(tmp_path / "blobs")
    asyncio.run(check())
