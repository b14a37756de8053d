"""Charts over time, as templates show them: a picture for who sees it, a table for who does not."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

#: Steps that the table below a chart has, the newest ones.
_ROWS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One quantity."""

    label: str
    tone: int  #: 1 to 8, a colour of the style sheet
    values: Sequence[float | None]  #: one for each time of the chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Quantities over the same times."""

    title: str
    times: Sequence[datetime]  #: the oldest first
    lines: Sequence[Line]  #: of areas and bars, which stand on each other, the lowest first
    kind: Literal["line", "area", "bars"] = "line"

    @property
    def data(self) -> dict[str, object]:
        """It as `chart.js` reads it."""
        lines = [{"label": line.label, "tone": line.tone, "values": list(line.values)} for line in self.lines]
        return {"kind": self.kind, "times": [int(each.timestamp()) for each in self.times], "lines": lines}

    @property
    def rows(self) -> Sequence[tuple[datetime, Sequence[float | None]]]:
        """The newest times with their values, the newest first."""
        places = range(len(self.times) - 1, max(-1, len(self.times) - 1 - _ROWS), -1)
        return [(self.times[place], [line.values[place] for line in self.lines]) for place in places]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to see."""
        return not any(value for line in self.lines for value in line.values)
