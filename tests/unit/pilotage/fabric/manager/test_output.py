"""What a manager takes of the archives that local jobs leave, hostile ones included."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilotage.fabric.batch.shell import LocalShell
from pilotage.fabric.manager.grid_job import AttemptKey, LocalJob
from pilotage.fabric.manager.output import LOG, OutputStore
from pilotage.fabric.manager.shared_area import SharedArea, SharedBatchSystem


def local_job(number: int = 1) -> LocalJob:
    return LocalJob(key=AttemptKey(7, 1), number=number, stamp=f"test.7.1.{number}.1.book")


def archive(*members: tarfile.TarInfo, **files: str) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
        for member in members:
            tar.addfile(member)
    return data.getvalue()


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


def names(place: OutputStore) -> set[str]:
    place.write(LOG, b"log")
    place.pack(10_000)
    with tarfile.open(place.archive) as tar:
        assert all(member.isreg() for member in tar)
        return set(tar.getnames()) - {LOG}


@pytest.fixture
def place(tmp_path: Path) -> OutputStore:
    return OutputStore(directory=tmp_path / "out", limit=10_000)


def test_files_of_all_local_jobs_lie_side_by_side_under_their_numbers(place: OutputStore) -> None:
    for number in (1, 2):
        job = local_job(number)
        assert place.add_archive(job, archive(out="x", plots__a="y")) == []
        assert place.has(job)
    assert not place.has(local_job(3))
    assert names(place) == {"out.1", "out.2", "plots/a.1", "plots/a.2"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            lambda: archive(special("leak", tarfile.SYMTYPE, "/etc/passwd"), out="x"),
            "is a link out of its directory",
        ),
        (lambda: archive(special("disk", tarfile.BLKTYPE), out="x"), "is neither file, directory nor link"),
        (lambda: archive(special("pipe", tarfile.FIFOTYPE), out="x"), "is neither file, directory nor link"),
        (lambda: archive(special("../up", tarfile.REGTYPE), out="x"), "leaves its directory"),
        (lambda: archive(out="x", big="y" * 20_000), "more bytes than allowed when unpacked"),
        (lambda: b"x" * 10_001, "left out: more than 10000 bytes"),
        (lambda: b"nonsense", "is not a readable tar archive"),
    ],
)
def test_what_is_hostile_or_broken_is_refused_and_said(
    place: OutputStore, content: Callable[[], bytes], said: str
) -> None:
    (line,) = place.add_archive(local_job(), content())
    assert line.startswith("local job 1: its output")
    assert said in line
    assert names(place) <= {"out.1", "big.1"}, "what came before the trouble"


def test_links_inside_are_no_files(place: OutputStore) -> None:
    place.add_archive(local_job(), archive(special("twin", tarfile.SYMTYPE, "out"), out="x"))
    assert names(place) == {"out.1"}


def test_a_name_in_the_way_of_another_is_left_out_and_said(place: OutputStore) -> None:
    place.add_archive(local_job(1), archive(a="x"))
    assert place.add_archive(local_job(2), archive(**{"a.1__b": "y"})) == [
        "local job 2: 'a.1/b' is left out: there is another file in its way"
    ]
    assert names(place) == {"a.1"}


def test_a_name_that_is_too_long_with_its_number_is_left_out_and_said(place: OutputStore) -> None:
    (line,) = place.add_archive(local_job(17), archive(**{"n" * 254: "x", "out": "y"}))
    assert line.endswith("is left out: File name too long")
    assert place.has(local_job(17))
    assert names(place) == {"out.17"}


def test_a_manager_that_was_killed_in_the_middle_takes_it_again(place: OutputStore) -> None:
    place.add_archive(local_job(), archive(a="x", b="y"))
    (place.directory / "fetched" / "1").unlink()  # killed before it could note that it was done
    assert not place.has(local_job())
    assert place.add_archive(local_job(), archive(a="x", b="y")) == []
    assert names(place) == {"a.1", "b.1"}


def test_what_lies_in_the_place_of_marks_and_outputs_neither_blocks_nor_leaks(tmp_path: Path) -> None:
    area = SharedArea(below=str(tmp_path), name="grid", shell=LocalShell(patience=300))
    (tmp_path / "grid" / "1-1").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    pipe, link, long = (tmp_path / name for name in ("pipe", "link", "long"))
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "secret")
    long.write_text("x" * 1_000_000)
    os.mkfifo(tmp_path / "grid" / "1-1" / "output.tar.gz")

    no_system: Any = None
    farm = SharedBatchSystem(system=no_system, shell=area.shell, directory=str(tmp_path))
    names = ("pipe", "link", "long", "none", "two", "zero")
    (tmp_path / "two").write_text("first: one\nsecond\n")
    (tmp_path / "zero").write_bytes(b"a\0b\xff\n")

    found = farm.read_first_lines(names)

    assert found.keys() == {"two", "zero"}
    assert found["two"] == "first: one"
    assert area.output(local_job(), limit=100) == b""
    assert not area.is_there
