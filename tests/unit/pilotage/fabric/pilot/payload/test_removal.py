import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from pilotage.fabric.pilot.payload import archives


def test_a_tree_deeper_than_a_path_can_say_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "area"
    top.mkdir()
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(top)
        for _ in range(3000):
            Path("d").mkdir()
            os.chdir("d")
        Path("f").touch()
    finally:
        os.fchdir(before)
        os.close(before)

    archives.remove_tree(top)

    assert not top.exists()


def test_what_is_protected_is_removed_and_what_links_name_is_not(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    protected = tmp_path / "area" / "protected"
    (protected / "below").mkdir(parents=True)
    (protected / "below" / "file").touch()
    (protected / "link").symlink_to(kept, target_is_directory=True)
    (protected / "below").chmod(0)
    protected.chmod(0)

    archives.remove_tree(tmp_path / "area")

    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (kept / "file").exists()


def test_a_link_instead_of_a_directory_is_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "below").mkdir(parents=True)
    (tmp_path / "area").symlink_to(kept, target_is_directory=True)

    archives.remove_tree(tmp_path / "area")
    archives.remove_tree(tmp_path / "not there")

    assert (kept / "below").exists()


def test_a_file_is_removed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    archives.remove_tree(tmp_path / "file")

    assert not list(tmp_path.iterdir())


def test_a_directory_that_becomes_a_link_meanwhile_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o750)
    (kept / "file").touch()
    (tmp_path / "area" / "below").mkdir(parents=True)
    scan = os.scandir

    def scan_and_replace(directory: int | str) -> Any:
        if isinstance(directory, str):  # not of the removal: of pathlib since Python 3.13
            return scan(directory)
        with scan(directory) as entries:
            found = list(entries)
        for entry in found:
            entry.is_dir(follow_symlinks=False)
            os.rename(entry.name, f"{entry.name}-before", src_dir_fd=directory, dst_dir_fd=directory)
            os.symlink(kept, entry.name, dir_fd=directory)
        return contextlib.nullcontext(found)

    monkeypatch.setattr(os, "scandir", scan_and_replace)
    archives.remove_tree(tmp_path / "area")

    assert [path.name for path in kept.iterdir()] == ["file"]
    assert kept.stat().st_mode & 0o777 == 0o750
