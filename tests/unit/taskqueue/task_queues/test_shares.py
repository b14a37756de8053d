"""What task queues weigh: DIRAC's cases, and what holds whatever waits."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import fsum, isclose
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config.options.registry import Group
from requirements.requirement_class import RequirementClass
from taskqueue.task_queues import shares
from taskqueue.task_queues.shares import FLOOR, ShareDemand, ShareHolder
from tests.support.factories import scenarios

DATA = scenarios.load("share_scenarios.yaml")
ANY = RequirementClass(vo="lhcb", cpu_time=86_400)
USERS = ShareHolder("lhcb", "lhcb_user")


def group(share: float = 1000.0, **about: Any) -> Group:
    return Group().model_copy(update={"vo": "lhcb", "job_share": share, **about})


def demand(number: int, raw: float = 1.0, *, owner: str = "ann", family: Hashable = None) -> ShareDemand:
    return ShareDemand(
        task_queue_id=number,
        vo="lhcb",
        owner_group="lhcb_user",
        owner=owner,
        family=number if family is None else family,
        raw=raw,
    )


def weights(
    demands: Sequence[ShareDemand], users: Group | None = None, **others: Group
) -> Mapping[int, float]:
    groups = {"lhcb_user": users or group(), **others}
    known = {ShareHolder("lhcb", name): each for name, each in groups.items()}
    due = shares.compute_group_shares(demands, known)
    return shares.compute_weights(demands, known, shares.compute_holder_shares(demands, known, due))


@pytest.mark.parametrize("allow_background", [True, False])
@pytest.mark.parametrize("share", DATA["priority"]["shares"])
@pytest.mark.parametrize("case", DATA["priority"]["cases"], ids=lambda case: case["name"])
def test_the_weights_are_those_of_dirac(case: Any, share: float, allow_background: bool) -> None:
    demands = [
        demand(
            number,
            each["raw"],
            family=shares.derive_family(replace(ANY, cpu_time=each["CPUTime"])),
        )
        for number, each in enumerate(case["task_queues"])
    ]
    found = weights(demands, group(share=share, allow_background_tqs=allow_background))
    parts = [each["part"] for each in case["task_queues"]]
    assert [found[number] for number in range(len(parts))] == pytest.approx([share * part for part in parts])


@pytest.mark.parametrize(("user", "real"), DATA["real_priority"].items())
def test_the_extremes_of_user_priority_are_always_first_and_last(user: float, real: float) -> None:
    assert shares.compute_job_weight(user) == real


def test_the_raw_weight_is_the_mean_over_the_jobs() -> None:
    assert shares.compute_raw_weight({1.0: 3, 5.0: 1}) == 2
    assert shares.compute_raw_weight({1.0: 300, 5.0: 100}) == 2
    assert shares.compute_raw_weight({10.0: 1, 1.0: 1}) == pytest.approx(500_000.5)


def test_owners_split_the_share_of_their_group_evenly_whatever_they_have_waiting() -> None:
    demands = [demand(1), demand(2, 3.0), demand(3, owner="bob")]
    assert weights(demands) == {1: 125, 2: 375, 3: 500}


def test_a_group_with_job_sharing_has_its_share_as_a_whole() -> None:
    demands = [demand(1), demand(2, 3.0), demand(3, owner="bob")]
    assert weights(demands, group(properties=frozenset({"JobSharing"}))) == {1: 200, 2: 600, 3: 200}


def test_groups_have_the_shares_that_are_configured() -> None:
    demands = [demand(1), replace(demand(2), owner_group="lhcb_prod")]
    assert weights(demands, lhcb_prod=group(5000.0)) == {1: 1000, 2: 5000}


def test_equal_names_of_groups_in_two_vos_are_two_groups() -> None:
    demands = [demand(1), replace(demand(2), vo="cms")]
    known = {USERS: group(), ShareHolder("cms", "lhcb_user"): group(share=10.0)}
    due = shares.compute_holder_shares(demands, known, shares.compute_group_shares(demands, known))
    assert shares.compute_weights(demands, known, due) == {1: 1000, 2: 10}


def test_background_work_counts_for_nothing_where_the_group_allows_it() -> None:
    demands = [demand(1, 1.0), demand(2, 0.1), demand(3, 1e-5)]
    assert weights(demands, group(allow_background_tqs=True)) == {1: 1000, 2: FLOOR, 3: FLOOR}
    assert weights(demands)[2] == pytest.approx(1000 * 0.1 / 1.10001)


def test_background_work_alone_is_served_all_the_same() -> None:
    assert weights([demand(1, 0.1)], group(allow_background_tqs=True)) == {1: FLOOR}


def test_nothing_weighs_less_than_the_floor() -> None:
    assert weights([demand(1), demand(2, 1e-5)], group(share=10.0))[2] == FLOOR
    assert weights([demand(1)], group(share=0.0)) == {1: FLOOR}


def test_work_that_is_split_by_site_or_memory_weighs_as_much_as_unsplit_everywhere() -> None:
    """DIRAC gives each part the sum, too. What it makes of that where several parts fit, several times
    the share, is a defect: the lottery divides (see test_sampling)."""
    parts = [
        replace(ANY, sites=frozenset({"A.B.ch"}), min_ram=2000),
        replace(ANY, sites=frozenset({"C.D.ch"}), max_ram=4000),
        replace(ANY, banned_sites=frozenset({"A.B.ch"}), min_ram_per_core=1000),
    ]
    other = replace(ANY, tags=frozenset({"gpu"}))
    demands = [
        demand(number, family=shares.derive_family(each)) for number, each in enumerate([*parts, other])
    ]
    assert weights(demands) == {0: 750, 1: 750, 2: 750, 3: 250}


def _with_sites(asked: RequirementClass) -> RequirementClass:
    """The same with sites, which it states."""
    sites = frozenset({"A.B.ch"})
    return replace(asked, sites=sites, stated=(*(asked.stated or ()), ("sites", sites)))


def test_task_queues_of_the_same_resources_weigh_by_their_priorities() -> None:
    plain = replace(ANY, stated=(("cpu_time", 3600), ("priority", True)))
    urgent = replace(ANY, stated=(("priority", True),))
    demands = [
        demand(1, 1.0, family=shares.derive_family(plain)),
        demand(2, 4.0, family=shares.derive_family(urgent)),
        demand(3, 4.0, family=shares.derive_family(_with_sites(urgent))),
    ]
    assert weights(demands) == pytest.approx({1: 1000 / 9, 2: 8000 / 9, 3: 8000 / 9})


def test_equal_definitions_of_two_owners_stay_apart() -> None:
    demands = [demand(1, family="same"), demand(2, family="same", owner="bob")]
    for properties in (frozenset[str](), frozenset({"JobSharing"})):
        assert weights(demands, group(properties=properties)) == {1: 500, 2: 500}


user_priorities = st.floats(-5, 50)
job_counts = st.dictionaries(user_priorities, st.integers(1, 10**6), min_size=1, max_size=5)
some_demands = st.lists(
    st.builds(
        demand,
        st.integers(1, 10**6),
        job_counts.map(shares.compute_raw_weight),
        owner=st.sampled_from(["ann", "bob", "eve"]),
        family=st.integers(1, 4),
    ),
    unique_by=lambda each: each.task_queue_id,
    max_size=12,
)
some_groups = st.builds(
    group,
    share=st.floats(0, 1e9),
    properties=st.sampled_from([frozenset[str](), frozenset({"JobSharing"})]),
    allow_background_tqs=st.booleans(),
)


@given(st.lists(user_priorities, min_size=2, max_size=2))
def test_real_priority_never_falls_with_the_users(two: list[float]) -> None:
    low, high = sorted(two)
    assert 1e-5 <= shares.compute_job_weight(low) <= shares.compute_job_weight(high) <= 1e6


@given(job_counts)
def test_the_raw_weight_lies_between_those_of_the_jobs(jobs: Mapping[float, int]) -> None:
    real = [shares.compute_job_weight(each) for each in jobs]
    raw = shares.compute_raw_weight(jobs)
    assert min(real) * (1 - 1e-9) <= raw <= max(real) * (1 + 1e-9)


@given(some_demands, some_groups)
def test_every_task_queue_gets_a_weight_and_none_falls_below_the_floor(
    demands: list[ShareDemand], users: Group
) -> None:
    found = weights(demands, users)
    assert found.keys() == {each.task_queue_id for each in demands}
    assert all(weight >= FLOOR for weight in found.values())


@given(some_demands, some_groups)
def test_the_families_of_a_group_have_its_share_together_and_what_the_floor_adds(
    demands: list[ShareDemand], users: Group
) -> None:
    found = weights(demands, users)
    families = {(each.owner, each.family): found[each.task_queue_id] for each in demands}
    total = fsum(families.values())
    assert total <= users.job_share * (1 + 1e-9) + FLOOR * len(demands) * (1 + 1e-9)
    if demands and not users.allow_background_tqs:
        assert total >= users.job_share * (1 - 1e-9)


@given(some_demands)
def test_each_owner_has_the_same(demands: list[ShareDemand]) -> None:
    found = weights(demands)
    of_owner: defaultdict[str, dict[Hashable, float]] = defaultdict(dict)
    for each in demands:
        of_owner[each.owner][each.family] = found[each.task_queue_id]
    for owner, families in of_owner.items():
        floors = FLOOR * Counter(each.owner for each in demands)[owner]
        assert abs(fsum(families.values()) - 1000 / len(of_owner)) <= floors + 1e-6


@given(some_demands, some_groups, st.data())
def test_who_raises_the_priority_of_a_task_queue_does_not_lower_its_weight(
    demands: list[ShareDemand], users: Group, data: st.DataObject
) -> None:
    if not demands:
        return
    alone = [replace(each, family=each.task_queue_id) for each in demands]
    raised = data.draw(st.sampled_from(alone))
    more = replace(raised, raw=raised.raw * data.draw(st.floats(1, 1000)))
    before = weights(alone, users)
    after = weights([more if each is raised else each for each in alone], users)
    assert after[raised.task_queue_id] >= before[raised.task_queue_id] * (1 - 1e-9)
    for each in alone:
        if each is not raised and not (users.allow_background_tqs and raised.raw <= 0.1):
            assert after[each.task_queue_id] <= before[each.task_queue_id] * (1 + 1e-9)


@given(some_demands, st.floats(1, 1e6), st.floats(1, 1e6))
def test_weights_are_in_proportion_to_shares(demands: list[ShareDemand], one: float, other: float) -> None:
    plain = [replace(each, raw=max(each.raw, 0.5)) for each in demands]
    low, high = (weights(plain, group(share=1e6 * share)) for share in (one, other))
    assert all(isclose(high[each] * one, low[each] * other, rel_tol=1e-9) for each in low)
