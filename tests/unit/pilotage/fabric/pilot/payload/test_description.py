from typing import Any

import pytest

from pilotage.fabric.pilot.payload import description
from pilotage.fabric.pilot.payload.description import PayloadDescription, UnfitDescription


def read(**body: Any) -> PayloadDescription:
    return description.read_description({"Executable": "run.sh", **body})


def test_standard_files_have_names_where_the_job_says_none() -> None:
    found = read()

    assert (found.std_output, found.std_error) == ("std.out", "std.err")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (None, ()),
        ("", ()),
        ("a  b\tc", ("a", "b", "c")),
        ("'a b' \"c d\" e\\ f", ("a b", "c d", "e f")),
        ("$HOME * ; rm -rf / #x", ("$HOME", "*", ";", "rm", "-rf", "/", "#x")),
        (["a b", 3, "'"], ("a b", "3", "'")),
        ("ümlaut", ("ümlaut",)),
    ],
)
def test_arguments_become_words_without_a_shell(arguments: object, words: tuple[str, ...]) -> None:
    assert read(Arguments=arguments).arguments == words


def test_an_open_quote_is_told_with_the_text() -> None:
    with pytest.raises(UnfitDescription, match=r"Arguments: .*it's"):
        read(Arguments="it's")


def test_a_job_without_executable_is_unfit() -> None:
    with pytest.raises(UnfitDescription, match="Executable"):
        description.read_description({"Arguments": "x"})


@pytest.mark.parametrize("stated", [{"A": "1", "B": "x=y"}, ["A=1", "B=x=y"], "A=1;B=x=y", "A=1; B=x=y;"])
def test_the_environment_is_understood_in_all_its_forms(stated: object) -> None:
    assert read(ExecutionEnvironment=stated).environment == {"A": "1", "B": "x=y"}


@pytest.mark.parametrize("stated", [{"": "1"}, ["=1"], {"A=B": "1"}, {"A": "x\0y"}])
def test_a_variable_that_cannot_be_is_unfit(stated: object) -> None:
    with pytest.raises(UnfitDescription, match="ExecutionEnvironment"):
        read(ExecutionEnvironment=stated)


def test_keywords_are_found_without_regard_to_case() -> None:
    assert description.read_description({"EXECUTABLE": "a", "arguments": "b"}).arguments == ("b",)


def test_limits_are_read_where_they_say_something() -> None:
    found = read(MaxWallClockTime=60, MaxRAM=0, CPUTime=4)

    assert (found.wall_time, found.max_ram, found.cpu_time) == (60, None, 4)


def test_archives_and_logical_files_are_no_files_of_the_sandbox() -> None:
    found = read(InputSandbox=["sha256:ab", "SB:sha256:ab", "LFN:/cms/x", "run.sh"])

    assert found.input_files == ("run.sh",)
