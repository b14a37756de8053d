"""How far foresight may be believed: forecasts of starts that held, and a change that a replay foretold.

A plant in simulated time records a day of LHCb's load (`benchmarks.plant`): as it is, with a third of its
queues lost for hours, and a second time with `Scarcity`. Each minute the forecast agent forecasts starts
as it does in an installation. The first day is replayed with `Scarcity`, and what that foretells stands
beside what the plant did. All draws have seeds, so the figures are those of the program, whatever the
machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import Final

from sqlalchemy import Engine, func, select

from agents import accounting, forecasts
from benchmarks import plant
from benchmarks.plant import BEGIN, Plant
from benchmarks.results import Result
from cs_config.tree.configuration import Configuration
from matcher.forecast import start_interval
from matcher.forecast.start_interval import HeldForecasts
from pilotage.replay import comparison, recorded_day, replay_database
from pilotage.replay.comparison import ComparedFigure
from pilotage.replay.recorded_day import RecordedDay
from pilotage.replay.simulation import ReplayedDay, Simulation
from taskqueue.db import database
from taskqueue.past_forecasts import PastForecast, StartInterval
from taskqueue.schema.tables import attempts, start_forecasts

#: 20,000 jobs in a day; the same density in three hours if it shall be quick.
DAY: Final = Plant(hours=24.0, jobs=20_000, classes=60, slots=90, bulk=20, queues=40, every=60)
QUICK: Final = replace(DAY, hours=3.0, jobs=2_500)
#: Part of the day in which a third of the queues is lost.
_LOST: Final = (0.45, 0.65)
#: Part of the day whose forecasts count: jobs of later ones may still wait at its end.
_COUNTED: Final = 0.85
#: Figures that are shown.
_SHOWN: Final = ("VO", "group", "all")


@dataclass(frozen=True, slots=True)
class _Forecast:
    job_id: int
    at: datetime
    estimate: float  #: seconds
    interval: StartInterval


@dataclass(slots=True)
class Forecaster:
    """Forecasts starts each minute, and keeps what it said."""

    engine: Engine
    random: Random = field(default_factory=lambda: Random(0))
    made: list[_Forecast] = field(default_factory=list)

    def __call__(self, config: Configuration, now: datetime) -> None:
        """Run the agents that count starts and forecast."""
        accounting.cycle(self.engine, now=now, holder="plant")
        forecasts.cycle(self.engine, config, now=now, holder="plant", random=self.random)
        table = start_forecasts.c
        told = select(start_forecasts).where(table.at == now, table.least.is_not(None))
        with database.reading(self.engine) as conn:
            for row in conn.execute(told):
                interval = StartInterval(least=row.least, most=row.most)
                self.made.append(_Forecast(row.job_id, now, row.estimate, interval))

    def judge(self, until: datetime, end: datetime) -> HeldForecasts:
        """How many held of those that were made until a time, without those undecided at the end."""
        first = select(attempts.c.job_id, func.min(attempts.c.opened_at).label("opened_at")).group_by(
            attempts.c.job_id
        )
        with database.reading(self.engine) as conn:
            started = {row.job_id: row.opened_at for row in conn.execute(first)}
        return start_interval.count_held(
            PastForecast(
                estimate=each.estimate,
                interval=each.interval,
                waited=(started.get(each.job_id, end) - each.at).total_seconds(),
                has_started=each.job_id in started,
            )
            for each in self.made
            if each.at < until
        )


def record(engine: Engine, world: Plant) -> HeldForecasts:
    """Let a plant run, and forecast in it; how many forecasts held."""
    forecaster = Forecaster(engine)
    end = plant.record(engine, world, forecaster)
    return forecaster.judge(BEGIN + _COUNTED * (end - BEGIN), end)


def read(engine: Engine, world: Plant) -> RecordedDay:
    """The day of a plant."""
    end = BEGIN + timedelta(hours=world.hours)
    return recorded_day.read_day(engine, begin=BEGIN, end=end, now=end)


def run(*, quick: bool) -> Iterator[Result]:
    """20,000 jobs in a day, in about an hour; 2,500 in three hours if it shall be quick."""
    world = QUICK if quick else DAY
    first, last = (part * world.hours for part in _LOST)
    with replay_database.open_database() as engine:
        yield _tell_coverage("as it was", record(engine, world))
        day = read(engine, world)
    with replay_database.open_database() as engine:
        yield _tell_coverage("a third of the queues lost", record(engine, replace(world, lost=(first, last))))
    with replay_database.open_database() as engine:
        yield _tell_coverage("with `Scarcity: owner`", record(engine, replace(world, scarcity=True)))
        yield from compare(day, read(engine, world))


def compare(day: RecordedDay, second: RecordedDay) -> Iterator[Result]:
    """What a replay foretells of `Scarcity`, beside what a second run of the plant with it was."""
    change = plant.configuration(scarcity=True)
    with replay_database.open_database() as engine:
        replayed = Simulation(engine, day).run()
    with replay_database.open_database() as engine:
        changed = Simulation(engine, day, change=lambda _: change).run()
    nothing = ReplayedDay(starts=[None] * len(second.stays))
    became = {_name(each): each.recorded for each in comparison.compare(second, nothing)}
    for each in comparison.compare(day, replayed, changed):
        if each.by in _SHOWN and _name(each) in became:
            yield Result(
                values={
                    "what": " ".join(filter(None, _name(each))),
                    "recorded": round(each.recorded),
                    "replayed": round(each.replayed),
                    "error": round(each.error),
                    "with Scarcity, foretold": round(each.changed or 0),
                    "effect, foretold": "none" if each.effect is None else round(each.effect),
                    "with Scarcity, second run": round(became[_name(each)]),
                }
            )


def _name(each: ComparedFigure) -> tuple[str, str, str]:
    return each.by, each.name, each.figure.value


def _tell_coverage(what: str, held: HeldForecasts) -> Result:
    share = f"{held.held / held.of:.1%}" if held.of else "–"
    return Result(values={"what": f"forecasts, {what}", "forecasts": held.of, "held": share})
