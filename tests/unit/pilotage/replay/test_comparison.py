"""Effects of changes against the error of a replay."""

import pytest

from pilotage.replay.comparison import ComparedFigure, Figure


def figure(recorded: float, replayed: float, changed: float | None) -> ComparedFigure:
    return ComparedFigure(
        by="VO", name="lhcb", figure=Figure.P50, recorded=recorded, replayed=replayed, changed=changed
    )


@pytest.mark.parametrize(
    ("recorded", "replayed", "changed", "effect"),
    [
        (100, 110, None, None),
        (100, 110, 119, None),
        (100, 110, 120, None),
        (100, 110, 121, 11),
        (110, 100, 80, -20),
        (100, 100, 100, None),
    ],
)
def test_an_effect_is_larger_than_the_error(
    recorded: float, replayed: float, changed: float | None, effect: float | None
) -> None:
    found = figure(recorded, replayed, changed)
    assert found.error == 10 or recorded == replayed
    assert found.effect == effect
