import re
from pathlib import Path

import pytest

from benchmarks import plots
from benchmarks.results import Point

_NAMED = re.compile(r'plot="([a-z-]+)"')


def test_every_plot_that_a_benchmark_names_is_described():
    sources = Path(plots.__file__).parent.glob("*.py")

    named = {name for source in sources for name in _NAMED.findall(source.read_text())}

    assert named - plots.PLOTS.keys() == set()
    assert "growth" in named


def test_numbers_of_running_jobs_may_be_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plots, "DIRECTORY", tmp_path)

    [path] = plots.draw(
        Point(plot="growth", line="limited", x=running, y=1_000) for running in (0, 10_000, 56_000)
    )

    assert "running jobs at each" in path.read_text()
