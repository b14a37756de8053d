from pathlib import Path

import pytest

from pilotage.cli import settings
from pilotage.fabric.director.configuration import InvalidDirector


def read(tmp_path: Path, text: str) -> object:
    file = tmp_path / "director.yaml"
    file.write_text(text)
    return settings.load_yaml(file, InvalidDirector)


def test_a_name_that_stands_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    text = "vos:\n  cms: {token_file: /a}\n  lhcb: {token_file: /b}\n  cms: {token_file: /c}\n"
    message = r"vos/cms: named twice, the first time in line 2 \(.*director.yaml:4\)"
    with pytest.raises(InvalidDirector, match=message):
        read(tmp_path, text)


def test_words_have_one_meaning(tmp_path: Path) -> None:
    assert read(tmp_path, "country: NO\nstart: 12:30\nfactor: 1e3\n") == {
        "country": "NO",
        "start": "12:30",
        "factor": 1000.0,
    }
    with pytest.raises(InvalidDirector, match="umask: 0077 is not the same number to every reader"):
        read(tmp_path, "umask: 0077\n")


def test_lists_hold_sections_and_names_may_differ_in_case(tmp_path: Path) -> None:
    text = "queues:\n- {cores: 4, environment: {http_proxy: a, HTTP_PROXY: b}}\n"
    expected = {"queues": [{"cores": 4, "environment": {"http_proxy": "a", "HTTP_PROXY": "b"}}]}
    assert read(tmp_path, text) == expected


def test_merge_keys_and_aliases_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidDirector, match="write the value"):
        read(tmp_path, "usual: &usual {cores: 1}\nqueues:\n- {<<: *usual, cores: 4}\n")


@pytest.mark.parametrize(("text", "content"), [("", None), ("# nothing\n", None), ("word", "word")])
def test_content_that_is_no_section_is_left_to_the_reader(tmp_path: Path, text: str, content: object) -> None:
    assert read(tmp_path, text) == content


def test_a_text_that_is_not_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidDirector, match=r"not YAML.*director.yaml:3"):
        read(tmp_path, "a: 1\nb: [1\n")
