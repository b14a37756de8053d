from datetime import UTC, datetime

from cs_config.options.place_limits import RunningLimit
from matcher.limits.job_groups import JobGroupCache
from matcher.limits.place_policy import PlacePolicy
from matcher.limits.running_limits import DelayBucket, PlaceRule, RunningLimitState
from taskqueue.sites.scope_rules import RuleKind

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


def test_a_limit_of_one_vo_does_not_slow_the_claims_of_another() -> None:
    policy = build_policy({"lhcb"})
    assert not policy.depends_on_job
    assert policy.most(10) == 10
    assert policy.admits_all
    assert not policy.is_opening


def test_a_request_for_several_vos_checks_only_the_jobs_that_the_limit_counts() -> None:
    for vos in ({"cms", "lhcb"}, set[str]()):
        assert build_policy(vos).depends_on_job


def test_a_ramp_takes_a_token_for_each_job_above_the_curb_but_for_vos_with_a_limit_of_their_own() -> None:
    limit = RunningLimit(scope="a", attribute="JobType", value="x", most=100, curb=10, interval=60)
    rule = PlaceRule(limit=limit, vo=None, exempt=frozenset({"lhcb"}))
    delay = limit.ramp
    assert delay is not None
    key = ("a", RuleKind.RUNNING, "JobType", "x", "")
    bucket = DelayBucket(rule=rule, delay=delay, key=key, tokens=1.0, at=NOW)
    state = RunningLimitState(rule=rule, limit=limit, there=9, bucket=bucket)
    found = []
    for vo in ("cms", "lhcb", "cms"):
        state.matched(vo, 2)
        found.append((state.there, bucket.tokens))
    assert found == [(10, 1.0), (11, 1.0), (12, 0.0)]
