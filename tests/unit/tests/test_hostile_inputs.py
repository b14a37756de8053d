"""Some hostile inputs at each parser; `python -m tests.hostile_inputs` tries as many as one wants."""

import os
import random
from pathlib import Path

import pytest

from requirements.errors import InvalidInput, Problem
from tests import hostile_inputs
from tests.hostile_inputs import Parser

_INPUTS = int(os.environ.get("PILOTAGE_HOSTILE_INPUTS", "400"))
_NAMES = (
    *("job", "expression", "ad", "yaml", "configuration", "cfg", "dirac jdl", "dirac form"),
    *("archive", "token", "claims"),
)


@pytest.mark.parametrize("name", _NAMES)
def test_a_hostile_input_is_parsed_or_refused(name: str, tmp_path: Path) -> None:
    [parser] = [each for each in hostile_inputs.list_parsers(tmp_path) if each.name == name]
    flaws = list(hostile_inputs.find_flaws(parser, inputs=_INPUTS, seed=1))
    assert not flaws, "\n".join(map(str, flaws))


def test_all_parsers_are_tried(tmp_path: Path) -> None:
    assert tuple(each.name for each in hostile_inputs.list_parsers(tmp_path)) == _NAMES


def test_good_inputs_are_accepted(tmp_path: Path) -> None:
    for parser in hostile_inputs.list_parsers(tmp_path):
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

    flaws = list(hostile_inputs.find_flaws(Parser("p", parse, ["abx", "abc"]), inputs=50, seed=1))
    assert {flaw.problem for flaw in flaws} == {"KeyError: 'x'"}
    assert len(flaws) < 50


def test_the_same_seed_makes_the_same_inputs() -> None:
    one, other = ([hostile_inputs.mutate(random.Random(seed), ["abc"]) for seed in range(20)] for _ in "12")
    assert one == other
