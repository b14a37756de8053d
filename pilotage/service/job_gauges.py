"""How jobs are and how they end, as Prometheus is told."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from taskqueue.states import JobStatus

#: Numbers by VO and status.
Numbers = Mapping[str, Mapping[JobStatus, int]]

_BY = ("vo", "status")


class JobGauges(Collector):
    """What was counted last, in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._living: Numbers = {}
        self._ended: Numbers = {}
        registry.register(self)

    def show(self, *, living: Numbers, ended: Numbers) -> None:
        """Set both: the jobs that have not ended, and how many ever came to each end."""
        self._living, self._ended = living, ended

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Both, as the registry asks for them."""
        living = GaugeMetricFamily("pilotage_jobs", "Jobs that have not ended, by status.", labels=_BY)
        ended = CounterMetricFamily("pilotage_jobs_ended", "Jobs that ended, by their end.", labels=_BY)
        for family, numbers in ((living, self._living), (ended, self._ended)):
            for vo, by_status in numbers.items():
                for status, jobs in by_status.items():
                    family.add_metric((vo, status), jobs)
        yield living
        yield ended
