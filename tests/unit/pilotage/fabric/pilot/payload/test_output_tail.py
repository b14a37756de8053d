import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotage.fabric.pilot.payload import payload


@pytest.fixture
def opened(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[bytes], int]:
    def open_with(content: bytes) -> int:
        file = tmp_path / f"file{len(list(tmp_path.iterdir()))}"
        file.write_bytes(content)
        descriptor = os.open(file, os.O_RDONLY)
        request.addfinalizer(lambda: os.close(descriptor))
        return descriptor

    return open_with


def test_the_last_twenty_lines_are_told(opened: Callable[[bytes], int]) -> None:
    descriptor = opened(b"".join(b"line %d\n" % number for number in range(100)))

    lines = payload.tail_of_files({"std.out": descriptor}).split("\n")

    assert lines == [f"line {number}" for number in range(80, 100)]


def test_long_lines_do_not_make_it_long(opened: Callable[[bytes], int]) -> None:
    assert len(payload.tail_of_files({"std.out": opened(b"x" * 100_000)})) == 4096


def test_a_line_that_was_cut_is_left_out(opened: Callable[[bytes], int]) -> None:
    assert payload.tail_of_files({"std.out": opened(b"x" * 5000 + b"\nwhole\n")}) == "whole"


def test_several_files_have_their_names_above_them(opened: Callable[[bytes], int]) -> None:
    files = {"std.out": opened(b"out\n"), "std.err": opened(b"err\n")}

    assert payload.tail_of_files(files) == "==> std.out <==\nout\n==> std.err <==\nerr"


def test_an_empty_file_is_not_mentioned(opened: Callable[[bytes], int]) -> None:
    assert payload.tail_of_files({"std.out": opened(b"out\n"), "std.err": opened(b"")}) == "out"


def test_what_is_no_text_is_told_as_well_as_it_goes(opened: Callable[[bytes], int]) -> None:
    assert payload.tail_of_files({"std.out": opened(b"a\0\xff\n")}) == "a\ufffd\ufffd"


def test_the_last_line_is_the_last_that_says_something() -> None:
    assert payload.last_line("10 of 20\n 11 of 20 \n\n  \n") == "11 of 20"


def test_what_a_payload_put_in_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    assert [payload.tail_of_path(tmp_path / name) for name in ("link", "pipe", ".", "none")] == [
        "",
        "",
        "",
        "",
    ]
    assert payload.tail_of_path(tmp_path / "secret") == "secret"
