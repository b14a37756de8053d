"""A suggestion that is followed makes the queues eligible that it promises."""

import itertools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cs_config import validate
from cs_config.options import keywords
from cs_config.tree.configuration import Configuration
from matcher.explain import explanation, queue_set
from matcher.explain.job_conditions import JobDemand
from optimizers.submit import checking
from optimizers.submit.submitter import Submitter
from pilotage.service.queries import explanations
from requirements.classad.expression import Expression
from requirements.errors import InvalidJob
from requirements.record import Record

NOW = datetime(2026, 3, 28, tzinfo=UTC)
ANN = Submitter(subject="ann", vo="cms", owner="ann", owner_group="cms_user", operator=False)
Description = Mapping[str, Any]

queues = st.fixed_dictionaries(
    {},
    optional={
        "MaxRAM": st.sampled_from([1000, 4000]),
        "CPUTime": st.sampled_from([100, 3600, 400_000]),
        "NumberOfProcessors": st.sampled_from([1, 2, 8]),
        "GPUs": st.sampled_from([0, 2]),
        "Platform": st.sampled_from(["el8", "el9"]),
        "Tag": st.sampled_from([["fast"], ["MultiProcessor"]]),
        "RequiredTag": st.sampled_from([["fast"], ["MultiProcessor"]]),
        "WholeNode": st.booleans(),
        "Level": st.sampled_from([True, 1, [1000, 4000], 2000]),
        "Requirements": st.sampled_from(["other.CPUTime < 5000", "other.MinRAM =?= undefined"]),
    },
)
defaults = st.fixed_dictionaries(
    {},
    optional={
        "CPUTime": st.just(3600),
        "Platform": st.just("el9"),
        "Tags": st.just("fast"),
        "BannedSites": st.just("A.x"),
        "MinRAM": st.just(2000),
        "NumberOfProcessors": st.just(2),
    },
)


@st.composite
def trees(draw: st.DrawFn) -> Configuration:
    sites = {
        site: {"CEs": {f"ce-{site}": {"Queues": {"one": draw(queues)}}}} for site in ("A.x", "B.x", "C.x")
    }
    declared = {name: {"default": value} for name, value in draw(defaults).items()}
    operations = {"Defaults": {"JobDescription": declared}} if declared else {}
    tree = {"Registry": {"VO": {"cms": {}}}, "Resources": {"Sites": sites}, "Operations": operations}
    return validate.parse(repr(tree))


def some(*of: str, most: int = 2) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(of), min_size=1, max_size=most, unique=True)


cores = st.sampled_from([1, 2, 4, 8])
descriptions = st.fixed_dictionaries(
    {"Executable": st.just("a")},
    optional={
        "Site": some("A.x", "B.x", "Nowhere.x", "ANY"),
        "BannedSites": some("A.x", "B.x", "C.x"),
        "GridCE": some("ce-A.x", "ce-B.xx"),
        "Platform": some("el8", "el88"),
        "CPUTime": st.sampled_from([50, 3000, 200_000]),
        "Tags": some("fast", "fastt", "MultiProcessor", "4Processors", "WholeNode"),
        "NumberOfProcessors": cores,
        "MinNumberOfProcessors": cores,
        "MaxNumberOfProcessors": cores,
        "WholeNode": st.booleans(),
        "MinRAM": st.sampled_from([500, 2000, 8000]),
        "MinRAMPerCore": st.sampled_from([500, 2000]),
        "GPUs": st.sampled_from([1, 4]),
        "Requirements": st.sampled_from([{"Level": 4000}, {"Level": "z"}, {"Lvel": 1}, "other.Level > 3000"]),
    },
)


def ask(config: Configuration, described: Description) -> JobDemand:
    foreseen = checking.dry_run_source(config, ANN, dict(described), now=NOW)
    return explanations.ask_about_dry_run(config, foreseen).demand


def follow(described: Description, changed: JobDemand) -> Description:
    """The description that states what the changed demand is derived from."""
    stated = {keywords.BY_ATTRIBUTE[name].name: value for name, value in changed.asked.statements.items()}
    listed = {
        name: sorted(value) if isinstance(value, frozenset) else value for name, value in stated.items()
    }
    match changed.requirements:
        case Record(values=values):
            listed["Requirements"] = dict(values)
        case Expression(text=text):
            listed["Requirements"] = text
    return {"Executable": described["Executable"], **listed}


def check(config: Configuration, described: Description) -> list[str]:
    """Check every suggestion for a description; their texts."""
    whole, demand = queue_set.all_queues(config, "cms"), ask(config, described)
    before = whole.eligible(demand)
    found = explanation.suggest_changes(whole, "cms", demand)
    for each in found:
        assert each.demand is not None
        after = whole.eligible(ask(config, follow(described, each.demand)))
        gained, lost = (after & ~before).bit_count(), (before & ~after).bit_count()
        assert (gained - lost, ("loses" in each.text)) == (each.gains, lost > 0), each.text
        assert after & whole.within(str(each.example)), each.text
    return [each.text for each in found]


@given(trees(), descriptions)
def test_each_suggestion_that_is_followed_holds(config: Configuration, described: Description) -> None:
    try:
        ask(config, described)
    except InvalidJob:
        assume(False)
    check(config, described)


TWO = validate.parse(
    "Registry: {VO: {cms: {}}}\n"
    "Resources: {Sites: {\n"
    "  A.x: {CEs: {ce: {Queues: {q: {}}}}}, B.x: {CEs: {ce: {Queues: {q: {CPUTime: 100}}}}}}}"
)
STEPS = validate.parse(
    "Registry: {VO: {cms: {}}}\n"
    "Resources: {Sites: {A.x: {CEs: {ce: {Queues: {q: {Level: [1000, 4000]}, r: {Level: 2000}}}}}}}\n"
    "Operations: {Defaults: {JobDescription: {Level: {type: number}}}}"
)


MULTI = {"Tags": ["MultiProcessor"], "CPUTime": 100}


@pytest.mark.parametrize(
    ("config", "stated", "told"),
    [
        (
            TWO,
            {"Site": "Nowhere.x", "BannedSites": "A.x"},
            "; ".join(
                f"{way}, and take A.x off BannedSites" for way in ("allow Site A.x as well", "leave out Site")
            ),
        ),
        (
            TWO,
            {**MULTI, "NumberOfProcessors": 8},
            "lower NumberOfProcessors from 8 to 1, and leave out the tag MultiProcessor",
        ),
        (TWO, {**MULTI, "NumberOfProcessors": 1}, "leave out the tag MultiProcessor"),
        (
            TWO,
            {"MinNumberOfProcessors": 2, "MaxNumberOfProcessors": 4, "CPUTime": 100},
            "lower MinNumberOfProcessors from 2 to 1, and lower MaxNumberOfProcessors from 4 to 1",
        ),
        (STEPS, {"Requirements": {"Level": 4000}}, "leave out Level"),
    ],
)
def test_what_is_stated_is_changed(config: Configuration, stated: Description, told: str) -> None:
    assert "; ".join(check(config, {"Executable": "a", **stated})) == told


def test_no_more_warnings_are_computed_than_are_shown() -> None:
    endless = (f"os:{number // 2}" for number in itertools.count())
    assert explanations.take_warnings(endless) == ["os:0", "os:1", "os:2"]
