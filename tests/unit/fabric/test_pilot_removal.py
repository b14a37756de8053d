import os
from pathlib import Path

from pilotage.fabric.pilot import removal


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

    removal.remove(top)

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

    removal.remove(tmp_path / "area")

    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (kept / "file").exists()


def test_a_link_instead_of_a_directory_is_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "below").mkdir(parents=True)
    (tmp_path / "area").symlink_to(kept, target_is_directory=True)

    removal.remove(tmp_path / "area")
    removal.remove(tmp_path / "not there")

    assert (kept / "below").exists()
