"""The DIRAC benchmark 2012: run once on a node, and only where nobody states the power of a core."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from matcher.request import match_request
from pilotage.fabric.pilot import arguments, offer
from pilotage.fabric.pilot.node import db12
from pilotage.fabric.pilot.node.db12 import PowerCache
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot

PLACE = QueuePlace("A.B.ch", "ce", "long")
DAY = 86_400


def ticking(step: float) -> Callable[[], float]:
    """A clock that advances by a step each time it is read."""
    ticks = itertools.count()
    return lambda: next(ticks) * step


@pytest.fixture(autouse=True)
def few_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db12, "_NUMBERS", 1000)
    monkeypatch.setattr(db12, "_CORRECTIONS", {})


def test_it_is_250_over_the_seconds_of_all_parts() -> None:
    assert db12.run_benchmark(lambda: False, "", ticking(0.1), ticking(0)) == 25.0


def test_a_slow_machine_does_as_many_parts_as_it_has_time_for() -> None:
    assert db12.run_benchmark(lambda: False, "", ticking(0.1), ticking(2)) == 25.0
    assert db12.run_benchmark(lambda: False, "", ticking(0.1), ticking(20)) is None


def test_the_pilots_end_stops_it() -> None:
    stops = iter([False, False, True])
    assert db12.run_benchmark(lambda: next(stops), "", ticking(0.1), ticking(0)) is None


def test_pythons_that_differ_are_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db12, "_CORRECTIONS", {sys.version_info[:2]: {"AMD": 0.5}})
    assert db12.run_benchmark(lambda: False, "AMD EPYC 7543", ticking(0.1), ticking(0)) == 12.5
    assert db12.run_benchmark(lambda: False, "Intel(R) Xeon(R)", ticking(0.1), ticking(0)) == 25.0


def test_it_runs_once_for_a_node_and_processor(tmp_path: Path) -> None:
    runs: list[float] = []

    def benchmark() -> float:
        runs.append(20.5)
        return 20.5

    cache = PowerCache("AMD EPYC", tmp_path / "own")
    assert cache.read(now=0) is None
    assert [cache.measure(benchmark, now=0), cache.measure(benchmark, now=1)] == [20.5, 20.5]
    assert len(runs) == 1
    again = PowerCache("AMD EPYC", tmp_path / "own")
    assert (again.read(now=29 * DAY), again.read(now=31 * DAY)) == (20.5, None)
    assert PowerCache("Intel", tmp_path / "own").read(now=1) is None


def test_a_second_pilot_does_not_measure_beside_the_first(tmp_path: Path) -> None:
    first, second = (PowerCache("x", tmp_path / "own") for _ in range(2))
    assert first.measure(lambda: second.measure(lambda: 1.0, now=0) or 2.0, now=0) == 2.0
    assert second.read(now=1) == 2.0


BROKEN = ["", "{", "[1]", '{"of": 1, "power": "x", "at": 0}', '{"power": 5}', "[" * 4000]
#: What no processor has.
POWERS = ["Infinity", "1e200", str(10**400), "-1", "null"]


@pytest.mark.parametrize(
    ("old", "new"),
    [*((None, each) for each in [*BROKEN, f'{{"at": {10**400}}}']), *(("3.0", each) for each in POWERS)],
    ids=lambda each: str(each)[:20],
)
def test_a_broken_result_counts_as_none(tmp_path: Path, old: str | None, new: str) -> None:
    cache = PowerCache("x", tmp_path / "own")
    cache.measure(lambda: 3.0, now=0)
    [file] = (tmp_path / "own").glob("*.json")
    file.write_text(new if old is None else file.read_text().replace(old, new))
    assert cache.read(now=1) is None


def test_it_runs_where_the_cache_cannot_be_written(tmp_path: Path) -> None:
    cache = PowerCache("x", tmp_path / "own")
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "own" / "db12.lock").mkdir()  # a failure as of a file system that is only read
    assert cache.measure(lambda: 3.0, now=0) == 3.0


def test_a_directory_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(0o777)
    cache = PowerCache("x", tmp_path / "own")
    assert cache.measure(lambda: 3.0, now=0) == 3.0
    assert cache.read(now=1) is None
    assert not list((tmp_path / "own").iterdir())


def offered(slot: Slot, queue: dict[str, object]) -> offer.Offer:
    return offer.make_offer(PLACE, slot, JobFilters(), queue)


def test_what_the_site_states_counts_before_what_is_measured() -> None:
    assert not offered(Slot(), {}).states_db12
    for slot, queue in (
        (Slot(facts={"CPUPowerDB12": 18.0}), {}),
        (Slot(), {"CPUPowerDB12": 18.0}),
        (Slot(), {"CPUNormalizationFactor": 18.0}),
        (Slot(cpu_power=18.0), {}),
    ):
        assert offered(slot, dict(queue)).states_db12


def test_the_service_compares_the_work_of_a_job_with_the_measured_power() -> None:
    slot = offered(Slot(lifetime=1000), {})
    read = match_request.read_resource(slot.with_db12(25.0).at(0))
    assert (read.resource.cpu_time, read.resource.work_per_core) == (1000, 25_000)
    assert not read.warnings
    by_queue = match_request.read_resource(offered(Slot(lifetime=1000), {"CPUPowerDB12": 10}).at(0))
    assert by_queue.resource.work_per_core == 10_000


def test_a_time_for_it_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments.parser().parse_args(["--db12", "sometimes"])
    assert "sometimes is none of idle, start, never" in capsys.readouterr().err
