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
    said_here = blockers._format_queues(shut, eligible, "takes", "take")
    assert f"{said_here} no job like it now" == said


def test_one_pilot_is_no_pilots():
    assert [blockers._format_pilots(number) for number in range(3)] == ["no pilots", "1 pilot", "2 pilots"]


@pytest.mark.parametrize(
    ("admitted", "enabled", "said"),
    [
        (0, 3, "its VO may use no queue at all"),
        (3, 4, "its VO may use no queue that is switched on"),
        (3, 1, "its VO may use no queue at all"),  # the parameters of that which is on contradict each other
    ],
)
def test_queues_that_are_switched_off_are_told_from_others(admitted: int, enabled: int, said: str):
    situation = SimpleNamespace(survey=SimpleNamespace(candidates=0, admitted=admitted, enabled=enabled))
    assert list(blockers._queues(None, situation)) == [said]  # type: ignore[arg-type]
