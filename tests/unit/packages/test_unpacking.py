"""What a job of Snakemake made is unpacked below the directory of the workflow, also by an older Python."""

import importlib.util
import io
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[3] / "packages/snakemake/snakemake_executor_plugin_pilotage/unpacking.py"


@pytest.fixture(scope="module")
def unpacking() -> ModuleType:
    """The module by itself: its package needs Snakemake."""
    spec = importlib.util.spec_from_file_location("unpacking", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["filter", "no filter"], autouse=True)
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python with the filter `data`, and one without."""
    if request.param == "no filter":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no filter")


def _pack(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as archive:
        for member in members:
            member.size = 3 if member.isreg() else 0
            archive.addfile(member, io.BytesIO(b"abc"))
    return path


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mtime, member.mode = kind, target, 1_000_000_000, 0o744
    return member


def test_files_and_directories_are_unpacked(
    unpacking: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = [_member("made", tarfile.DIRTYPE), _member("made/115.txt"), _member("new/fit.txt")]
    unpacking.unpack(_pack(tmp_path / "outputs.tar", *made))
    assert (tmp_path / "made/115.txt").read_bytes() == (tmp_path / "new/fit.txt").read_bytes() == b"abc"
    found = (tmp_path / "made/115.txt").stat()
    assert (found.st_mtime, found.st_mode & 0o777) == (1_000_000_000, 0o744)


@pytest.mark.parametrize(
    "member",
    [
        _member("../outside"),
        _member("link", tarfile.SYMTYPE, "../outside"),
        _member("device", tarfile.FIFOTYPE),
    ],
    ids=lambda member: member.name,
)
def test_what_would_lie_elsewhere_is_refused(
    unpacking: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: tarfile.TarInfo
) -> None:
    inside = tmp_path / "workflow"
    inside.mkdir()
    monkeypatch.chdir(inside)
    with pytest.raises(tarfile.TarError):
        unpacking.unpack(_pack(tmp_path / "outputs.tar", member))
    assert list(inside.iterdir()) == []
    assert [each.name for each in tmp_path.iterdir() if each != inside] == ["outputs.tar"]
