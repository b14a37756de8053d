"""Prometheus metrics: counters of this process, and gauges read from the database at each scrape."""

import threading
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from optimizers.chain.batch import BatchResult
from taskqueue.pilots.search import PilotCounts
from taskqueue.states import JobStatus

#: Numbers by VO and status.
Numbers = Mapping[str, Mapping[JobStatus, int]]

_BY = ("vo", "status")


class JobGauges(Collector):
    """Jobs by VO and status, as counted last."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._living: Numbers = {}
        self._ended: Numbers = {}
        registry.register(self)

    def show(self, *, living: Numbers, ended: Numbers) -> None:
        """Set both: the jobs that have not ended, and the jobs that ever ended, by final status."""
        self._living, self._ended = living, ended

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Both families."""
        living = GaugeMetricFamily("pilotage_jobs", "Jobs that have not ended, by status.", labels=_BY)
        ended = CounterMetricFamily("pilotage_jobs_ended", "Jobs that ended, by their end.", labels=_BY)
        for family, numbers in ((living, self._living), (ended, self._ended)):
            for vo, by_status in numbers.items():
                for status, jobs in by_status.items():
                    family.add_metric((vo, status), jobs)
        yield living
        yield ended


#: Columns by which pilots must be counted for `PilotGauges.show`.
BY = ("vo", "queue", "status", "empty_reason")
_WHERE = ("vo", "queue")


class PilotGauges:
    """Gauges of pilots; the label `queue` is empty until a broker has picked one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._pilots = Gauge(
            "pilotage_pilots",
            "Pilots by status; of those that ended, the ones of the last six hours.",
            [*_WHERE, "status"],
            registry=registry,
        )
        self._empty = Gauge(
            "pilotage_empty_pilots",
            "Pilots that ended in the last six hours without a job, by the last reason that they received.",
            [*_WHERE, "reason"],
            registry=registry,
        )
        self._quality = Gauge(
            "pilotage_queue_quality",
            "Share of pilots with a job among those that had one, were empty or failed in six hours.",
            _WHERE,
            registry=registry,
        )

    def show(self, counted: Mapping[tuple[str, ...], PilotCounts]) -> None:
        """Set all gauges from numbers counted by `BY`."""
        for gauge in (self._pilots, self._empty, self._quality):
            gauge.clear()
        of_queue: dict[tuple[str, str], list[PilotCounts]] = {}
        for (vo, queue, status, reason), fared in counted.items():
            self._pilots.labels(vo, queue, status).inc(fared.count)
            of_queue.setdefault((vo, queue), []).append(fared)
            if fared.empty:
                self._empty.labels(vo, queue, reason).inc(fared.empty)
        for where, several in of_queue.items():
            self._show_quality(where, several)

    def _show_quality(self, where: tuple[str, str], several: Sequence[PilotCounts]) -> None:
        quality = sum(several[1:], several[0]).quality
        if quality is not None:
            self._quality.labels(*where).set(quality)


class Metrics:
    """The metrics of one process, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "pilotage_http_requests_total",
            "Requests by route and status.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "pilotage_http_request_seconds",
            "Seconds until the whole answer was sent.",
            ["method", "route"],
            registry=self.registry,
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
        )
        #: Series already used: a lookup by labels costs more than the increment.
        self._served: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._refusals = Counter(
            "pilotage_http_refusals_total", "Refused requests by code.", ["code"], registry=self.registry
        )
        self._matches = Counter(
            "pilotage_matches_total", "Jobs given to pilots.", ["vo", "site"], registry=self.registry
        )
        self._without_match = Counter(
            "pilotage_match_refusals_total",
            "Requests for work that got none, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self._outcomes = Counter(
            "pilotage_optimizer_outcomes_total",
            "Outcomes of the steps of the optimizer chain.",
            ["step", "outcome"],
            registry=self.registry,
        )
        self._jobs = JobGauges(self.registry)
        self._unmatchable = Gauge(
            "pilotage_pools_without_queues",
            "SubmitPools for which no queue is eligible.",
            ["vo"],
            registry=self.registry,
        )
        self._cycles = Gauge(
            "pilotage_agent_last_cycle_timestamp_seconds",
            "When an agent last did its work.",
            ["agent"],
            registry=self.registry,
        )
        self._pilots = PilotGauges(self.registry)
        self._reading = threading.Lock()

    def served(self, *, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        counted = self._served.get((method, route, status))
        if counted is None:
            series = self._requests.labels(method, route, str(status)), self._seconds.labels(method, route)
            counted = self._served[method, route, status] = series
        counter, histogram = counted
        counter.inc()
        histogram.observe(seconds)

    def refused(self, code: str) -> None:
        """Count a rejected request."""
        self._refusals.labels(code).inc()

    def matched(self, *, vo: str, site: str, jobs: int) -> None:
        """Count jobs given to a pilot."""
        self._matches.labels(vo, site).inc(jobs)

    def not_matched(self, reason: str) -> None:
        """Count a request for work without a match."""
        self._without_match.labels(reason).inc()

    def optimized(self, result: BatchResult) -> None:
        """Count the outcomes of a batch of the optimizers in this process."""
        for (step, outcome), count in result.outcomes.items():
            self._outcomes.labels(step, outcome).inc(count)

    def render(
        self,
        *,
        living: Numbers,
        ended: Numbers,
        unmatchable: Mapping[str, int],
        pilots: Mapping[tuple[str, ...], PilotCounts],
        cycles: Mapping[str, float],
    ) -> bytes:
        """Render everything in Prometheus' text format.

        Args:
            living: Jobs that have not ended.
            ended: Jobs that ever ended, by final status.
            unmatchable: Number of pools without an eligible queue, by VO.
            pilots: Counted by `BY`.
            cycles: Time of the last cycle by agent, in seconds since 1970.
        """
        with self._reading:
            for gauge in (self._unmatchable, self._cycles):
                gauge.clear()
            self._jobs.show(living=living, ended=ended)
            self._pilots.show(pilots)
            for vo, count in unmatchable.items():
                self._unmatchable.labels(vo).set(count)
            for agent, when in cycles.items():
                self._cycles.labels(agent).set(when)
            return generate_latest(self.registry)
