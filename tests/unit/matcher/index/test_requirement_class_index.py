"""The index answers what the rules say, whatever the classes and resources."""

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matcher import conditions
from matcher.index.requirement_class_index import ClassIndex, MaskCache
from requirements.column_index import IndexedItems, Items, SingleItem
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource

_NAMES = st.sampled_from(["s1", "S2", "s3"])
_FOLDED = st.sampled_from(["s1", "s2", "s3"])
_SETS = st.frozensets(_NAMES, max_size=3)
_OFFERS = st.none() | st.frozensets(_FOLDED, min_size=1, max_size=2)
_BANS = st.frozensets(_FOLDED, max_size=1)
_TAGS = st.frozensets(st.sampled_from(["GPU", "WholeNode", "MultiProcessor", "2Processors"]), max_size=2)
_OFFERED_TAGS = st.frozensets(st.sampled_from(["gpu", "wholenode", "multiprocessor"]), max_size=3)
_NUMBERS = st.integers(0, 3)
_POOLS = st.frozensets(st.sampled_from("ab"), max_size=2)
_FIELDS = st.sampled_from(["sites", "grid_ces", "platforms", "job_types"])
_EXCLUSIONS = st.frozensets(
    st.frozensets(st.tuples(_FIELDS, st.frozensets(_FOLDED, min_size=1, max_size=2)), min_size=1, max_size=2),
    max_size=2,
)

_MANAGED = st.dictionaries(
    st.sampled_from([None, "lhcb", "cms"]), st.frozensets(_FOLDED, max_size=2), max_size=3
).map(lambda by_vo: frozenset(by_vo.items()))

classes = st.builds(
    RequirementClass,
    vo=st.sampled_from(["lhcb", "cms"]),
    cpu_time=_NUMBERS,
    sites=_SETS,
    banned_sites=_SETS,
    grid_ces=_SETS,
    platforms=_SETS,
    job_types=_SETS,
    tags=_TAGS,
    min_ram=_NUMBERS,
    min_ram_per_core=_NUMBERS,
    processors_min=st.integers(1, 3),
    whole_node=st.booleans(),
    gpus=_NUMBERS,
    wall_time=_NUMBERS,
    cpu_work_db12=st.integers(0, 20),
    processors_max=st.none() | st.integers(1, 3),
    scratch_mb=_NUMBERS,
    system=st.sampled_from(["", "Linux"]),
    architecture=st.sampled_from(["", "x86_64", "aarch64", "riscv64"]),
    cpu_level=st.sampled_from(["", "x86-64-v1", "armv8.0-a"]),
    cpu_features=st.frozensets(st.sampled_from(["asimd", "avx"]), max_size=1),
    gpus_max=st.none() | _NUMBERS,
    gpu_vendor=st.sampled_from(["", "nvidia", "amd"]),
    gpu_architecture=st.sampled_from(["", "sm_80", "sm_89", "gfx90a"]),
    gpu_memory_mb=_NUMBERS,
    gpu_runtime=st.sampled_from(["", "12.0", "12.10"]),
    tag_expression=st.sampled_from(["", "a | ~b", "a & gpu:opportunistic-cpu-ok"]),
    image=st.sampled_from(["", "elsewhere", "remote://", "/cvmfs/a"]),
    replicas=st.frozensets(st.frozensets(_NAMES, min_size=1, max_size=2), max_size=2),
    submit_pool=st.none() | st.sampled_from("ab"),
)
resources = st.builds(
    Resource,
    cpu_time=_NUMBERS,
    sites=_OFFERS,
    near=_OFFERS,
    grid_ces=_OFFERS,
    platforms=_OFFERS,
    job_types=_OFFERS,
    managed_types=_MANAGED,
    vos=st.none() | st.frozensets(st.sampled_from(["lhcb", "cms"]), max_size=2),
    tags=st.none() | _OFFERED_TAGS,
    required_tags=st.frozensets(st.sampled_from(["gpu", "multiprocessor"]), max_size=1),
    banned_sites=_BANS,
    banned_grid_ces=_BANS,
    banned_platforms=_BANS,
    banned_job_types=_BANS,
    banned_tags=st.frozensets(st.just("gpu"), max_size=1),
    max_ram=st.none() | st.integers(0, 12),
    processors=st.none() | st.integers(1, 3),
    gpus=_NUMBERS,
    wall_time=st.none() | _NUMBERS,
    cpu_power_db12=st.none() | _NUMBERS,
    scratch_mb=st.none() | _NUMBERS,
    system=st.none() | st.sampled_from(["linux", "windows"]),
    architecture=st.none() | st.sampled_from(["", "x86_64", "riscv64"]),
    cpu_features=st.none() | st.frozensets(st.sampled_from(["asimd", "avx"]), max_size=2),
    gpu_vendor=st.none() | st.sampled_from(["", "nvidia", "amd"]),
    gpu_architecture=st.none() | st.sampled_from([0, 80, 89]),
    gpu_memory_mb=st.none() | _NUMBERS,
    gpu_runtime=st.none() | st.sampled_from([0, 1_200_000_000, 1_200_100_000]),
    literal_tags=st.none()
    | st.frozensets(st.sampled_from(["a", "gpu:opportunistic-cpu-ok", "hostfeat:apptainer", "image:remote"])),
    open_tags=st.sampled_from([(), ("cvmfs:",), ("cvmfs:", "hostfeat:")]),
    whole_node=st.booleans(),
    excluded=_EXCLUSIONS,
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(classes, max_size=12),
    st.lists(st.tuples(resources, _POOLS), min_size=1, max_size=5),
    st.data(),
)
def test_the_index_finds_what_the_rules_allow(
    asked: list[RequirementClass],
    questions: list[tuple[Resource, frozenset[str]]],
    data: st.DataObject,
) -> None:
    index = ClassIndex(most_absent=data.draw(st.sampled_from([0, 3, 1000])))
    known: dict[int, RequirementClass] = {}
    for class_id, each in enumerate(asked):
        index.add(class_id, each)
        known[class_id] = each
        _compare(index, known, *data.draw(st.sampled_from(questions)))
    for class_id in data.draw(st.lists(st.sampled_from(range(12)), unique=True)):
        index.discard(class_id)
        known.pop(class_id, None)
        _compare(index, known, *data.draw(st.sampled_from(questions)))
    assert len(index) == len(known)
    for class_id, each in enumerate(asked):  # slots that were freed are used again
        index.add(class_id, each)
        known[class_id] = each
    for resource, pools in questions:
        _compare(index, known, resource, pools)


def _compare(
    index: ClassIndex, known: dict[int, RequirementClass], resource: Resource, pools: frozenset[str]
) -> None:
    expected = {
        class_id for class_id, each in known.items() if not conditions.refusals(each, resource, pools)
    }
    assert set(index.classes(index.mask(resource, pools))) == expected
    assert set(index.classes(index.mask(resource, pools))) == expected, "the second time from memory"


@given(classes, resources, _POOLS)
def test_every_refusal_is_named(asked: RequirementClass, resource: Resource, pools: frozenset[str]) -> None:
    refusals = conditions.refusals(asked, resource, pools)
    assert len(set(refusals)) == len(refusals)
    generous = replace(asked, submit_pool=None)
    assert set(conditions.refusals(generous, resource, pools)) == set(refusals) - {"submit_pool"}


@given(classes, resources, resources)
def test_a_condition_reads_nothing_else_of_a_resource_than_its_row_states(
    asked: RequirementClass, resource: Resource, other: Resource
) -> None:
    single = SingleItem(asked, conditions.COLUMNS)
    for each in conditions.CONDITIONS:
        names = {each.capacity, *each.reads} - {""}
        if "offers_whole_node" in names:
            names |= {"whole_node", "tags"}  # of which it is computed
        changed = replace(other, **{name: getattr(resource, name) for name in names - {"offers_whole_node"}})
        assert each.select(single, changed) == each.select(single, resource), each.name


@pytest.mark.parametrize(
    ("tag", "condition"), [("8Processors", "processors"), ("WholeNode", "whole_node"), ("fast", "tag")]
)
def test_a_missing_tag_is_refused_by_the_condition_whose_keyword_it_stands_for(tag: str, condition: str):
    asked = RequirementClass(vo="lhcb", cpu_time=1, tags=frozenset({tag}))
    assert conditions.refusals(asked, Resource(cpu_time=1), ()) == (condition,)


def test_all_refusals_are_told_and_not_only_the_first() -> None:
    asked = RequirementClass(
        vo="lhcb", cpu_time=100, sites=frozenset({"A"}), min_ram=4000, gpus=1, submit_pool="p"
    )
    resource = Resource(cpu_time=50, sites=frozenset({"b"}), max_ram=2000, vos=frozenset({"lhcb"}))
    assert set(conditions.refusals(asked, resource, ())) == {"cpu_time", "site", "ram", "gpus", "submit_pool"}


def test_types_of_job_managers_are_given_only_to_who_names_them() -> None:
    asked = RequirementClass(vo="lhcb", cpu_time=1, job_types=frozenset({"MonteCarlo"}))
    managed = frozenset({(None, frozenset({"montecarlo"})), ("cms", frozenset[str]())})
    pilot = Resource(cpu_time=1, managed_types=managed)
    assert conditions.refusals(asked, pilot, ()) == ("job_type",)
    assert conditions.refusals(replace(asked, vo="cms"), pilot, ()) == ()
    assert conditions.refusals(replace(asked, job_types=frozenset({"Merge"})), pilot, ()) == ()
    gateway = replace(pilot, job_types=frozenset({"montecarlo", "generic"}))
    assert conditions.refusals(asked, gateway, ()) == ()


def test_memory_per_core_counts_for_the_cores_that_a_job_must_have() -> None:
    asked = RequirementClass(vo="lhcb", cpu_time=1, min_ram_per_core=2000, processors_min=4)
    assert "ram" in conditions.refusals(asked, Resource(cpu_time=1, max_ram=7999), ())
    assert "ram" not in conditions.refusals(asked, Resource(cpu_time=1, max_ram=8000), ())
    more = replace(asked, min_ram=500)
    assert "ram" in conditions.refusals(more, Resource(cpu_time=1, max_ram=8499), ())
    assert "ram" not in conditions.refusals(more, Resource(cpu_time=1, max_ram=8500), ())


def test_of_several_sites_one_has_to_be_wanted_and_not_banned() -> None:
    asked = RequirementClass(vo="lhcb", cpu_time=1, sites=frozenset({"S1"}), banned_sites=frozenset({"S1"}))
    assert conditions.refusals(asked, Resource(cpu_time=1, sites=frozenset({"s1", "s2"})), ()) == ("site",)


def test_a_full_cache_of_masks_keeps_those_that_were_stored_last():
    cache, selected = MaskCache[int](16), list[int]()
    nothing = IndexedItems[RequirementClass](conditions.COLUMNS)

    def find(key: int) -> int:
        def select(_: Items) -> int:
            selected.append(key)
            return 1 << key

        return cache.find(key, nothing, select)

    for key in (*range(17), *range(2, 17)):
        assert find(key) == 1 << key
    assert selected == list(range(17))


def test_requests_of_a_vo_read_no_classes_of_others() -> None:
    class Unreadable:
        vo = "lhcb"

        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was read")

    index = ClassIndex()
    index.add(1, cast(RequirementClass, Unreadable()))
    index.add(2, RequirementClass(vo="cms", cpu_time=1))
    found = index.mask(Resource(cpu_time=1, vos=frozenset({"cms"})), frozenset())
    assert list(index.classes(found)) == [2]
    with pytest.raises(AssertionError, match="was read"):
        index.mask(Resource(cpu_time=1, vos=frozenset({"cms", "lhcb"})), frozenset())
