"""Forecasts of starts on made days: as many hold as they state, also where a day changes.

Each of three days has sixty slots and four classes of jobs; each two minutes a start is forecast.
"""

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from matcher.forecast import start_interval
from taskqueue.past_forecasts import MOST, PastForecast, StartInterval

DAY = 1440  #: minutes
SLOTS = 60
RUNS = 80  #: minutes of a job, on average
RATES = (0.35, 0.2, 0.1, 0.05)  #: jobs in a minute, by class


@dataclass(frozen=True, slots=True)
class MadeForecast:
    job: int
    at: int
    estimate: float
    interval: StartInterval | None


@dataclass(slots=True)
class MadeDays:
    """Three days of one kind, minute by minute."""

    kind: str
    seed: int
    random: Random
    jobs: int = 0
    waiting: Sequence[deque[int]] = field(default_factory=lambda: [deque() for _ in RATES])
    starts: Sequence[list[int]] = field(default_factory=lambda: [[] for _ in RATES])
    running: list[float] = field(default_factory=list)
    started: dict[int, int] = field(default_factory=dict)
    undecided: list[MadeForecast] = field(default_factory=list)
    settled: deque[PastForecast] = field(default_factory=lambda: deque(maxlen=MOST))

    def run(self) -> Iterator[MadeForecast]:
        """All forecasts."""
        for minute in range(3 * DAY):
            self._arrive(minute)
            self._start(minute)
            if minute % 2 == 0:
                self._settle()
                if any(self.waiting) and (made := self._forecast(minute)):
                    self.undecided.append(made)
                    yield made

    def _arrive(self, minute: int) -> None:
        for number, usual in enumerate(RATES):
            rate = usual
            if self.kind == "bursty":
                is_burst = Random(f"{self.seed} {minute // 30} {number}").random() < 0.025
                rate *= 20 if is_burst else 0.5
            while self.random.random() < rate / (1 + rate):  # geometric, with this mean
                self.jobs += 1
                self.waiting[number].append(self.jobs)

    def _start(self, minute: int) -> None:
        while self.running and self.running[0] <= minute:
            heapq.heappop(self.running)
        is_lost = self.kind == "a site lost" and 1.4 * DAY < minute < 1.9 * DAY
        while len(self.running) < (SLOTS // 3 if is_lost else SLOTS) and any(self.waiting):
            number = self.random.choice([number for number, jobs in enumerate(self.waiting) if jobs])
            self.started[self.waiting[number].popleft()] = minute
            self.starts[number].append(minute)
            heapq.heappush(self.running, minute + self.random.expovariate(1 / RUNS))

    def _forecast(self, minute: int) -> MadeForecast | None:
        [number] = self.random.choices(range(len(RATES)), [len(jobs) for jobs in self.waiting])
        place = self.random.randrange(len(self.waiting[number]))
        for window in (60, 360, DAY):
            starts = len(self.starts[number]) - bisect_right(self.starts[number], minute - window)
            if starts >= 10:
                break
        if not starts:
            return None
        estimate = 60 * (place + 1) * min(window, minute + 1) / starts
        past = [*self.settled, *(self._judge(each, minute) for each in self.undecided)]
        interval = start_interval.find_interval(estimate, past)
        return MadeForecast(self.waiting[number][place], minute, estimate, interval)

    def _settle(self) -> None:
        self.settled.extend(self._judge(each, 0) for each in self.undecided if each.job in self.started)
        self.undecided = [each for each in self.undecided if each.job not in self.started]

    def _judge(self, made: MadeForecast, minute: int) -> PastForecast:
        has_started = made.job in self.started
        waited = 60.0 * (self.started.get(made.job, minute) - made.at)
        return PastForecast(
            estimate=made.estimate, interval=made.interval, waited=waited, has_started=has_started
        )


def measure(kind: str, seed: int) -> tuple[int, int]:
    """How many intervals held, and how many there were; without the last hours, whose jobs still wait."""
    days = MadeDays(kind, seed, Random(seed))
    held = of = 0
    for made in list(days.run()):
        if made.interval is not None and made.at < 2.5 * DAY:
            of += 1
            held += not any(made.interval.misses(60.0 * (days.started.get(made.job, 3 * DAY) - made.at)))
    return held, of


@pytest.mark.parametrize("kind", ["steady", "bursty", "a site lost"])
def test_nine_of_ten_forecasts_hold_on_made_days(kind: str) -> None:
    measured = [measure(kind, seed) for seed in range(1, 5)]
    held, of = (sum(each) for each in zip(*measured, strict=True))
    assert of > 2000
    assert 0.88 <= held / of <= 0.92
    assert all(held / of >= 0.85 for held, of in measured)  # also on the worst of the days


def past(
    *waited: float, has_started: bool = True, interval: StartInterval | None = None
) -> list[PastForecast]:
    """Forecasts of a minute each."""
    return [
        PastForecast(estimate=60.0, interval=interval, waited=each, has_started=has_started)
        for each in waited
    ]


def test_few_past_forecasts_give_no_interval() -> None:
    few = past(*[60.0] * (start_interval.LEAST - 1))
    assert start_interval.find_interval(60.0, [*few, *past(*[900.0] * 99, has_started=False)]) is None
    assert start_interval.find_interval(60.0, [*few, *past(60.0)]) is not None


def test_the_interval_has_nine_of_ten_past_ratios() -> None:
    ratios = past(*(60.0 * each for each in range(1, 101)))
    assert start_interval.find_interval(600.0, ratios) == StartInterval(least=3000.0, most=57_000.0)


def test_jobs_that_still_wait_make_it_longer() -> None:
    started = past(*(60.0 * each for each in range(1, 101)))
    waiting = past(*[50 * 60.0] * 4, has_started=False)
    assert start_interval.find_interval(60.0, [*started, *waiting]) == StartInterval(least=360.0, most=5760.0)
    waiting = past(*[6000.0] * 10, has_started=False)
    assert start_interval.find_interval(60.0, [*started, *waiting]) == StartInterval(least=360.0, most=None)


def test_misses_at_one_end_move_that_end() -> None:
    ratios = [60.0 * each for each in range(1, 101)]
    narrow = StartInterval(least=0.0, most=80 * 60.0)
    found = start_interval.find_interval(60.0, past(*ratios, interval=narrow))
    assert found is not None
    assert found.most is not None
    assert found.most > 95 * 60.0
    assert found.least > 5 * 60.0  # no start was before it
    record = start_interval.count_held(past(*ratios, interval=narrow))
    assert (record.held, record.of) == (80, 100)


def test_a_job_that_waits_is_judged_when_its_interval_is_over() -> None:
    interval = StartInterval(least=60.0, most=120.0)
    waiting = past(30.0, 90.0, 150.0, has_started=False, interval=interval)
    assert [each.judged for each in waiting] == [None, None, (False, True)]


def test_nothing_is_foretold_beyond_a_year() -> None:
    ratios = past(*(60.0 * each for each in range(1, 101)))
    year = start_interval.LONGEST
    assert start_interval.find_interval(year / 20, ratios) == StartInterval(least=year / 4, most=None)
    assert start_interval.find_interval(1e13, ratios) == StartInterval(least=year, most=None)
