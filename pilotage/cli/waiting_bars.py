"""Bars for those who wait: how many jobs are at their end, and how far the phases of grid jobs are."""

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pilotage.cli import output

Json = Mapping[str, Any]

#: Jobs whose phases are looked at, each a request of its own.
_MOST = 5
#: Seconds between two looks at the phases.
_EVERY = 2.0


class WaitingBars:
    """Used with `with`; shows nothing where nobody looks on."""

    def __init__(
        self,
        total: int,
        job: Callable[[int], Json],
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make them.

        Args:
            total: Jobs that are waited for.
            job: All about one of them.
            console: Where to; None: standard error.
            clock: Seconds that never go back.
        """
        shown = console or output.progress_console()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[said]}", markup=False),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal)
        self._all = self._progress.add_task("Waiting", total=total, said=f"0 of {total} jobs")
        self._job = job
        self._clock = clock
        self._looked_at: float | None = None
        self._phases: dict[tuple[int, str], TaskID] = {}
        self._many = total > 1

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, *, ended: int, total: int, running: Sequence[int]) -> None:
        """Show how many have ended, and of those that run, if they are grid jobs, how far they are."""
        self._progress.update(self._all, completed=ended, said=f"{ended:,} of {total:,} jobs")
        now = self._clock()
        if self._progress.disable or (self._looked_at is not None and now - self._looked_at < _EVERY):
            return
        self._looked_at = now
        self._show_phases(running[:_MOST])

    def _show_phases(self, job_ids: Sequence[int]) -> None:
        seen = {
            (job_id, phase["name"]): phase
            for job_id in job_ids
            for phase in (self._job(job_id).get("attempt") or {}).get("phases", ())
        }
        for key in [key for key in self._phases if key not in seen]:
            self._progress.remove_task(self._phases.pop(key))
        for key, phase in seen.items():
            said = f"{phase['done']:,} of {phase['of']:,} {phase.get('unit', '')}".strip()
            values = {"completed": phase["done"], "total": phase["of"], "said": said}
            if key in self._phases:
                self._progress.update(self._phases[key], **values)
            else:
                name = f"{key[0]} {key[1]}" if self._many else key[1]
                self._phases[key] = self._progress.add_task(name, **values)
