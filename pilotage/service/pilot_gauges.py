"""How pilots fare, as Prometheus is told."""

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge

from taskqueue.pilot_summary import Fared

#: By what they have to be counted.
BY = ("vo", "queue", "status", "empty_reason")
_WHERE = ("vo", "queue")


class PilotGauges:
    """The gauges of pilots in a registry; a queue is empty as long as a broker has not picked it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._pilots = Gauge(
            "pilotage_pilots",
            "Pilots by status; of those that ended, the ones of the last six hours.",
            [*_WHERE, "status"],
            registry=registry,
        )
        self._empty = Gauge(
            "pilotage_empty_pilots",
            "Pilots that ended in the last six hours without a job, by the last reason that they were told.",
            [*_WHERE, "reason"],
            registry=registry,
        )
        self._quality = Gauge(
            "pilotage_queue_quality",
            "Share of pilots with a job among those that had one, were empty or broke in the last six hours.",
            _WHERE,
            registry=registry,
        )

    def show(self, counted: Mapping[tuple[str, ...], Fared]) -> None:
        """Set all of them, from what was counted by `BY`."""
        for gauge in (self._pilots, self._empty, self._quality):
            gauge.clear()
        of_queue: dict[tuple[str, str], list[Fared]] = {}
        for (vo, queue, status, reason), fared in counted.items():
            self._pilots.labels(vo, queue, status).inc(fared.count)
            of_queue.setdefault((vo, queue), []).append(fared)
            if fared.empty:
                self._empty.labels(vo, queue, reason).inc(fared.empty)
        for where, several in of_queue.items():
            self._show_quality(where, several)

    def _show_quality(self, where: tuple[str, str], several: Sequence[Fared]) -> None:
        quality = sum(several[1:], several[0]).quality
        if quality is not None:
            self._quality.labels(*where).set(quality)
