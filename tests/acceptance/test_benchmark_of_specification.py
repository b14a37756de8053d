"""The benchmark of the match-making specification, on a few jobs and for moments."""

from benchmarks import spec


def test_the_benchmark_runs_and_loses_no_job() -> None:
    scale = spec.Scale(classes=40, waiting=4_000, minutes=1, minute=0.5, nodes=40)
    results = list(spec.measure(scale, None))
    assert [flaw for each in results for flaw in each.flaws] == []
    assert {name for each in results for name in each.targets} == {"spec", "spec p99"}
    [measured] = [each for each in results if each.targets]
    assert measured.targets["spec"] > 0
