"""Attributes of jobs that limits count: one table, which SQL that cannot read it states again."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from cs_config.options.place_limits import ATTRIBUTES
from taskqueue.leases import batched_claim
from taskqueue.schema.tables import jobs

_TRIGGERS = import_module("taskqueue.migrations.versions.0006_returns_by_value")
_STATED = re.compile(r"WHEN '(\w+)' THEN (?:coalesce\()?\w+\.(\w+)(, '')?")


@pytest.mark.parametrize(
    "file",
    [Path(batched_claim.__file__).with_suffix(".sql"), Path(_TRIGGERS.__file__ or "")],
    ids=lambda file: file.stem,
)
def test_sql_compares_a_limit_with_the_columns_of_the_table(file: Path) -> None:
    stated = [
        _STATED.findall(case)
        for case in re.findall(r"CASE rule\.attribute\s(.*?)END", file.read_text(encoding="utf-8"), re.DOTALL)
    ]
    assert stated
    for pairs in stated:
        assert {attribute: column for attribute, column, _ in pairs} == ATTRIBUTES
        assert {column for _, column, empty in pairs if empty} == {
            column for column in ATTRIBUTES.values() if jobs.c[column].nullable
        }
