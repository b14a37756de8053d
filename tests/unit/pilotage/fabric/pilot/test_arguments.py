from pathlib import Path

import pytest

from pilotage.fabric.pilot import arguments
from pilotage.fabric.pilot.settings import PilotSettings, QueuePlace

PLACE = ("--site", "S", "--ce", "C", "--queue", "Q")


def read(*words: str, environment: dict[str, str] | None = None) -> PilotSettings:
    said = arguments.parser().parse_args([*PLACE, *words])
    return arguments.read_settings(said, environment or {"PILOTAGE_URL": "http://service"})


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--site", "S"], "--site, --ce and --queue need each other"), ([], "cannot determine the queue")],
)
def test_the_place_has_to_be_said(words: list[str], message: str) -> None:
    said = arguments.parser().parse_args(words)
    with pytest.raises(ValueError, match=message):
        arguments.read_settings(said, {"PILOTAGE_URL": "http://service"})


def test_the_place_and_the_service_suffice() -> None:
    found = read()

    assert found.place == QueuePlace("S", "C", "Q")
    assert found.url == "http://service"
    assert found.stop_conditions.max_empty == 10


def test_the_flag_for_the_service_wins_over_the_variable() -> None:
    assert read("--url", "http://other").url == "http://other"


def test_without_a_service_it_is_told_how_to_name_it() -> None:
    with pytest.raises(ValueError, match="PILOTAGE_URL"):
        read(environment={"OTHER": "x"})


def test_pools_are_separated_by_commas() -> None:
    assert read("--pools", "a,b").job_filters.pools == ("a", "b")


def test_pools_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "pools"
    file.write_text("a\nb, c\n")

    assert read("--pools", f"@{file}").job_filters.pools == ("a", "b", "c")


@pytest.mark.parametrize("said", ["@/no/such/file", "", " , "])
def test_pools_that_are_none_are_told(said: str) -> None:
    with pytest.raises(ValueError, match="--pools"):
        read("--pools", said)


@pytest.mark.parametrize(
    "words",
    [("--max-jobs", "0"), ("--max-empty", "-1"), ("--grace", "nan"), ("--max-ram", "x"), ("--max-j", "1")],
)
def test_numbers_that_make_no_sense_are_wrong_usage(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        read(*words)
    assert caught.value.code == 2


def test_the_token_is_no_argument() -> None:
    with pytest.raises(SystemExit):
        read("--token", "secret")


def test_the_file_of_facts_is_named_by_the_node(tmp_path: Path) -> None:
    (tmp_path / "n2.json").write_text('{"OS": "el9"}')
    environment = {"PILOTAGE_URL": "http://service", "SLURMD_NODENAME": "n2"}

    found = read("--facts", f"{tmp_path}/$SLURMD_NODENAME.json", environment=environment)

    assert found.slot.facts == {"OS": "el9"}


def test_a_variable_that_nobody_set_is_told_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\$SLURMD_NODENAME\.json"):
        read("--facts", f"{tmp_path}/$SLURMD_NODENAME.json")
