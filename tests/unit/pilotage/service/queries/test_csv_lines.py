"""Lines of CSV, whose cells are chosen by users."""

import csv
import io

import pytest

from pilotage.cli.errors import harmless
from pilotage.service.queries import accounting


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@A1", "'@A1"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\\r=1"),
        (-1, "-1"),
        ("a-1", "a-1"),
    ],
)
def test_a_text_is_no_formula(value: object, cell: str) -> None:
    [[read]] = csv.reader(io.StringIO(accounting.csv_line([value]), newline=""))
    assert read == cell


def test_a_text_gives_no_orders_to_a_terminal() -> None:
    line = accounting.csv_line(
        ["job\x1b[2J\x1b]0;x\x07\x9b2J\x00\x7f\u202egpj\rover", "two\nlines\r\n", "größe"]
    )
    assert line == (
        r"job\u001b[2J\u001b]0;x\u0007\u009b2J\u0000\u007f\u202egpj\rover" + ',"two\nlines\r\n",größe\r\n'
    )
    assert harmless(line.replace("\r\n", "\n")) == line.replace("\r\n", "\n")
