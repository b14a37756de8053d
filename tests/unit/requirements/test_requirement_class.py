"""Requirement classes as values."""

from dataclasses import Field, fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from requirements.requirement_class import RequirementClass, exclude_names, names_without_any
from requirements.values import fold

_names = st.frozensets(st.text(min_size=1, max_size=5), max_size=4)
_classes = st.builds(
    RequirementClass,
    vo=st.sampled_from(["lhcb", "cms"]),
    cpu_time=st.integers(0, 10**6),
    sites=_names,
    banned_sites=_names,
    tags=_names,
    replicas=st.frozensets(st.frozensets(st.text(min_size=1, max_size=5), min_size=1), max_size=3),
    min_ram=st.integers(0, 10**5),
    max_ram=st.none() | st.integers(0, 10**5),
    processors_min=st.integers(1, 64),
    processors_max=st.none() | st.integers(1, 64),
    whole_node=st.booleans(),
    submit_pool=st.none() | st.just("p" * 64),
)


@settings(max_examples=60)
@given(_classes, _classes)
def test_equal_classes_and_only_those_have_one_digest(one: RequirementClass, other: RequirementClass) -> None:
    assert (one == other) == (one.digest == other.digest)


@settings(max_examples=60)
@given(_classes)
def test_a_class_is_read_back_as_it_was_written(one: RequirementClass) -> None:
    assert RequirementClass.from_json(one.to_json()) == one


def test_the_digest_is_the_same_everywhere_and_in_every_release() -> None:
    simple = RequirementClass(vo="lhcb", cpu_time=86_400)
    rich = RequirementClass(
        vo="lhcb",
        cpu_time=86_400,
        sites=frozenset({"LCG.CERN.ch", "LCG.CNAF.it"}),
        processors_max=None,
        gpus=1,
    )
    assert simple.digest == "4dcaefbd9796f61dcc06747ac1846b7fb26098ecdb0d00112f8295bf96463c7a"
    assert rich.digest == "64975d58211e876ca6d92127dd8f9d240d1a73f3377edb7f617c1f9c7da48afc"


def test_a_class_with_a_requirement_of_a_later_release_is_left_to_its_processes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for cpu_time in (1, 2):
        later = f'{{"vo": "lhcb", "cpu_time": {cpu_time}, "quantum_bits": 3}}'
        assert RequirementClass.from_json(later) is None
    assert caplog.text.count("jobs that require quantum_bits") == 1


@pytest.mark.parametrize(
    "field",
    [
        each
        for each in fields(RequirementClass)
        if each.name not in {"vo", "stated", "replicas", "submit_pool", "processors_max", "derived_with"}
    ],
    ids=lambda each: each.name,
)
def test_what_a_class_requires_is_among_its_statements(field: Field[Any]) -> None:
    plain = RequirementClass(vo="lhcb", cpu_time=1)
    values = {bool: True, str: "a", frozenset: frozenset({"a"}), int: 7, type(None): 7}
    value = next(value for kind, value in values.items() if type(getattr(plain, field.name)) is kind)
    assert replace(plain, **{field.name: value}).statements != plain.statements


_SITES = st.lists(st.sampled_from(["LCG.A.ch", "lcg.a.CH", "Lcg.B.ch", "ANY", "aNy", "any.ch", "ÄNY", "äny"]))


@given(_SITES, _SITES)
def test_names_are_compared_in_any_spelling(names: list[str], others: list[str]) -> None:
    folded = {fold(name) for name in others}
    assert exclude_names(names, others) == {name for name in names if fold(name) not in folded}
    asks_any = "any" in map(fold, names)
    assert names_without_any(names) == (frozenset() if asks_any else frozenset(names))
