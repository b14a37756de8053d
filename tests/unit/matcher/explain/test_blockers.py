from types import SimpleNamespace

import pytest

from matcher.explain import blockers


@pytest.mark.parametrize(
    ("shut", "eligible", "said"),
    [
        (1, 1, "the only eligible queue takes no job like it now"),
        (1, 3, "1 of the 3 eligible queues takes no job like it now"),
        (3, 3, "all 3 eligible queues take no job like it now"),
    ],
)
def test_closed_queues_are_told_as_people_count(shut: int, eligible: int, said: str):
    assert blockers._format_closures(shut, eligible) == said


def test_one_pilot_is_no_pilots():
    assert [blockers._format_pilots(number) for number in range(3)] == ["no pilots", "1 pilot", "2 pilots"]


@pytest.mark.parametrize(
    ("admitted", "said"),
    [(0, "its VO may use no queue at all"), (3, "all queues that its VO may use are switched off")],
)
def test_queues_that_are_switched_off_are_told_from_queues_for_others(admitted: int, said: str):
    situation = SimpleNamespace(survey=SimpleNamespace(candidates=0, admitted=admitted))
    assert list(blockers._queues(None, situation)) == [said]  # type: ignore[arg-type]
