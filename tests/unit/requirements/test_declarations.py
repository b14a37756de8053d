import pytest

from requirements.errors import InvalidInput
from requirements.record import Declaration, Declarations, ValueKind

MEMORY = Declaration(name="Memory", kind=ValueKind.NUMBER, unit="MB")


def test_two_declarations_that_differ_only_in_case_are_refused() -> None:
    with pytest.raises(InvalidInput, match="memory: declared twice, the other one is Memory"):
        Declarations.find([MEMORY, Declaration(name="memory")])
