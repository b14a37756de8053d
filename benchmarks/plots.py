"""The plots of the benchmarks, drawn from the points of their results."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import DIRECTORY, Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """How the points of one plot are shown."""

    title: str
    x: str
    y: str
    log_x: bool = True
    log_y: bool = True


#: By the names that points use.
PLOTS: Mapping[str, Plot] = {
    "match-classes": Plot(title="Matches by requirement classes", x="requirement classes", y="matches/s"),
    "match-waiting": Plot(title="Matches by waiting jobs", x="waiting jobs", y="matches/s"),
    "match-clients": Plot(title="Matches over HTTP by clients", x="clients", y="matches/s", log_y=False),
    "match-dirac": Plot(title="Beside DIRAC's TaskQueueDB", x="task queues", y="matches/s"),
    "growth": Plot(
        title="Matches at sites with limits",
        x="running jobs at each",
        y="matches/s",
        log_x=False,
        log_y=False,
    ),
    "nothing": Plot(title="Refusals by clients", x="clients", y="answers/s", log_y=False),
    "submit": Plot(
        title="Submission until Waiting",
        x="RQ workers; 0: optimizers in the service",
        y="jobs/s",
        log_x=False,
        log_y=False,
    ),
    "pools": Plot(title="Pools", x="pools", y="seconds"),
    "mixed": Plot(title="One hour of a large VO: latency", x="share of requests", y="ms", log_x=False),
    "wlcg": Plot(
        title="All of the grid: p99 of requests for work", x="minute", y="ms", log_x=False, log_y=False
    ),
    "cost": Plot(title="CPU time of a job's life", x="waiting jobs", y="ms of CPU a job", log_y=False),
}


def draw(points: Iterable[Point]) -> list[Path]:
    """Write an SVG for each plot that has points."""
    by_plot: defaultdict[str, list[Point]] = defaultdict(list)
    for point in points:
        by_plot[point.plot].append(point)
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    return [_draw(name, some) for name, some in by_plot.items()]


def _draw(name: str, points: Sequence[Point]) -> Path:
    import matplotlib as mpl  # takes a second, and only those who draw need it
    from matplotlib.figure import Figure

    plot, path = PLOTS[name], DIRECTORY / f"{name}.svg"
    # Text stays text, and the same numbers give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        for line in dict.fromkeys(point.line for point in points):
            mine = sorted((point.x, point.y) for point in points if point.line == line)
            axes.plot([x for x, _ in mine], [y for _, y in mine], marker="o", markersize=4, label=line)
        axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
        if plot.log_x:
            axes.set_xscale("log")
            where = sorted({point.x for point in points})
            axes.set_xticks(where, [f"{x:,.0f}" for x in where])
            axes.set_xticks([], minor=True)
        if plot.log_y:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(fontsize="small")
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path
