"""The table of what is bounded: what it names exists."""

import pkgutil
from itertools import chain
from pathlib import Path

import pytest

from benchmarks import hostile
from docs.reference.amounts import AMOUNTS, Amount
from pilotage.service.auth import rate_limits
from tests.support.left_out import needs_every_plugin

pytestmark = needs_every_plugin
PROJECT = Path(__file__).parents[2]
ROWS = list(chain.from_iterable(AMOUNTS.values()))


@pytest.mark.parametrize("amount", ROWS, ids=lambda amount: f"{amount.who}: {amount.what}")
def test_an_amount_is_counted_and_its_test_exists(amount: Amount) -> None:
    assert pkgutil.resolve_name(amount.counted_by) is not None
    file, name = amount.test.split("::")
    assert f"def {name}(" in (PROJECT / file).read_text(encoding="utf-8")


def test_every_attack_reaches_a_bound_of_the_table() -> None:
    assert {name for amount in ROWS for name in amount.attacks} == hostile.ATTACKS.keys()


def test_everything_that_the_service_counts_as_under_way_is_in_the_table() -> None:
    text = (PROJECT / "docs" / "reference" / "amounts.py").read_text(encoding="utf-8")
    counted = {name for name, value in vars(rate_limits).items() if isinstance(value, rate_limits.Bounds)}
    assert {name for name in counted if f"rate_limits.{name}" not in text} == {"SIGN_INS"}, "of issuers"
