"""The benchmark of all of the LHC's grid, with few jobs and for moments."""

from benchmarks import wlcg


def test_the_benchmark_runs_and_loses_no_job() -> None:
    scale = wlcg.Scale(running=100, waiting=800, classes=40, sites=4, a_second=20, minutes=6, minute=0.5)
    results = list(wlcg.measure(scale))
    assert [flaw for each in results for flaw in each.flaws] == []
    assert {name for each in results for name in each.targets} == {"wlcg rates", "wlcg p99", "wlcg queues"}
    minutes = [each for each in results if "wlcg rates" in each.targets]
    assert len(minutes) == scale.minutes
    assert sum(float(each.values["heartbeats/s"]) for each in minutes) > 0
