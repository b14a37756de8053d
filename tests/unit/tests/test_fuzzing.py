"""Some hostile inputs at each parser; `python -m tests.acceptance.fuzzing` tries as many as one wants."""

import os
import random
from pathlib import Path

import pytest

from requirements.errors import InvalidInput, Problem
from tests.acceptance.fuzzing import mutations, parsers
from tests.acceptance.fuzzing.parsers import Parser
from tests.support.left_out import is_there

_INPUTS = int(os.environ.get("PILOTAGE_HOSTILE_INPUTS", "400"))
_NAMES = (
    *("job", "expression", "ad", "yaml", "configuration", "cfg", "job cfg"),
    *(("CE ads", "factory", "DIRAC configuration") if is_there("formats") else ()),
    *("edits", "section", "reports of payloads"),
    *(("dirac jdl", "dirac form") if is_there("dirac") else ()),
    *("archive", "token", "claims"),
)


@pytest.mark.parametrize("name", _NAMES)
def test_a_hostile_input_is_parsed_or_refused(name: str, tmp_path: Path) -> None:
    [parser] = [each for each in parsers.list_parsers(tmp_path) if each.name == name]
    flaws = list(parsers.find_flaws(parser, range(_INPUTS), seed=1))
    assert not flaws, "\n".join(map(str, flaws))


def test_all_parsers_are_tried(tmp_path: Path) -> None:
    assert tuple(each.name for each in parsers.list_parsers(tmp_path)) == _NAMES


def test_good_inputs_are_accepted(tmp_path: Path) -> None:
    for parser in parsers.list_parsers(tmp_path):
        accepted = 0
        for seed in parser.seeds:
            try:
                parser.parse(seed)
            except parser.refusals:
                continue
            accepted += 1
        assert accepted, parser.name


def test_an_error_that_is_no_refusal_is_a_flaw() -> None:
    def parse(text: str) -> None:
        if "x" in text:
            raise KeyError("x")
        raise InvalidInput([Problem(path="a", message="wrong")])

    flaws = list(parsers.find_flaws(Parser("p", parse, ["abx", "abc"]), range(50), seed=1))
    assert {flaw.problem for flaw in flaws} == {"KeyError: 'x'"}
    assert len(flaws) < 50


def test_the_same_seed_makes_the_same_inputs() -> None:
    one, other = ([mutations.mutate(random.Random(seed), ["abc"]) for seed in range(20)] for _ in "12")
    assert one == other
