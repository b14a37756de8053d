"""Jobs that run beside each other never have more than there is, and nothing is left that one could use."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from matcher import conditions, rules
from matcher.allotment import SlotAllotment, build_core_counter, fix_cores, read_size
from requirements.requirement_class import RequirementClass
from requirements.resource import Allotment, Resource

NODE = Resource(cpu_time=1000, processors=8, max_ram=16000, gpus=2, whole_node=True)
ANY = RequirementClass(vo="lhcb", cpu_time=1)


def _filled(resource: Resource, *asked: RequirementClass) -> list[Allotment]:
    filling = SlotAllotment(resource)
    for each in asked:
        filling.take(each, filling.most(each, 1))
    return filling.allotments()


def _cores(given: Sequence[Allotment]) -> list[int | None]:
    return [each.processors for each in given]


@st.composite
def _classes(draw: st.DrawFn) -> RequirementClass:
    least = draw(st.integers(1, 4))
    return replace(
        ANY,
        processors_min=least,
        processors_max=draw(st.none() | st.integers(least, 6)),
        min_ram=draw(st.sampled_from([0, 1000, 5000])),
        min_ram_per_core=draw(st.sampled_from([0, 0, 500, 2000])),
        max_ram=draw(st.none() | st.just(20000)),
        gpus=draw(st.sampled_from([0, 0, 1])),
        gpus_max=draw(st.sampled_from([None, None, 1, 2])),
        whole_node=draw(st.sampled_from([False, False, False, True])),
    )


_resources = st.builds(
    Resource,
    cpu_time=st.just(1000),
    processors=st.none() | st.integers(1, 8),
    max_ram=st.none() | st.sampled_from([0, 3000, 8000, 16000]),
    gpus=st.integers(0, 2),
    whole_node=st.booleans(),
)


def test_jobs_of_one_size_get_the_same() -> None:
    """The claim computes the allotment of a size once: all that an allotment depends on is part of it."""
    others = [
        replace(ANY, cpu_work_db12=4000),
        replace(ANY, min_ram=1),
        replace(ANY, max_ram=5),
        replace(ANY, gpus=1),
        replace(ANY, gpus=1, gpus_max=2),
        replace(ANY, processors_min=2),
        replace(ANY, processors_max=None, min_ram_per_core=1),
        replace(ANY, whole_node=True),
    ]
    for resource in (NODE, Resource(cpu_time=1000)):
        by_size = {read_size(each): _filled(resource, each) for each in (ANY, *others)}
        assert [by_size[read_size(each)] for each in (ANY, *others)] == [
            _filled(resource, each) for each in (ANY, *others)
        ]


def test_a_job_with_a_range_of_gpus_gets_as_many_as_are_left() -> None:
    ranged = replace(ANY, gpus=1, gpus_max=4)

    def give(gpus: int, *asked: RequirementClass) -> list[int | None]:
        return [each.gpus for each in _filled(replace(NODE, gpus=gpus, whole_node=False), *asked)]

    assert give(3, ranged) == [3]
    assert give(8, ranged) == [4], "no more than its upper bound"
    assert give(4, ranged, replace(ANY, gpus=2)) == [2, 2], "others get what they need first"
    assert give(4, replace(ANY, gpus=1)) == [1]
    assert give(4, replace(ANY, gpus_max=4)) == [0], "it leaves them idle"


@settings(deadline=None)
@given(_resources, st.lists(_classes(), min_size=1, max_size=4), st.integers(0, 2))
def test_the_cores_that_a_limit_counts_are_those_that_jobs_are_given(
    resource: Resource, classes: list[RequirementClass], work: int
) -> None:
    sizes = [replace(each, cpu_work_db12=work * 1500 * number) for number, each in enumerate(classes)]
    alone = build_core_counter(resource, is_only=True)
    beside = build_core_counter(resource, is_only=False)
    for asked in [*sizes, *sizes]:
        if conditions.refusals(asked, resource, ()):
            continue
        assert [alone(asked)] == [each or 1 for each in _cores(_filled(resource, asked))]
        filling, fewest = SlotAllotment(resource), fix_cores(asked)
        filling.take(fewest, min(2, filling.most(fewest, 2)))
        assert {each.processors or 1 for each in filling.allotments()} == {beside(asked)}


@settings(deadline=None)
@given(_resources, st.lists(st.tuples(_classes(), st.integers(1, 4)), max_size=8))
def test_what_is_given_together_is_never_more_than_there_is(
    resource: Resource, wanted: list[tuple[RequirementClass, int]]
) -> None:
    filling, jobs = SlotAllotment(resource), []
    for asked, number in wanted:
        if not conditions.refusals(asked, resource, ()):
            given = filling.most(asked, number)
            assert given or filling.full or jobs, "alone it fits"
            filling.take(asked, given)
            jobs += [asked] * given
    given_each = filling.allotments()
    assert len(given_each) == len(jobs)
    if resource.processors is None and resource.max_ram is None and not resource.gpus:
        return  # nothing is shared: each job has what it asks
    for capacity, sum_of in (
        (resource.processors, sum(each.processors or 0 for each in given_each)),
        (resource.max_ram, sum(each.ram_mb or 0 for each in given_each)),
        (resource.gpus, sum(each.gpus or 0 for each in given_each)),
    ):
        assert capacity is None or sum_of <= capacity
    if any(asked.whole_node for asked in jobs):
        assert len(jobs) == 1
        return
    for asked, each in zip(jobs, given_each, strict=True):
        assert each.processors is not None
        assert asked.processors_min <= each.processors <= (asked.processors_max or 8)
        assert (each.ram_mb or 0) >= rules.needed_ram(asked, each.processors)
        assert each.gpus is not None
        assert asked.gpus <= each.gpus <= max(asked.gpus, asked.gpus_max or 0)


def test_a_range_gets_what_there_is_up_to_its_most() -> None:
    asked = replace(ANY, processors_min=2, processors_max=8)
    assert _cores(_filled(replace(NODE, processors=4), asked)) == [4]
    assert _cores(_filled(replace(NODE, processors=16), asked)) == [8]
    assert _cores(_filled(replace(NODE, processors=None), asked)) == [2], "nobody knows of more"


def test_what_is_left_goes_evenly_to_those_that_can_use_it() -> None:
    open_end = replace(ANY, processors_max=None)
    assert _cores(_filled(NODE, open_end, ANY, replace(ANY, processors_max=2), open_end)) == [3, 1, 2, 2]


def test_a_job_gets_no_core_that_it_has_no_memory_for() -> None:
    asked = replace(ANY, processors_max=8, min_ram=2000, min_ram_per_core=4000)
    [given] = _filled(NODE, asked)
    assert given == Allotment(processors=3, ram_mb=14000, gpus=0)
    [limited] = _filled(NODE, replace(asked, max_ram=12000))
    assert limited == Allotment(processors=2, ram_mb=12000, gpus=0)


def test_single_core_jobs_are_as_many_as_their_memory_allows() -> None:
    filling = SlotAllotment(NODE)
    assert filling.most(replace(ANY, min_ram=3000), 100) == 5
    assert filling.most(ANY, 100) == 8
    assert filling.most(replace(ANY, gpus=1), 100) == 2


def test_a_job_that_wants_the_node_for_itself_is_alone() -> None:
    whole = replace(ANY, processors_max=None, whole_node=True)
    assert _filled(NODE, whole, ANY) == [Allotment(processors=8, ram_mb=16000, gpus=2)]
    assert len(_filled(NODE, ANY, whole)) == 1


def test_who_states_nothing_to_share_is_never_full() -> None:
    filling = SlotAllotment(Resource(cpu_time=1))
    big = replace(ANY, processors_min=4, processors_max=None, min_ram=3000)
    assert filling.most(big, 100) == 100
    filling.take(big, 2)
    filling.take(replace(ANY, whole_node=True), 1)
    assert not filling.full
    assert filling.allotments() == [
        *[Allotment(processors=4, ram_mb=3000, gpus=0)] * 2,
        Allotment(processors=None, ram_mb=None, gpus=0),
    ]


def test_memory_and_gpus_are_shared_also_where_no_processors_are_stated() -> None:
    node = Resource(cpu_time=1000, max_ram=4000, gpus=1)
    small, large = replace(ANY, min_ram=1000), replace(ANY, min_ram=3000)
    assert SlotAllotment(node).most(large, 10) == 1
    assert SlotAllotment(node).most(small, 10) == 4
    assert SlotAllotment(node).most(replace(ANY, gpus=1), 10) == 1
    assert SlotAllotment(node).most(ANY, 10) == 10, (
        "processors are not shared: nobody said how many there are"
    )
    assert [each.ram_mb for each in _filled(node, large, large, small)] == [3000, 1000]


@given(asked=_classes(), processors=st.none() | st.integers(1, 8), max_ram=st.none() | st.just(16000))
def test_what_a_single_job_gets_depends_on_its_size_alone(
    asked: RequirementClass, processors: int | None, max_ram: int | None
) -> None:
    size = (
        "processors_min",
        "processors_max",
        "min_ram",
        "max_ram",
        "min_ram_per_core",
        "gpus",
        "gpus_max",
        "whole_node",
    )
    stated: dict[str, Any] = {name: getattr(asked, name) for name in size}
    other = replace(ANY, tags=frozenset({"x"}), cpu_time=9, **stated)
    assert read_size(other) == read_size(asked)
    node = replace(NODE, processors=processors, max_ram=max_ram)
    assume(conditions.fits(asked, node))
    both = []
    for each in (asked, other):
        filling = SlotAllotment(node)
        filling.take(each, 1)
        both.append(filling.allotments())
    assert both[0] == both[1]
