import re

from docs.pictures.record import draw


def test_each_line_appears_with_its_scene() -> None:
    svg = draw([("pilotage a", "one\n\x1b[1mtwo\x1b[0m"), ("pilotage b", "x" * 130)])
    starts = re.findall(r'\[clip-path\$="line-(\d+)\)"\] \{ animation: appear 0\.2s ([\d.]+)s both; \}', svg)
    assert starts == [("0", "0"), ("1", "0.6"), ("2", "0.6"), ("3", "2.5"), ("4", "3.1"), ("5", "3.1")]
    lines = re.findall(r'clip-path="url\(#terminal-line-(\d+)\)">([^<]*)<', svg)
    assert [line for line, text in lines if text.startswith(("$", "one", "two", "x"))] == [
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
    ]
