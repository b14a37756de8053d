from dataclasses import replace
from datetime import UTC, datetime

from cs_config.options.place_limits import RunningLimit
from matcher.limits.job_groups import JobGroupCache
from matcher.limits.place_policy import PlacePolicy
from matcher.limits.running_limits import DelayBucket, PlaceRule, RunningLimitState
from requirements.requirement_class import RequirementClass
from taskqueue.sites.scope_rules import RuleKind
from taskqueue.task_queues.task_queues import TaskQueue

NOW = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)
GROUP_OF_CMS = PlaceRule(
    limit=RunningLimit(scope="allsites", attribute="JobGroup", value="x", most=5),
    vo="cms",
    exempt=frozenset(),
)


def build_policy(vos: set[str]) -> PlacePolicy:
    limit = GROUP_OF_CMS.limit
    assert isinstance(limit, RunningLimit)
    state = RunningLimitState(rule=GROUP_OF_CMS, limit=limit, there=5, opened=False)
    return PlacePolicy((), [state], banned=False, kinds=JobGroupCache(), vos=vos)


def task_queue(vo: str) -> TaskQueue:
    return TaskQueue(
        task_queue_id=1,
        class_id=1,
        requirement_class=RequirementClass(vo=vo, cpu_time=60),
        vo=vo,
        owner="ada",
        owner_group=f"{vo}_user",
        priority=1.0,
        family=1,
    )


def test_a_limit_of_one_vo_does_not_slow_the_claims_of_another() -> None:
    policy = build_policy({"lhcb"})
    assert not policy.depends_on_job
    assert policy.most(10) == 10
    assert policy.is_decided_by(task_queue("lhcb"))
    assert policy.admits_all
    assert not policy.is_opening
    # Not null: the rules of the place were applied.
    assert policy.format_countings(task_queue("lhcb")) == "[]"


def test_a_request_for_several_vos_checks_only_the_jobs_that_the_limit_counts() -> None:
    for vos in ({"cms", "lhcb"}, set[str]()):
        policy = build_policy(vos)
        assert policy.depends_on_job
        assert policy.is_decided_by(task_queue("lhcb"))
        assert not policy.is_decided_by(task_queue("cms"))


def build_ramp() -> RunningLimitState:
    """With ten jobs before the curb is passed, nine there, and one token; lhcb has a limit of its own."""
    limit = RunningLimit(scope="a", attribute="JobType", value="x", most=100, curb=10, interval=60)
    rule = PlaceRule(limit=limit, vo=None, exempt=frozenset({"lhcb"}))
    delay = limit.ramp
    assert delay is not None
    key = ("a", RuleKind.RUNNING, "JobType", "x", "")
    bucket = DelayBucket(rule=rule, delay=delay, key=key, tokens=1.0, at=NOW)
    return RunningLimitState(rule=rule, limit=limit, there=9, bucket=bucket)


def test_a_ramp_gets_no_token_back_that_was_not_taken() -> None:
    for tokens in (1.0, 0.25):
        state = build_ramp()
        assert state.bucket is not None
        state.bucket = replace(state.bucket, tokens=tokens)
        for vo, jobs in (("cms", 1), ("lhcb", 1), ("cms", -1)):
            state.matched(vo, jobs)
        assert (state.there, state.bucket.tokens) == (10, tokens)


def test_a_ramp_gets_back_the_token_of_a_job_that_was_not_taken() -> None:
    state = build_ramp()
    assert state.bucket is not None
    found = []
    for jobs in (1, 1, -1, 1):
        state.matched("cms", jobs)
        found.append(state.bucket.tokens)
    assert found == [1, 0, 1, 0]
