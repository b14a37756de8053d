"""How far all is, in bars."""

from collections import Counter
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.demo.grid_job import EVENTS, Standing
from examples.demo.installation import console


class Bars:
    """Jobs, and events of the grid job; used with `with`."""

    def __init__(self, *, jobs: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console)
        self._jobs = self._bars.add_task("Jobs done", total=jobs)
        self._events = self._bars.add_task("Events of the grid job", total=EVENTS)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, done: int, grid: Standing) -> None:
        """Draw them anew."""
        states = Counter(grid.local_jobs)
        said = ", ".join(f"{number} {state}" for state, number in sorted(states.items()) if number)
        self._bars.update(self._jobs, completed=done)
        about = f"Events of the grid job ({said or grid.status})"
        self._bars.update(self._events, completed=grid.generated, description=about)
