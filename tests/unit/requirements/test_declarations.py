import pytest

from requirements.errors import InvalidInput
from requirements.record import Declaration, Declarations, ValueKind

MEMORY = Declaration(name="Memory", kind=ValueKind.NUMBER, unit="MB")


def test_a_declaration_is_found_in_any_case() -> None:
    assert Declarations.find([MEMORY]).get("MEMORY") is MEMORY


def test_a_name_that_nobody_declared_has_none() -> None:
    assert Declarations().get("Memory") is None


def test_two_declarations_that_differ_only_in_case_are_refused() -> None:
    with pytest.raises(InvalidInput, match="memory: declared twice, the other one is Memory"):
        Declarations.find([MEMORY, Declaration(name="memory")])


def test_equal_declarations_are_equal() -> None:
    assert Declarations.find([MEMORY]) == Declarations.find([MEMORY])
    assert Declarations.find([MEMORY]).names() == ("Memory",)
