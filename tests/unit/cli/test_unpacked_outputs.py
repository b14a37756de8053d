import gzip
import io
import tarfile
from pathlib import Path

import pytest

from pilotage.cli import job_output
from pilotage.cli.failures import Refused


class Outputs:
    """A service whose output archives are given."""

    def __init__(self, *members: tuple[tarfile.TarInfo, bytes]) -> None:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for member, content in members:
                tar.addfile(member, io.BytesIO(content))
        self._archive = gzip.compress(stream.getvalue())

    def output(self, _job_id: int, stream: io.BytesIO) -> None:
        stream.write(self._archive)


def file(name: str, size: int = 3, **about: object) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = size
    for key, value in about.items():
        setattr(member, key, value)
    return member, b"x" * size


def unpack(outputs: Outputs, target: Path, most: int = 1 << 20) -> list[Path]:
    return job_output._unpack(outputs, 7, target, most=most)  # type: ignore[arg-type]


def test_an_output_is_unpacked_and_again_over_itself(tmp_path: Path):
    outputs = Outputs(file("a"), file("d/b"))
    for _ in range(2):
        assert unpack(outputs, tmp_path / "7") == [tmp_path / "7" / "a", tmp_path / "7" / "d" / "b"]


def test_a_path_from_the_root_is_one_in_the_directory_and_so_it_is_told(tmp_path: Path):
    assert unpack(Outputs(file("//etc/passwd")), tmp_path / "7") == [tmp_path / "7" / "etc" / "passwd"]


def test_an_output_that_would_fill_the_disk_is_refused(tmp_path: Path):
    with pytest.raises(Refused, match=r"job 7: .*unpacks to more than 1000 bytes"):
        unpack(Outputs(file("a", 600), file("b", 600)), tmp_path / "7", most=1000)
    assert not (tmp_path / "7" / "b").exists()


@pytest.mark.parametrize(
    "member",
    [
        file("../out"),
        file("link", 0, type=tarfile.SYMTYPE, linkname="../../etc"),
        file("hard", 0, type=tarfile.LNKTYPE, linkname="/etc/passwd"),
        file("device", 0, type=tarfile.CHRTYPE),
        file("pipe", 0, type=tarfile.FIFOTYPE),
    ],
)
def test_what_leaves_its_directory_or_is_no_file_is_refused(
    member: tuple[tarfile.TarInfo, bytes], tmp_path: Path
):
    with pytest.raises(Refused, match="job 7"):
        unpack(Outputs(member), tmp_path / "home" / "7")
    assert [each.name for each in tmp_path.rglob("*")] == ["home", "7"]


def test_headers_that_are_about_headers_are_refused(tmp_path: Path):
    outputs = Outputs()
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 2
    outputs._archive = (name.tobuf(tarfile.GNU_FORMAT) + b"a\0".ljust(512, b"\0")) * 3000
    with pytest.raises(Refused, match=r"job 7: .*nested too deeply"):
        unpack(outputs, tmp_path / "7")


def test_a_name_that_is_no_text_is_shown_all_the_same(tmp_path: Path):
    [path] = unpack(Outputs(file("log-\udcff")), tmp_path / "7")
    assert path.exists()
    assert job_output._shown(path).endswith(r"/log-\xff")
