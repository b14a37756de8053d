"""Headers of archives that take any time or memory are refused by all that reads archives of others."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from pilotage.fabric.pilot.payload import archives as unpacking
from pilotage.fabric.pilot.payload.archives import UnsafeArchive
from pilotage.service.queries import archives as listing


def extended(content: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """An extended header."""
    header = tarfile.TarInfo("header")
    header.type, header.size = kind, len(content)
    return header.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)


def records(values: Mapping[str, str]) -> bytes:
    """Records of a pax header."""
    whole = b""
    for name, value in values.items():
        body = f" {name}={value}\n".encode()
        length = len(body) + 2 if len(body) < 98 else len(body) + (3 if len(body) < 997 else 4)
        whole += str(length).encode() + body
    return whole


MEMBER = tarfile.TarInfo("member").tobuf()
END = bytes(1024)
SPARSE = tarfile.TarInfo("sparse")
SPARSE.type = tarfile.GNUTYPE_SPARSE
GIANT, LONG_NAME = tarfile.TarInfo("giant"), tarfile.TarInfo("././@LongLink")
GIANT.type, GIANT.size = tarfile.XHDTYPE, 2 << 30
LONG_NAME.type, LONG_NAME.size = tarfile.GNUTYPE_LONGNAME, 8 << 30
HOSTILE = {
    "digits": extended(b"1" * 10_000),
    "digits in a value": extended(records({"path": "1" * 900})),
    "digits for all members": extended(b"1" * 10_000, tarfile.XGLTYPE),
    "digits of Solaris": extended(b"1" * 10_000, tarfile.SOLARIS_XHDTYPE),
    "a long header": extended(records({"comment": "x" * 900}) * 20),
    "a long name": extended(b"x" * 20_000, tarfile.GNUTYPE_LONGNAME),
    "a header of gigabytes": GIANT.tobuf(tarfile.GNU_FORMAT),
    "a name of gigabytes": LONG_NAME.tobuf(tarfile.GNU_FORMAT),
    "a long target": extended(b"x" * 20_000, tarfile.GNUTYPE_LONGLINK),
    "a record without an end": extended(b"999 path=x\n"),
    "a record without length": extended(b"0 path=x\n"),
    "a record without value": extended(b"7 path\n"),
    "far equals signs": extended(b"9 9 9 9 9 " * 900 + b"="),
    "a map of a sparse file": extended(records({"GNU.sparse.major": "1", "GNU.sparse.minor": "0"})),
    "a sparse file": SPARSE.tobuf(tarfile.GNU_FORMAT),
    "a size of thousands of digits": extended(records({"size": "9" * 900})),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
@pytest.mark.parametrize("is_first", [True, False])
def test_headers_that_take_any_time_are_refused(name: str, tmp_path: Path, *, is_first: bool) -> None:
    archive = io.BytesIO((b"" if is_first else MEMBER) + HOSTILE[name] + MEMBER + END)
    words = "has a header of|has an extended header that is damaged|has a sparse file"
    with pytest.raises(UnsafeArchive, match=words):
        unpacking.unpack(archive, tmp_path, limit=1000)
    archive.seek(0)
    found = listing.read(archive)
    assert [each.name for each in found.members] == ([] if is_first else ["member"])
    assert found.trouble is not None
    assert found.trouble.startswith("it cannot be read to its end: has a")


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize(
    "name", ["d/" * 20 + "x" * 200, "ü" * 100, "1" * 100, "名" * 60 + "1" * 50, "a=b\nc 12 path=d"]
)
def test_names_of_ordinary_archives_are_read(form: int, name: str, tmp_path: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=form) as made:
        member = tarfile.TarInfo(name)
        member.mtime = 1_774_699_200.123456789  # type: ignore[assignment] # which pax has in a record
        made.addfile(member)
    archive.seek(0)
    assert [each.name for each in listing.read(archive).members] == [name]
    assert unpacking.unpack(archive, tmp_path, limit=1000) == [name]
