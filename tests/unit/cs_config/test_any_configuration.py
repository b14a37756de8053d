"""Whatever configuration validates, each of its consumers computes for each VO without an error.

What is refused of generated amounts is left out, so that those are tried that stand at the bounds.
"""

import json
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cs_config import validate
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from matcher.explain import explanation, queue_set
from matcher.explain.job_conditions import JobDemand
from matcher.limits import running_limits, throttle_standings
from optimizers.chain import batch
from optimizers.chain.chain import ChainContext, ChainResult, Hold
from optimizers.description import description, parametric
from pilotage.fabric.director import matcher_client, recorded_pilots
from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.node import facts
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot
from pilotage.service import lease_reports
from pilotage.service.auth.rate_limits import RateLimiter, RequestRate
from requirements.requirement_class import RequirementClass
from taskqueue.leases.uptime import Interval, Uptime
from taskqueue.sites.scope_rules import BucketLevel
from taskqueue.sites.scopes import Scope
from taskqueue.task_queues import shares
from taskqueue.task_queues.shares import ShareDemand as Waiting
from taskqueue.task_queues.shares import ShareHolder, UsageSlice
from tests.support.factories.submitted_jobs import ANN

NOW = datetime(2026, 3, 28, 12, tzinfo=UTC)
VOS = ("evil", "lhcb")

edges = [
    0,
    1,
    0.5,
    1e-9,
    5e-324,
    900,
    1024,
    1025,
    4096,
    36_500,
    10**6,
    315_360_000,
    10**9,
    10**12,
    10**15,
    1e300,
]
amounts = st.sampled_from(edges) | st.integers(0, 2**53 - 1) | st.floats(0, 1e308, allow_nan=False)
counts = st.sampled_from([each for each in edges if isinstance(each, int)]) | st.integers(0, 2**53 - 1)


def some(values: st.SearchStrategy[Any], *names: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, values))


slices = st.dictionaries(st.sampled_from("abc"), some(amounts, "TimeSpan", "Weight", "MaxCorrection"))
corrections = st.dictionaries(
    st.sampled_from("ab"),
    st.builds(lambda own, below: own | {"TimeSlices": below}, some(amounts, "MaxGlobalCorrection"), slices),
)
bounded = some(amounts, "min", "max", "default")
options = st.fixed_dictionaries(
    {},
    optional={
        "JobDescription": st.builds(
            lambda plain, declared: plain | declared,
            some(counts, "MaxInputData", "MaxParametricJobs"),
            st.dictionaries(
                st.sampled_from(["CPUTime", "Priority", "MinRAM", "MaxRAM", "GPUs", "Memory"]), bounded
            ),
        ),
        "JobScheduling": st.builds(
            lambda plain, delays, held, at_once: (
                plain
                | {
                    "RescheduleDelays": delays,
                    "EnableSharesCorrection": True,
                    "MatchingDelay": {
                        "A.x": {"JobType": {"MC": held}, "Burst": {"JobType": {"MC": at_once}}}
                    },
                }
            ),
            st.builds(
                lambda one, two: one | {"ShareCorrections": two}, some(counts, "MaxRescheduling"), corrections
            ),
            st.lists(amounts, max_size=3),
            amounts,
            counts,
        )
        | some(amounts, "HoldTime"),
        "Pools": some(amounts, "RefreshInterval", "GraceTime"),
        "Leases": some(amounts, "Time", "StalledTime", "StalledGrace", "RunOnTime", "HeartbeatTime"),
        "Retention": some(amounts, "Jobs", "Outputs", "Sandboxes", "Logs"),
        "Limits": some(counts, "WaitingJobsPerOwner", "SandboxBytes") | some(amounts, "RequestsPerSecond"),
    },
)
parameters = st.builds(
    lambda numbers, tags, more: numbers | tags | {"VOs": {"evil": more}},
    some(
        amounts,
        *("MaxRAM", "CPUTime", "maxWallClockTime", "maxCPUTime", "CPUNormalizationFactor", "GPUs", "SI00"),
        *("NumberOfProcessors", "MaxTotalJobs", "MaxWaitingJobs", "update_time", "expiry_time", "Rank"),
    ),
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("Tag", "RequiredTag"), st.lists(st.sampled_from(["any", "x", "2Processors"]))
        ),
    ),
    some(counts, "NumberOfProcessors", "MaxTotalJobs", "MaxRAM", "GPUs"),
)
configurations = st.builds(
    lambda here, lifetime, of_vos, share: {
        "Resources": {
            "Sites": {
                "A.x": {
                    "Throttle": {"Policy": "level0", "Lifetime": lifetime},
                    "CEs": {"ce": {"Queues": {"one": here, "two": {}}}},
                }
            }
        },
        "Operations": {"Defaults": {}} | of_vos,
        "Registry": {"Groups": {"prod": {"VO": "evil", "JobShare": share}}},
    },
    parameters,
    amounts,
    st.fixed_dictionaries(dict.fromkeys(VOS, options)),
    amounts,
)


def valid(tree: dict[str, Any]) -> Configuration:
    """The configuration without what validation refuses of it."""
    for _ in range(200):
        report = validate.report(json.dumps(tree), "c.yaml", 1)
        if report.configuration is not None:
            return report.configuration
        for problem in report.errors:
            _leave_out(tree, problem.path.split("/"))
    raise AssertionError(f"nothing that validates is left: {report.errors}")


def _leave_out(tree: dict[str, Any], path: list[str]) -> None:
    """Remove what a path leads to, or the last section on the way to it."""
    above, last, here = tree, path[0], tree
    for name in path:
        if not isinstance(here, dict) or name not in here:
            break
        above, last, here = here, name, here[name]
    above.pop(last, None)  # another problem may have removed it


@settings(max_examples=40, deadline=None)
@given(configurations)
def test_each_consumer_computes_for_each_vo(tree: dict[str, Any]) -> None:
    config = valid(tree)
    for moment in (NOW, *(datetime.fromtimestamp(each, UTC) for each in config.moments)):
        assert config.at_moment(moment)
    assert config.vos <= set(lease_reports.build_rules(config).lease_times)
    for vo in VOS:
        _agents(config, vo)
        _optimizers(config, vo)
        _matcher(config, vo)
        _director(config, vo)
        rate = options_for(config, vo).limits.requests_per_second
        RateLimiter().take("ann", RequestRate(per_second=rate, burst=max(1, int(10 * rate))), now=1.0)


def _agents(config: Configuration, vo: str) -> None:
    leases = options_for(config, vo).leases
    for seconds in (leases.time, leases.stalled_time, leases.stalled_grace):
        assert (
            Uptime([Interval(since=NOW - timedelta(days=1), until=NOW)]).go_back(NOW, seconds=seconds) <= NOW
        )
    assert NOW - timedelta(seconds=options_for(config, vo).pools.refresh_interval) <= NOW
    keep = options_for(config, vo).retention
    for days in (keep.jobs, keep.logs, keep.outputs, keep.sandboxes):
        assert NOW - timedelta(days=days) <= NOW
    groups = {ShareHolder(vo, name): config.registry.find_group(name, vo) for name in ("prod", "other")}
    waiting = [
        Waiting(task_queue_id=number, vo=vo, owner_group=name, owner="ann", family=number, raw=raw)
        for number, (name, raw) in enumerate([("prod", 1e6), ("other", 1e-5), ("prod", 1.0)])
    ]
    due: Any = shares.compute_group_shares(waiting, groups)
    for each in options_for(config, vo).job_scheduling.corrections:
        due = shares.correct_shares(
            due,
            [
                UsageSlice(
                    used=dict.fromkeys(due, 1.0), weight=part.weight, max_correction=part.max_correction
                )
                for part in each.slices
            ],
            max_correction=each.max_global_correction,
        )
        assert all(NOW - timedelta(seconds=part.time_span) < NOW for part in each.slices)
    weights = shares.compute_weights(waiting, groups, shares.compute_holder_shares(waiting, groups, due))
    Random(1).choices(list(weights), cum_weights=list(accumulate(weights.values())))


def _optimizers(config: Configuration, vo: str) -> None:
    context = ChainContext(config=config, now=NOW, catalogues={})
    for delay in (None, timedelta.max):
        held = ChainResult(outcome=Hold(reason="", delay=delay), step="X", passed=())
        assert batch.status_update_from(held, vo, context, frozenset()).due_at is not None
    delays = options_for(config, vo).job_scheduling.reschedule_delays
    assert all(NOW + timedelta(seconds=each) >= NOW for each in delays)
    assert description.parse_description({"Executable": "a"}, options_for(config, vo)).cpu_time >= 0
    split = parametric.split_description({"Executable": "a", "VO": ANN.vo})
    assert parametric.expand_description(split, ANN, config, None)


def _matcher(config: Configuration, vo: str) -> None:
    assert NOW + timedelta(seconds=options_for(config, vo).leases.time) >= NOW
    assert all(lease_reports.heartbeat_every(config, vo, running) > 0 for running in (0, 10**9))
    explanation.explain(
        queue_set.all_queues(config, vo), vo, JobDemand(asked=RequirementClass(vo=vo, cpu_time=1))
    )
    for throttle in config.throttles.values():
        throttle_standings._is_fresh(Scope(scope="A.x", advertised_at=NOW), throttle.lifetime, NOW)
    for delay in options_for(config, vo).job_scheduling.matching_delay:
        level = BucketLevel(tokens=0.0, at=NOW - timedelta(days=36_500))
        assert running_limits._count_tokens(delay, level, NOW) <= delay.burst


def _director(config: Configuration, vo: str) -> None:
    for number, address in enumerate(config.addresses):
        told = {name: each.value for name, each in config.parameters(address, vo).items()}
        assert recorded_pilots.free_room([], matcher_client._limits(told)) >= 0
        place = QueuePlace(address.site, address.ce, address.queue)
        made = offer.make_offer(place, Slot(), JobFilters(vo=vo), told, facts.measure_facts())
        assert made.lifetime is None or NOW + timedelta(seconds=made.lifetime) > NOW
        view = queue_set.all_queues(config, vo).queues[number]
        assert view.fault is not None or view.offered.processors == made.processors
