import io
import os
import tarfile
from pathlib import Path

import pytest

from pilotage.fabric.pilot.payload import archives
from pilotage.fabric.pilot.payload.archives import PackedOutput


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "outside" / "root"
    directory.mkdir(parents=True)
    (tmp_path / "outside" / "secret").write_text("secret")
    (directory / "std.out").write_text("output")
    return directory


def pack(root: Path, *wanted: str, limit: int = 1 << 20) -> tuple[dict[str, bytes], PackedOutput]:
    archive = io.BytesIO()
    packed = archives.pack(root, wanted, archive, limit=limit)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as members:
        found = {member.name: members.extractfile(member) for member in members}
        return {name: content.read() for name, content in found.items() if content}, packed


def test_files_are_packed_under_their_names(root: Path) -> None:
    (root / "deep").mkdir()
    (root / "deep/x.root").write_bytes(b"x")

    files, packed = pack(root, "std.out", "deep/x.root")

    assert files == {"std.out": b"output", "deep/x.root": b"x"}
    assert (packed.files, packed.size) == (2, 7)


def test_patterns_stay_in_their_directory(root: Path) -> None:
    for name in ("a.root", "b.root", ".hidden.root", "sub/c.root"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(name)

    assert set(pack(root, "*.root")[0]) == {"a.root", "b.root"}
    assert set(pack(root, "**/*.root")[0]) == {"a.root", "b.root", "sub/c.root"}
    assert set(pack(root, "?.root", ".h*")[0]) == {"a.root", "b.root", ".hidden.root"}


def test_a_directory_is_packed_with_all_that_is_in_it(root: Path) -> None:
    (root / "logs/old").mkdir(parents=True)
    (root / "logs/a").write_text("a")
    (root / "logs/old/b").write_text("b")

    assert set(pack(root, "logs")[0]) == {"logs/a", "logs/old/b"}
    assert set(pack(root, "l*")[0]) == {"logs/a", "logs/old/b"}


def test_a_file_with_a_sign_in_its_name_is_found_by_its_name(root: Path) -> None:
    (root / "a[1].txt").write_text("x")

    assert set(pack(root, "a[1].txt")[0]) == {"a[1].txt"}


def test_nothing_is_packed_twice(root: Path) -> None:
    assert pack(root, "std.out", "std.*", "./std.out")[1].files == 1


def test_what_is_missing_is_told(root: Path) -> None:
    assert pack(root, "nothing", "no*")[1].missing == ["nothing", "no*"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "a/../../secret", "\0"])
def test_names_that_lead_out_are_refused(name: str, root: Path) -> None:
    files, packed = pack(root, name)

    assert files == {}
    assert packed.refused == [name]


def test_links_are_followed_inside_and_refused_outside(root: Path) -> None:
    (root / "inside").symlink_to("std.out")
    (root / "outside").symlink_to("../secret")
    (root / "absolute").symlink_to("/etc/passwd")
    (root / "directory").symlink_to("/etc")
    (root / "dangling").symlink_to("nothing")
    (root / "loop").symlink_to("loop")

    files, packed = pack(
        root, "inside", "outside", "absolute", "directory", "directory/passwd", "dangling", "loop"
    )

    assert files == {"inside": b"output"}
    assert packed.refused == ["outside", "absolute", "directory", "directory/passwd", "dangling", "loop"]


def test_patterns_do_not_follow_links_to_directories(root: Path) -> None:
    (root / "etc").symlink_to("/etc")

    files, _ = pack(root, "etc/*", "**/passwd", "**")

    assert files == {"std.out": b"output"}


def test_a_pipe_does_not_block_us(root: Path) -> None:
    os.mkfifo(root / "pipe")

    files, packed = pack(root, "pipe", "std.out")

    assert files == {"std.out": b"output"}
    assert packed.refused == ["pipe"]


def test_what_does_not_fit_stays_behind_and_is_told(root: Path) -> None:
    (root / "big").write_bytes(b"x" * 1000)
    (root / "small").write_bytes(b"x" * 10)

    files, packed = pack(root, "big", "std.out", "small", limit=100)

    assert set(files) == {"std.out", "small"}
    assert packed.too_large == ["big"]


def test_names_that_are_no_text_are_packed_as_they_are(root: Path) -> None:
    Path(os.fsdecode(bytes(root) + b"/bad\xff")).write_text("x")

    files, _ = pack(root, "bad*")

    assert list(files.values()) == [b"x"]


def test_nobody_learns_whose_files_they_were(root: Path) -> None:
    archive = io.BytesIO()
    archives.pack(root, ["std.out"], archive, limit=100)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as members:
        member = members.getmember("std.out")

    assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")


def test_a_tree_deeper_than_python_recurses_is_packed_down_to_a_hundred_levels(root: Path) -> None:
    deep = root
    for _ in range(1500):
        deep = deep / "d"
        deep.mkdir()
        (deep / "f").touch()

    files, packed = pack(root, "**")

    assert {"std.out", "d/f", "d/" * 100 + "f"} <= set(files)
    assert "d/" * 200 + "f" not in files
    assert packed.refused
    archives.remove_tree(root)  # so much the less can pytest


def test_many_stars_do_not_take_for_ever(root: Path) -> None:
    (root / ("a/" * 60)).mkdir(parents=True)

    _, packed = pack(root, "/".join(["**/a"] * 20) + "/b")

    assert len(packed.missing) == 1


def test_a_chain_of_links_longer_than_python_recurses_is_refused(root: Path) -> None:
    for number in range(1500):
        (root / f"l{number}").symlink_to(f"l{number + 1}")

    files, packed = pack(root, "l0", "std.out")

    assert packed.refused == ["l0"]
    assert set(files) == {"std.out"}
