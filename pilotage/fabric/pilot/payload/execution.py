"""Execution of a prepared job: its payload, its files, and its progress."""

from __future__ import annotations

import threading
from types import TracebackType

from pilotage.fabric.pilot.payload import payload, work_area
from pilotage.fabric.pilot.payload.monitor import Limits, MemoryAccount, MonitoredEnd, PayloadMonitor
from pilotage.fabric.pilot.payload.payload import Payload
from pilotage.fabric.pilot.payload.preparation import Prepared
from pilotage.fabric.pilot.payload.work_area import WorkArea
from pilotage.fabric.pilot.service.heartbeat import Heartbeat

#: Characters of progress that are sent.
_LONGEST = 500


class Execution:
    """Starts the payload when created; a context manager that closes its files."""

    def __init__(self, ready: Prepared, area: WorkArea, limits: Limits, memory: MemoryAccount) -> None:
        """Start the payload.

        Raises:
            UnfitDescription: Its standard output cannot be written to the named file.
            NotStarted: Its program cannot be executed.
            HostTrouble: This host cannot start processes.
        """
        asked = ready.description
        self._area = area
        self._files = work_area.make_standard_files(area.home, output=asked.std_output, error=asked.std_error)
        try:
            self._payload = Payload(
                ready.words,
                directory=area.home,
                environment=ready.environment,
                output=self._files.output,
                error=self._files.error,
                area=area.top,
            )
        except BaseException:
            self._files.close()
            raise
        self._watch = PayloadMonitor(self._payload, limits, memory)

    def __enter__(self) -> Execution:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._payload.close()
        self._files.close()

    def until_end(self, heart: Heartbeat, stop: threading.Event, *, grace: float) -> MonitoredEnd:
        """Wait for the end of the payload, or end it; see `PayloadMonitor.until_end`."""
        return self._watch.until_end(heart, stop, grace=grace)

    def news(self) -> dict[str, object]:
        """The content of a heartbeat."""
        usage, elapsed = self._watch.usage, self._watch.elapsed
        measured = f"{elapsed:.0f} s, CPU {usage.cpu_seconds:.0f} s, {usage.resident >> 20} MB"
        return {
            "progress": payload.printable(
                payload.last_line(payload.tail_of_path(self._area.progress)) or measured, _LONGEST
            ),
            "output_tail": self._files.tail(),
            "cpu_seconds": round(usage.cpu_seconds, 1),
            "wall_seconds": round(elapsed, 1),
            "memory_mb": usage.resident >> 20,
            "processes": usage.processes,
        }
