"""Prometheus metrics: counters of this process, and gauges read from the database at each scrape."""

import collections
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from optimizers.chain.batch import BatchResult
from requirements.states import JobStatus
from taskqueue.jobs.optimizer_queue import OptimizerQueueState
from taskqueue.pilots.nodes import NodeExclusion
from taskqueue.pilots.search import PilotCounts
from taskqueue.sites.processes import SiteProcess

#: Numbers by VO and status.
Numbers = Mapping[str, Mapping[JobStatus, int]]
#: Columns by which pilots must be counted for `StateMetrics`.
BY = ("vo", "queue", "status", "empty_reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMetrics(Collector):
    """The state of the database, and of the matcher in this process."""

    living: Numbers  #: jobs that have not ended
    ended: Numbers  #: jobs that ever ended, by final status
    stuck_pools: Mapping[str, int]  #: by VO; see `unmatchable.list_stuck_pools`
    unmatched: Mapping[tuple[str, ...], int]  #: jobs that ever failed so, by VO and reason
    cycles: Mapping[str, float]  #: time of the last cycle by agent, in seconds since 1970
    overdue: Mapping[str, bool]  #: see `leader.list_overdue`, by agent that an installation must run
    broken: Mapping[str, Sequence[str]]  #: VOs whose work failed in the last cycle, by agent
    mended: int  #: counters of limits that had to be set right
    place_lookups: Mapping[str, int]  #: see `Matcher.place_lookups`
    processes: Sequence[SiteProcess]  #: directors and gateways
    advertised: Mapping[str, float]  #: time of the last advertisement by scope, in seconds since 1970
    now: datetime
    runnable: Mapping[tuple[str, ...], int]  #: waiting jobs that a site could run, by VO and site
    pilots: Mapping[tuple[str, ...], PilotCounts]  #: counted by `BY`; no queue until a broker has picked one
    is_replica_used: bool | None = None  #: None: no replica is configured
    excluded_nodes: Sequence[NodeExclusion] = ()
    optimizer_queue: OptimizerQueueState | None = None  #: None: there is no Redis
    problems: Mapping[tuple[str, ...], int] = field(default_factory=dict)  #: see `count_problems`

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Collect all metric families."""
        names = ("vo", "status")
        living = GaugeMetricFamily("pilotage_jobs", "Jobs that have not ended, by status.", labels=names)
        ended = CounterMetricFamily("pilotage_jobs_ended", "Jobs that ended, by their end.", labels=names)
        for family, numbers in ((living, self.living), (ended, self.ended)):
            for vo, by_status in numbers.items():
                for status, jobs in by_status.items():
                    family.add_metric((vo, status), jobs)
        yield living
        yield ended
        yield _build_gauge(
            "pilotage_pools_without_queues",
            "SubmitPools in which jobs wait and for which no queue is eligible.",
            ("vo",),
            {(vo,): pools for vo, pools in self.stuck_pools.items()},
        )
        yield _build_counter(
            "pilotage_jobs_unmatched",
            "Jobs that failed with no_match_within_ttl, by what kept them longest.",
            ("vo", "reason"),
            self.unmatched,
        )
        yield _build_gauge(
            "pilotage_site_runnable_jobs",
            "Waiting jobs that a site could run, counted at each such site; the largest of the last sample.",
            ("vo", "site"),
            self.runnable,
        )
        yield _build_gauge(
            "pilotage_agent_last_cycle_timestamp_seconds",
            "When an agent last did its work.",
            ("agent",),
            {(agent,): when for agent, when in self.cycles.items()},
        )
        yield _build_gauge(
            "pilotage_agent_overdue",
            "Whether no process seems to run an agent that every installation needs.",
            ("agent",),
            {(agent,): is_overdue for agent, is_overdue in self.overdue.items()},
        )
        yield _build_gauge(
            "pilotage_agent_failed_vos",
            "VOs whose work failed in the last cycle of an agent; it was done for the others.",
            ("agent", "vo"),
            {(agent, vo): 1 for agent, vos in self.broken.items() for vo in vos},
        )
        yield CounterMetricFamily(
            "pilotage_scope_counters_mended",
            "Counters of limits that differed from what runs and were counted again.",
            value=self.mended,
        )
        yield _build_counter(
            "pilotage_prepared_places",
            "Requests for work by whether pools and policies of their place were cached.",
            ("result",),
            {(result,): requests for result, requests in self.place_lookups.items()},
        )
        yield _build_gauge(
            "pilotage_problems",
            "Problems by subject, as overview and `pilotage doctor` list them; jobs without a queue by VO.",
            ("subject", "health", "vo"),
            self.problems,
        )
        yield from self._collect_processes()
        yield from self._collect_pilots()
        if self.is_replica_used is not None:
            yield GaugeMetricFamily(
                "pilotage_replica_used",
                "Whether lists and explanations are read from the replica that is configured.",
                value=self.is_replica_used,
            )
        if self.optimizer_queue is not None:
            yield from _collect_optimizers(self.optimizer_queue)

    def _collect_processes(self) -> Iterator[GaugeMetricFamily]:
        keys = {(each.kind, each.name, each.vo): each for each in self.processes}
        labels = ("kind", "name", "vo")
        yield _build_gauge(
            "pilotage_site_process_last_seen_timestamp_seconds",
            "When a director or gateway last reported.",
            labels,
            {key: each.seen_at.timestamp() for key, each in keys.items()},
        )
        yield _build_gauge(
            "pilotage_site_process_overdue",
            "Whether a director or gateway has missed several reports.",
            labels,
            {key: each.is_overdue(self.now) for key, each in keys.items()},
        )
        yield _build_gauge(
            "pilotage_jobs_without_slot",
            "Waiting jobs that queues allow, and for which the slots of a director are too small.",
            ("name", "vo", "queue"),
            {
                (each.name, each.vo, slot.queue): slot.jobs
                for each in self.processes
                for slot in each.too_small
            },
        )
        yield _build_gauge(
            "pilotage_queue_paused",
            "Queues to which a director sends no pilots of a VO, since most of the last ones were bad.",
            ("name", "vo", "queue"),
            {
                (each.name, each.vo, state.queue): 1
                for each in self.processes
                if not each.is_overdue(self.now)
                for state in each.list_paused(self.now)
            },
        )
        yield _build_gauge(
            "pilotage_nodes_excluded",
            "Nodes that take no jobs of a VO, since its pilots there ended because of their host.",
            ("site", "vo"),
            collections.Counter((each.site, each.vo) for each in self.excluded_nodes),
        )
        yield _build_gauge(
            "pilotage_advertised_timestamp_seconds",
            "When the state of a site, CE or queue was last advertised.",
            ("scope",),
            {(scope,): at for scope, at in self.advertised.items()},
        )

    def _collect_pilots(self) -> Iterator[GaugeMetricFamily]:
        by_status, empty = collections.Counter[tuple[str, ...]](), collections.Counter[tuple[str, ...]]()
        at_queue: dict[tuple[str, ...], PilotCounts] = {}
        for (vo, queue, status, reason), fared in self.pilots.items():
            by_status[vo, queue, status] += fared.count
            if fared.empty:
                empty[vo, queue, reason] += fared.empty
            at_queue[vo, queue] = at_queue[vo, queue] + fared if (vo, queue) in at_queue else fared
        yield _build_gauge(
            "pilotage_pilots",
            "Pilots by status; of those that ended, the ones of the last six hours.",
            ("vo", "queue", "status"),
            by_status,
        )
        yield _build_gauge(
            "pilotage_empty_pilots",
            "Pilots that ended in the last six hours without a job, by the last reason that they received.",
            ("vo", "queue", "reason"),
            empty,
        )
        yield _build_gauge(
            "pilotage_queue_quality",
            "Share of pilots at which a job ended, well or not, among these, empty and failed ones of 6 h.",
            ("vo", "queue"),
            {where: all_.quality for where, all_ in at_queue.items() if all_.quality is not None},
        )


def _collect_optimizers(state: OptimizerQueueState) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    yield GaugeMetricFamily("pilotage_redis_up", "Whether Redis answers.", value=state.problem is None)
    if state.problem is not None:
        return
    yield GaugeMetricFamily("pilotage_optimizer_workers", "RQ workers that listen.", value=state.workers)
    yield _build_gauge(
        "pilotage_optimizer_batches",
        "Batches of jobs in the RQ queue of the optimizers; failed ones of the last hour.",
        ("state",),
        {("waiting",): state.waiting, ("running",): state.running, ("failed",): state.failed},
    )
    yield _build_counter(
        "pilotage_worker_outcomes",
        "Outcomes of the steps of the optimizer chain in all RQ workers.",
        ("step", "outcome"),
        state.outcomes,
    )


def _build_gauge(
    name: str, about: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, about, labels=labels)
    _fill(family, values)
    return family


def _build_counter(
    name: str, about: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, about, labels=labels)
    _fill(family, values)
    return family


def _fill(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[tuple[str, ...], float]) -> None:
    for labels, value in values.items():
        family.add_metric(labels, value)


class Metrics:
    """The counters of one process, in their own registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def count(name: str, about: str, *labels: str) -> Counter:
            return Counter(name, about, labels, registry=registry)

        self._requests = count(
            "pilotage_http_requests_total", "Requests by route and status.", "method", "route", "status"
        )
        self._seconds = Histogram(
            "pilotage_http_request_seconds",
            "Seconds until the whole answer was sent.",
            ["method", "route"],
            registry=registry,
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
        )
        #: Series already used: a lookup by labels costs more than the increment.
        self._served: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._matched: dict[tuple[str, str], Counter] = {}
        self._refusals = count("pilotage_http_refusals_total", "Refused requests by code.", "code")
        self._matches = count("pilotage_matches_total", "Jobs given to pilots.", "vo", "site")
        self._without_match = count(
            "pilotage_match_refusals_total", "Requests for work that got none, by reason.", "reason"
        )
        self._outcomes = count(
            "pilotage_optimizer_outcomes_total",
            "Outcomes of the steps of the optimizer chain.",
            "step",
            "outcome",
        )

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
        counter = self._matched.get((vo, site))
        if counter is None:
            counter = self._matched[vo, site] = self._matches.labels(vo, site)
        counter.inc(jobs)

    def not_matched(self, reason: str) -> None:
        """Count a request for work without a match."""
        self._without_match.labels(reason).inc()

    def optimized(self, result: BatchResult) -> None:
        """Count the outcomes of a batch of the optimizers in this process."""
        for (step, outcome), count in result.outcomes.items():
            self._outcomes.labels(step, outcome).inc(count)

    def render(self, state: StateMetrics) -> bytes:
        """Render everything in Prometheus' text format."""
        return generate_latest(self.registry) + generate_latest(state)
