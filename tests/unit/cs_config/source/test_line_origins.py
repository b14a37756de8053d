"""Origins of lines follow edits of the text."""

from hypothesis import given
from hypothesis import strategies as st

from cs_config.source.sections import LineOrigins

_texts = st.lists(st.sampled_from("abc"), max_size=8).map("\n".join)


@given(_texts, _texts, _texts)
def test_each_line_of_an_edited_text_is_of_the_file_or_of_the_edit(
    first: str, second: str, third: str
) -> None:
    origins = LineOrigins.from_file("r.yaml").follow(first, second, "version 2")
    origins = origins.follow(second, third, "version 3")
    lines = first.split("\n")
    for number, line in enumerate(third.split("\n"), 1):
        file, of_file = origins.find(number)
        if file == "r.yaml":
            assert lines[of_file - 1] == line
        else:
            assert (file, of_file) in (("version 2", 0), ("version 3", 0))


def test_lines_around_an_edit_stay_those_of_the_file() -> None:
    origins = LineOrigins.from_file("r.yaml").follow("a\nb\nc\nb\nd", "a\nb\nx\ny\nb\nd", "version 2")
    assert [origins.find(number) for number in range(1, 7)] == [
        ("r.yaml", 1),
        ("r.yaml", 2),
        ("version 2", 0),
        ("version 2", 0),
        ("r.yaml", 4),
        ("r.yaml", 5),
    ]
    assert len(origins.runs) == 3
