"""The disk space of a payload, counted in steps."""

import os
from pathlib import Path

import pytest

from pilotage.fabric.pilot.payload.disk_use import DiskUse
from tests.support.clocks import ManualClock

MB = 1 << 20


def fill(directory: Path, name: str, megabytes: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(os.urandom(megabytes * MB))
    return directory / name


def megabytes(use: DiskUse) -> int:
    return round((use.peak or 0) / MB)


def test_files_of_all_depths_count_and_the_peak_stays(tmp_path: Path) -> None:
    clock = ManualClock()
    use = DiskUse(tmp_path, clock)
    assert use.peak is None
    large = fill(tmp_path / "a" / "b", "large", 3)
    fill(tmp_path, "small", 1)
    use.measure_step()
    assert megabytes(use) == 4
    large.unlink()
    clock.now = 10.0
    use.measure_step()
    assert megabytes(use) == 4


def test_a_file_with_two_names_counts_once_and_a_link_does_not(tmp_path: Path) -> None:
    outside = fill(tmp_path / "outside", "large", 2)
    inside = fill(tmp_path / "inside", "large", 2)
    os.link(inside, inside.with_name("again"))
    (inside.parent / "link").symlink_to(outside)
    (inside.parent / "directory").symlink_to(outside.parent)
    use = DiskUse(inside.parent, ManualClock())
    use.measure_step()
    assert megabytes(use) == 2


def test_a_file_that_is_renamed_while_it_is_counted_counts_once(tmp_path: Path) -> None:
    large = fill(tmp_path, "large", 2)
    (tmp_path / "later").mkdir()
    use = DiskUse(tmp_path, ManualClock())
    use.measure_step(2)  # the file and the directory
    large.rename(tmp_path / "later" / "large")
    use.measure_step()
    assert megabytes(use) == 2


def test_a_file_with_another_name_elsewhere_counts_in_full(tmp_path: Path) -> None:
    inside = fill(tmp_path / "inside", "large", 2)
    os.link(inside, tmp_path / "elsewhere")
    use = DiskUse(inside.parent, ManualClock())
    use.measure_step()
    assert megabytes(use) == 2


def test_a_step_looks_at_so_many_files_only(tmp_path: Path) -> None:
    for number in range(5):
        fill(tmp_path, str(number), 1)
    clock = ManualClock()
    use = DiskUse(tmp_path, clock)
    seen = []
    for _ in range(4):
        use.measure_step(2)
        seen.append(megabytes(use))
    assert seen == [2, 4, 5, 5], "the next measurement is not due yet"


def test_it_is_measured_again_after_a_while_and_at_the_end(tmp_path: Path) -> None:
    clock = ManualClock()
    use = DiskUse(tmp_path, clock)
    use.measure_step()
    fill(tmp_path, "later", 1)
    clock.now = 9.0
    use.measure_step()
    assert megabytes(use) == 0
    clock.now = 10.0
    use.measure_step()
    assert megabytes(use) == 1
    fill(tmp_path, "last", 1)
    use.measure_end()
    assert megabytes(use) == 2


def test_other_file_systems_that_are_mounted_below_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "own", "small", 1)
    real = os.lstat

    def lstat(path: str) -> os.stat_result:
        found = real(path)
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:]))

    use = DiskUse(tmp_path, ManualClock())
    monkeypatch.setattr(os, "lstat", lstat)
    use.measure_step()
    assert use.peak == 0


def test_what_is_gone_is_nothing(tmp_path: Path) -> None:
    use = DiskUse(tmp_path / "none", ManualClock())
    use.measure_step()
    assert use.peak == 0
