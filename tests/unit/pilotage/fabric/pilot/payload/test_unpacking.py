import bz2
import errno
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotage.fabric.pilot.payload import archives
from pilotage.fabric.pilot.payload.archives import UnsafeArchive

LIMIT = 1 << 20


def file(name: str, content: bytes = b"content", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = mode
    return member, content


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = target
    return member, b""


def special(name: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type = kind
    return member, b""


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for member, content in members:
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "outside" / "root"
    directory.mkdir(parents=True)
    (tmp_path / "outside" / "victim").write_text("untouched")
    return directory


def unpack(data: bytes, root: Path, limit: int = LIMIT) -> None:
    archives.unpack(io.BytesIO(data), root, limit=limit)


def test_files_and_directories_come_out_as_they_were(root: Path) -> None:
    unpack(
        tar(file("run.sh", b"#!/bin/sh\n", 0o755), file("deep/er/data"), special("empty", tarfile.DIRTYPE)),
        root,
    )

    assert (root / "run.sh").read_bytes() == b"#!/bin/sh\n"
    assert os.access(root / "run.sh", os.X_OK)
    assert (root / "deep/er/data").read_bytes() == b"content"
    assert (root / "empty").is_dir()


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_archives_are_read_too(compress: Callable[[bytes], bytes], root: Path) -> None:
    unpack(compress(tar(file("a"))), root)

    assert (root / "a").read_bytes() == b"content"


def test_links_inside_work(root: Path) -> None:
    unpack(tar(file("d/a"), link("d/b", "a"), link("e/c", "../d/a"), link("h", "d/a", tarfile.LNKTYPE)), root)

    assert (root / "d/b").read_bytes() == b"content"
    assert (root / "e/c").read_bytes() == b"content"
    assert (root / "h").read_bytes() == b"content"


HOSTILE = {
    "absolute path": [file("/tmp/evil")],
    "parent": [file("../victim")],
    "parent in the middle": [file("a/../../victim")],
    "absolute link": [link("l", "/etc/passwd")],
    "link to a parent": [link("l", "../victim")],
    "link out of a directory": [link("d/l", "../../victim")],
    "link through a directory": [link("l", "d/../../victim")],
    "link with parents behind names": [link("l", "x/../y")],
    "file through a link": [link("l", "."), file("l/evil")],
    "file through a link to itself": [link("a", "."), link("a/b", "..")],
    "link that gets another meaning": [link("l", "b/.."), link("b", ".")],
    "directory over a link": [link("l", "d"), special("l", tarfile.DIRTYPE)],
    "file over a link": [link("l", "d"), file("l")],
    "file over a file": [file("a"), file("a")],
    "file over a directory": [special("a", tarfile.DIRTYPE), file("a")],
    "directory over a file": [file("a"), file("a/b")],
    "hard link to outside": [link("h", "../victim", tarfile.LNKTYPE)],
    "hard link to an absolute path": [link("h", "/etc/passwd", tarfile.LNKTYPE)],
    "hard link to a link": [link("l", "x"), link("h", "l", tarfile.LNKTYPE)],
    "hard link to nothing": [link("h", "nothing", tarfile.LNKTYPE)],
    "character device": [special("null", tarfile.CHRTYPE)],
    "block device": [special("disk", tarfile.BLKTYPE)],
    "named pipe": [special("pipe", tarfile.FIFOTYPE)],
    "no name": [file(".")],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_wants_to_leave_its_directory_is_refused(
    members: list[tuple[tarfile.TarInfo, bytes]], root: Path
) -> None:
    with pytest.raises(UnsafeArchive):
        unpack(tar(*members), root)

    assert (root.parent / "victim").read_text() == "untouched"
    assert {path.name for path in root.parent.iterdir()} == {"root", "victim"}
    for path in root.rglob("*"):
        assert path.resolve().is_relative_to(root)


def test_no_right_but_the_owners_to_write_comes_out(root: Path) -> None:
    unpack(tar(file("suid", mode=0o6777), file("plain", mode=0o666)), root)

    assert (root / "suid").stat().st_mode & 0o7777 & ~0o055 == 0o700
    assert (root / "plain").stat().st_mode & 0o022 == 0


def test_more_bytes_than_allowed_are_refused_while_they_come(root: Path) -> None:
    bomb = gzip.compress(tar(file("zeros", b"\0" * (64 << 20))))

    with pytest.raises(UnsafeArchive, match="more bytes"):
        unpack(bomb, root)
    assert sum(path.stat().st_size for path in root.iterdir()) <= LIMIT


def comment(size: int) -> bytes:
    """A header that says something about the next member."""
    record = b"%d comment=" % size
    member = tarfile.TarInfo("x")
    member.type, member.size = tarfile.XHDTYPE, size
    return member.tobuf() + record + b"c" * (size - len(record) - 1) + b"\n"


def test_headers_are_bounded_together(root: Path) -> None:
    parts = [comment(15 << 10) + tar(file(str(number)))[:1024] for number in range(400)]
    with pytest.raises(UnsafeArchive, match="headers of more bytes than its members need"):
        unpack(b"".join(parts), root)


def test_members_with_long_names_are_taken(root: Path) -> None:
    names = [f"{'d' * 200}/{'e' * 200}/{number}{'f' * 200}" for number in range(3000)]
    assert archives.unpack(io.BytesIO(tar(*map(file, names))), root, limit=LIMIT) == names


def test_links_are_refused_where_none_are_expected(root: Path) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        archive = io.BytesIO(tar(file(f"a{kind!r}"), link("d/b", f"a{kind!r}", kind)))
        with pytest.raises(UnsafeArchive, match="'d/b' is a link: only files and directories are allowed"):
            archives.unpack(archive, root, limit=LIMIT, links=False)


def test_too_many_members_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_MOST_MEMBERS", 3)

    with pytest.raises(UnsafeArchive, match="more than 3"):
        unpack(tar(*(file(f"f{number}") for number in range(4))), root)


def test_directories_that_names_imply_count_as_members(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_MOST_MEMBERS", 10)
    for name in ("flat", "deep"):
        (root / name).mkdir()
    unpack(tar(*(file(f"a/b/c/f{number}") for number in range(7))), root / "flat")

    with pytest.raises(UnsafeArchive, match="more than 10 members and directories"):
        unpack(tar(*(file(f"{number}/a/b/c/f") for number in range(3))), root / "deep")
    assert len(list((root / "deep").rglob("*"))) <= 10


#: Headers that are about headers, each with the name of the next one.
NAMED = special("././@LongLink", tarfile.GNUTYPE_LONGNAME)[0]
NAMED.size = 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no archive at all" * 100,
        tar(file("a", b"x" * 5000))[:2000],
        gzip.compress(tar(file("a", os.urandom(5000))))[:-2000],
        b"\x1f\x8b" + b"junk" * 100,
        b"BZhjunk" * 100,
        b"\xfd7zXZ\x00junk" * 100,
        tar(file("a"))[:100] + b"\xff" * 412,
        (NAMED.tobuf(tarfile.GNU_FORMAT) + b"a\0".ljust(512, b"\0")) * 3000,
    ],
)
def test_a_damaged_archive_is_refused(data: bytes, root: Path) -> None:
    with pytest.raises(UnsafeArchive):
        unpack(data, root)


def test_a_full_disk_is_not_the_fault_of_the_archive(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="No space left"):
        unpack(tar(file("a")), root)


def test_a_tree_deeper_than_python_recurses_is_refused(tmp_path: Path) -> None:
    archive = tar(file("d/" * 1200 + "f"))

    with pytest.raises(UnsafeArchive, match="more than 100 directories deep"):
        archives.unpack(io.BytesIO(archive), tmp_path, limit=LIMIT)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rest", [b"?" * 100, b"?" * 512, b"?" * 512 + bytes(10240)])
def test_an_archive_that_is_damaged_between_its_members_is_refused(rest: bytes, root: Path) -> None:
    first = tar(file("a"))[:1024]
    with pytest.raises(UnsafeArchive, match="damaged"):
        unpack(first + rest, root)


def test_an_archive_may_lack_its_end(root: Path) -> None:
    unpack(tar(file("a"))[:1024], root)
    assert (root / "a").read_bytes() == b"content"


def test_what_lies_as_deep_as_pilots_pack_is_unpacked(tmp_path: Path) -> None:
    left, here = tmp_path / "left", tmp_path / "here"
    deepest = left.joinpath(*["d"] * 100)
    deepest.mkdir(parents=True)
    (deepest / "file").write_text("x")
    here.mkdir()
    archive = io.BytesIO()
    assert archives.pack(left, ["d"], archive, limit=LIMIT).files == 1
    assert len(archives.unpack(archive, here, limit=LIMIT)) == 1
