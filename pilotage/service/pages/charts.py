"""Charts over time: data for `chart.js` with a table as alternative, and plots drawn by the server as SVG.

Server plots print and need no script.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import floor, log10
from typing import Final, Literal

#: Rows in the table below a chart: the newest steps.
_ROWS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """One quantity."""

    label: str
    tone: int  #: 1 to 8, a colour of the style sheet
    values: Sequence[float | None]  #: one for each time of the chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Quantities over the same times."""

    title: str
    times: Sequence[datetime]  #: the oldest first
    lines: Sequence[ChartLine]  #: of stacked areas and bars, the lowest first
    kind: Literal["line", "area", "bars"] = "line"

    @property
    def data(self) -> dict[str, object]:
        """The data in the format of `chart.js`."""
        lines = [{"label": line.label, "tone": line.tone, "values": list(line.values)} for line in self.lines]
        return {"kind": self.kind, "times": [int(each.timestamp()) for each in self.times], "lines": lines}

    @property
    def rows(self) -> Sequence[tuple[datetime, Sequence[float | None]]]:
        """The newest times with their values, newest first."""
        places = range(len(self.times) - 1, max(-1, len(self.times) - 1 - _ROWS), -1)
        return [(self.times[place], [line.values[place] for line in self.lines]) for place in places]

    @property
    def is_empty(self) -> bool:
        """Whether all values are zero or missing."""
        return not any(value for line in self.lines for value in line.values)


#: Series with an own colour; further ones are summed.
MOST_SERIES: Final = 8
OTHERS: Final = "all others"

WIDTH, HEIGHT = 960, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 8, 10, 30
_INNER_WIDTH, _INNER_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_MOST_LABELS: Final = 9
_TICKS: Final = 4
#: Share of a step's width that a bar fills.
_FILLED: Final = 0.86


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSeries:
    """One coloured series."""

    name: str
    number: int  #: of its colour, from 1; 0: sum of the others
    values: Sequence[float | None]  #: one per step
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A segment of a bar, or a point of a line."""

    x: float
    y: float
    width: float
    height: float
    number: int
    step: int
    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A label of the value axis."""

    at: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot in drawing coordinates."""

    series: Sequence[PlotSeries]
    bars: Sequence[Mark]
    points: Sequence[Mark]
    lines: Sequence[tuple[int, str]]  #: number of the series, and its points in SVG syntax
    ticks: Sequence[Tick]
    labels: Sequence[tuple[float, int]]  #: position and step of each time label
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    base: int = HEIGHT - _BOTTOM
    width: int = WIDTH
    height: int = HEIGHT


def largest(values: Mapping[str, Sequence[float]], *, most: int = MOST_SERIES) -> list[PlotSeries]:
    """The largest series in order of their sums, and one for the sum of the rest."""
    by_size = sorted(
        (name for name in values if any(values[name])), key=lambda name: (-sum(values[name]), name)
    )
    found = [
        PlotSeries(name=name, number=number, values=values[name], total=sum(values[name]))
        for number, name in enumerate(by_size[:most], 1)
    ]
    if rest := by_size[most:]:
        summed = [sum(column) for column in zip(*(values[name] for name in rest), strict=True)]
        found.append(PlotSeries(name=OTHERS, number=0, values=summed, total=sum(summed)))
    return found


def stacked(series: Sequence[PlotSeries], steps: int) -> Plot:
    """Stacked bars over time, the largest series at the bottom."""
    sums = [sum(each.values[step] or 0 for each in series) for step in range(steps)]
    top = _nice(max(sums, default=0))
    bars: list[Mark] = []
    for step in range(steps):
        level = 0.0
        for each in series:
            if value := each.values[step] or 0:
                bars.append(_bar(each, step, steps, value, level, top))
                level += value
    return Plot(series=series, bars=bars, points=(), lines=(), ticks=_ticks(top), labels=_labels(steps))


def lines(series: Sequence[PlotSeries], steps: int, *, least_top: float) -> Plot:
    """Lines over time, for values that do not add up; a line is interrupted where a value is missing."""
    known = [value for each in series for value in each.values if value is not None]
    top = _nice(max(least_top, *known)) if known else least_top
    points = [
        _point(each, step, steps, value, top)
        for each in series
        for step, value in enumerate(each.values)
        if value is not None
    ]
    return Plot(
        series=series,
        bars=(),
        points=points,
        lines=[(each.number, path) for each in series for path in _paths(each, points)],
        ticks=_ticks(top),
        labels=_labels(steps),
    )


def _bar(each: PlotSeries, step: int, steps: int, value: float, level: float, top: float) -> Mark:
    place = _INNER_WIDTH / steps
    height = value / top * _INNER_HEIGHT
    return Mark(
        x=round(_LEFT + place * (step + (1 - _FILLED) / 2), 2),
        y=round(_TOP + _INNER_HEIGHT * (1 - level / top) - height, 2),
        width=round(place * _FILLED, 2),
        height=round(height, 2),
        number=each.number,
        step=step,
        name=each.name,
        value=value,
    )


def _point(each: PlotSeries, step: int, steps: int, value: float, top: float) -> Mark:
    return Mark(
        x=round(_LEFT + _INNER_WIDTH / steps * (step + 0.5), 2),
        y=round(_TOP + _INNER_HEIGHT * (1 - value / top), 2),
        width=0,
        height=0,
        number=each.number,
        step=step,
        name=each.name,
        value=value,
    )


def _paths(each: PlotSeries, points: Sequence[Mark]) -> list[str]:
    """The uninterrupted parts of a line."""
    pieces: list[list[Mark]] = []
    for point in points:
        if point.name != each.name:
            continue
        if not pieces or pieces[-1][-1].step != point.step - 1:
            pieces.append([])
        pieces[-1].append(point)
    return [" ".join(f"{point.x},{point.y}" for point in piece) for piece in pieces if len(piece) > 1]


def _nice(value: float) -> float:
    """Round up to the end of an axis: 1, 2, 4 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(factor * power for factor in (1, 2, 4, 8, 10, 20) if factor * power >= value * 0.999999)


def _ticks(top: float) -> list[Tick]:
    return [
        Tick(at=_TOP + _INNER_HEIGHT * (1 - number / _TICKS), value=top * number / _TICKS)
        for number in range(_TICKS + 1)
    ]


def _labels(steps: int) -> list[tuple[float, int]]:
    every = -(-steps // _MOST_LABELS)
    return [(round(_LEFT + _INNER_WIDTH / steps * (step + 0.5), 1), step) for step in range(0, steps, every)]
