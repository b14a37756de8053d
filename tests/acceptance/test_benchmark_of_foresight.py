"""The benchmark of foresight on small days: forecasts hold, and a replay is near to what was."""

from dataclasses import replace

from benchmarks import foresight
from pilotage.replay import replay_database

#: Jobs are short: how long one takes that still runs at the end of a record is drawn from those that ended.
SMALL = replace(foresight.QUICK, hours=0.5, jobs=200, slots=20, queues=10, seconds=100)
#: Intervals need the starts of 30 earlier forecasts: so many jobs wait here.
FULL = replace(SMALL, hours=1.0, jobs=400, slots=10)


def test_forecasts_of_a_day_on_which_jobs_wait_are_judged_and_most_hold() -> None:
    with replay_database.open_database() as engine:
        held = foresight.record(engine, FULL)
    assert held.of >= 20
    assert held.held >= held.of / 2


def test_a_change_is_compared_with_a_second_run() -> None:
    with replay_database.open_database() as engine:
        foresight.record(engine, SMALL)
        day = foresight.read(engine, SMALL)
    assert not day.left_out
    with replay_database.open_database() as engine:
        foresight.record(engine, replace(SMALL, scarcity=True, lost=(0.2, 0.3)))
        rows = {
            row.values["what"]: row.values for row in foresight.compare(day, foresight.read(engine, SMALL))
        }
    starts = rows["all starts"]
    assert 100 <= float(starts["recorded"]) <= 200
    assert float(starts["error"]) <= 0.3 * float(starts["recorded"])
    assert 100 <= float(starts["with Scarcity, second run"]) <= 200
