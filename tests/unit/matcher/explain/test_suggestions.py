"""What is promised is what will be: proposed changes, and the parts that explanations are made of."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config import validate
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from matcher import conditions
from matcher.explain import explanation, job_conditions, queue_set
from matcher.explain.explanation import explain, queues_failing_one
from matcher.explain.job_conditions import JobDemand
from matcher.explain.work_budget import WorkBudget
from matcher.index.requirement_class_index import ClassIndex
from matcher.preview.shifts import VersionComparison
from requirements import evaluator
from requirements.classad.expression import Expression
from requirements.column_index import SingleItem
from requirements.record import Record
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource
from taskqueue.task_queues.class_derivation import derive_class

SITES = ("LCG.A.org", "LCG.B.org", "LCG.C.org")
TAGS = ("gpu", "fast", "big")
MODELS = ("Intel Xeon", "AMD EPYC")
RAM = (1000, 2000, 4000, 8000)


def names(*among: str):
    return st.frozensets(st.sampled_from(among), max_size=2)


queues = st.fixed_dictionaries(
    {"Enabled": st.sampled_from([True, True, True, False])},
    optional={
        "MaxRAM": st.sampled_from(RAM),
        "CPUTime": st.sampled_from([3600, 90_000, 400_000]),
        "NumberOfProcessors": st.sampled_from([1, 4, 8]),
        "GPUs": st.sampled_from([0, 2]),
        "Platform": st.sampled_from(["el8", "el9"]),
        "Tag": names(*TAGS).map(sorted),
        "RequiredTag": names("gpu").map(sorted),
        "CPUModel": st.sampled_from(MODELS),
        "VO": st.sampled_from([["cms"], ["dune"], ["cms", "dune"]]),
        "WholeNode": st.booleans(),
        "Level": st.sampled_from([True, 1, 2.5, "a", [1, "a"], [True, "a"]]),
    },
)


@st.composite
def trees(draw) -> Configuration:
    sites = {
        site: {"CEs": {f"ce{number}": {"Queues": {"one": draw(queues), "two": draw(queues)}}}}
        for number, site in enumerate(draw(st.lists(st.sampled_from(SITES), min_size=1, unique=True)))
    }
    declared = {"JobDescription": {"Memory": {"type": "number", "resource": "MaxRAM"}}}
    return validate.parse(repr({"Resources": {"Sites": sites}, "Operations": {"Defaults": declared}}))


#: By attribute of a description.
STATED = {
    "sites": names(*SITES, "LCG.AA.org"),
    "banned_sites": names(*SITES),
    "grid_ces": names("ce0", "ce1"),
    "platforms": names("el8", "el7"),
    "tags": names(*TAGS, "gpuu", "MultiProcessor", "4Processors", "WholeNode"),
    "min_ram_mb": st.sampled_from([0, 2000, 100_000]),
    "min_ram_per_core_mb": st.sampled_from([0, 1000]),
    "processors": st.sampled_from([1, 4, 64]),
    "min_processors": st.sampled_from([1, 4]),
    "max_processors": st.sampled_from([64, 128]),
    "whole_node": st.booleans(),
    "gpus": st.sampled_from([0, 1, 4]),
}
OPTIONS = options_for(validate.parse("{}"), "cms")
classes = st.fixed_dictionaries({"cpu_time": st.sampled_from([3600, 86_400, 345_600])}, optional=STATED).map(
    lambda stated: derive_class("cms", stated, OPTIONS)
)
records = st.dictionaries(
    st.sampled_from(["Memory", "CPUModel", "CPUModell", "Country", "Level"]),
    st.sampled_from([4000, 64_000, "Intel Xeon", "Intel Xenon", "DE", True, 1, "b", (2, "b")]),
    min_size=1,
).map(lambda values: Record(values=tuple(sorted(values.items()))))
expressions = st.sampled_from(
    [
        "other.MaxRAM > 3000",
        'Level == "b"',
        "Level == true && MaxRAM > 3000",
        'MaxRAM > 9000 && CPUModel == "AMD EPYC"',
        "GPUs > 0 && Missing == 1 && true",
    ]
).map(lambda text: Expression(text=text))
demands = st.builds(JobDemand, asked=classes, requirements=st.none() | records | expressions)


def eligible_by_the_rules(config: Configuration, demand: JobDemand) -> set[str]:
    """Queue by queue, without bitmaps: what the matcher would say of a pilot there."""
    whole = queue_set.some_queues(config, "cms", config.addresses)
    return {
        str(queue.address)
        for queue in whole.queues
        if config.usable(queue.address, "cms")
        and not conditions.refusals(demand.asked, queue.resource, ())
        and (
            demand.requirements is None
            or evaluator.eligible(demand.requirements, queue.values, whole.declarations)
        )
    }


@given(trees(), demands)
def test_the_survey_says_what_the_rules_and_the_evaluator_say(config: Configuration, demand: JobDemand):
    whole = queue_set.some_queues(config, "cms", config.addresses)
    eligible = whole.eligible(demand)
    found = {str(queue.address) for number, queue in enumerate(whole.queues) if eligible >> number & 1}
    assert found == eligible_by_the_rules(config, demand)


@given(trees(), st.lists(classes, min_size=1, max_size=4))
def test_check_index_explanation_and_preview_select_the_same_queues(
    config: Configuration, asked: list[RequirementClass]
):
    whole, index = queue_set.some_queues(config, "cms", config.addresses), ClassIndex()
    for class_id, each in enumerate(asked):
        index.add(class_id, each)
    usable = [queue for queue in whole.queues if config.usable(queue.address, "cms")]
    indexed = [
        (queue.address, class_id)
        for queue in usable
        for class_id in index.classes(index.mask(queue.resource, frozenset()))
    ]
    added = frozenset(config.addresses)
    preview = VersionComparison(validate.parse("{}"), config, "cms", added, WorkBudget())
    for class_id, each in enumerate(asked):
        demand = JobDemand(asked=each)
        checked = {queue.address for queue in usable if conditions.fits(each, queue.resource)}
        assert {address for address, found in indexed if found == class_id} == checked
        assert whole.addresses(whole.eligible(demand)) == checked
        shift = preview.compute_shift(list(job_conditions.list_conditions(demand)))
        assert (set() if shift is None else shift.gained) == checked


@given(trees(), demands)
def test_a_change_makes_as_many_queues_eligible_as_it_says(config: Configuration, demand: JobDemand):
    whole = queue_set.some_queues(config, "cms", config.addresses)
    before = eligible_by_the_rules(config, demand)
    told = explanation.suggest_changes(whole, "cms", demand)
    assert [each.effort for each in told] == sorted(each.effort for each in told)
    for each in told:
        assert each.gains > 0
        if each.demand is not None:
            after = eligible_by_the_rules(config, each.demand)
            assert str(each.example) in after - before, each.text
            assert len(after) - len(before) == each.gains, each.text
            assert ("loses" in each.text) == bool(before - after), each.text


@given(trees(), demands)
def test_where_no_queue_is_eligible_something_helps(config: Configuration, demand: JobDemand):
    whole = queue_set.some_queues(config, "cms", config.addresses)
    found = explain(whole, "cms", demand)
    if found.candidate_queues and not found.eligible_queues:
        failures = whole.failures(demand)
        fewest = min(
            sum(each.queues >> number & 1 for each in failures)
            for number in range(len(whole.queues))
            if whole.candidates >> number & 1
        )
        assert fewest > 4 or explanation.suggest_changes(whole, "cms", demand)


@given(trees(), demands)
def test_what_fails_alone_is_counted_once(config: Configuration, demand: JobDemand):
    whole = queue_set.some_queues(config, "cms", config.addresses)
    failures = whole.failures(demand)
    for number in range(len(whole.queues)):
        fails = sum(each.queues >> number & 1 for each in failures)
        assert (queues_failing_one(failures) >> number & 1) == (fails == 1)


resources = st.builds(
    Resource,
    cpu_time=st.sampled_from([0, 3600, 86_400]),
    sites=st.none() | st.sampled_from([frozenset({"lcg.a.org"}), frozenset({"lcg.b.org"})]),
    grid_ces=st.none() | st.just(frozenset({"ce0"})),
    platforms=st.none() | st.just(frozenset({"el8"})),
    job_types=st.none() | st.just(frozenset({"montecarlo"})),
    managed_types=st.sampled_from([frozenset(), frozenset({(None, frozenset({"montecarlo", "generic"}))})]),
    tags=st.none() | names("gpu", "fast", "multiprocessor", "4processors", "wholenode"),
    required_tags=names("gpu"),
    max_ram=st.none() | st.sampled_from(RAM),
    processors=st.none() | st.sampled_from([1, 4]),
    gpus=st.sampled_from([0, 2]),
    whole_node=st.booleans(),
)


@given(classes, names("MonteCarlo", "Merge"), resources)
def test_all_parts_together_are_the_rules(
    asked: RequirementClass, job_types: frozenset[str], resource: Resource
):
    asked = replace(asked, job_types=job_types)
    taken_apart = [
        part
        for part in job_conditions.list_conditions(JobDemand(asked=asked))
        if not part.condition.select(SingleItem(part.isolated, conditions.COLUMNS), resource)
    ]
    assert bool(taken_apart) == bool(conditions.refusals(asked, resource, ()))


def test_two_mistakes_are_mended_together():
    config = validate.parse("{Resources: {Sites: {A.B.org: {CEs: {ce: {Queues: {q: {MaxRAM: 2000}}}}}}}}")
    asked = derive_class("cms", {"cpu_time": 3600, "min_ram_mb": 8000, "gpus": 1}, OPTIONS)
    whole = queue_set.all_queues(config, "cms")
    [change] = explanation.suggest_changes(whole, "cms", JobDemand(asked=asked))
    assert change.text == "lower MinRAM from 8000 to 2000 MB, and lower GPUs from 1 to 0"
    less = derive_class("cms", {"cpu_time": 3600, "min_ram_mb": 2000, "gpus": 0}, OPTIONS)
    assert change.demand == JobDemand(asked=less)


def test_nobody_is_sent_to_a_closed_site_while_another_is_open():
    sites = {site: {"CEs": {"ce": {"Queues": {"one": {}}}}} for site in SITES}
    config = validate.parse(repr({"Resources": {"Sites": sites}}))
    whole = queue_set.all_queues(config, "cms")
    here = RequirementClass(vo="cms", cpu_time=3600, sites=frozenset({"LCG.B.org"}))
    told = explanation.suggest_changes(whole, "cms", JobDemand(asked=here), closed=whole.within("LCG.A.org"))
    assert {(each.text, each.gains, each.open_now, each.example.site) for each in told} == {
        ("allow Site LCG.C.org as well", 1, 1, "LCG.C.org"),
        ("leave out Site", 2, 1, "LCG.C.org"),
    }
    shut = explanation.suggest_changes(whole, "cms", JobDemand(asked=here), closed=whole.everything)
    assert ("leave out Site", 2, 0) in {(each.text, each.gains, each.open_now) for each in shut}


def test_the_smallest_change_comes_first_and_leaving_out_comes_last():
    """The cure of a misspelling, then the nearest number; whatever gains most queues."""
    queues = {
        f"{name.partition(' ')[0]}{number}": {"CPUModel": name, "MaxRAM": ram}
        for name, count, ram in (("Intel Xeon", 1, 64_000), ("AMD EPYC", 5, 2000))
        for number in range(count)
    }
    config = validate.parse(repr({"Resources": {"Sites": {"A.B.org": {"CEs": {"ce": {"Queues": queues}}}}}}))
    whole = queue_set.all_queues(config, "cms")

    def changes(expression: str) -> list[str]:
        demand = JobDemand(
            asked=RequirementClass(vo="cms", cpu_time=3600), requirements=Expression(text=expression)
        )
        return [each.text for each in explanation.suggest_changes(whole, "cms", demand)]

    assert [each.split("`")[1] for each in changes('other.CPUModel == "Intel Xenon"')] == [
        'other.CPUModel == "Intel Xeon"',
        'other.CPUModel == "AMD EPYC"',
        'other.CPUModel == "Intel Xenon"',
    ]
    steps = changes("other.MaxRAM >= 900000")
    assert [each.partition(" ")[0] for each in steps] == ["write", "write", "leave"]
    assert steps[0].startswith("write `other.MaxRAM >= 64000`")


def explain_to(queue: dict[str, object], **stated: object) -> tuple[dict[str, str | None], set[str]]:
    """What a queue has of the conditions that it fails, and the changes that would win it."""
    config = validate.parse(
        repr({"Resources": {"Sites": {"A.B.org": {"CEs": {"ce": {"Queues": {"q": queue}}}}}}})
    )
    whole = queue_set.all_queues(config, "lhcb")
    stated = {"wall_time": 60, "architecture": "x86_64", "cpu_level": "x86-64-v2", **stated}
    demand = JobDemand(asked=derive_class("lhcb", stated, OPTIONS))
    has = {each.requirement: each.example.has for each in explain(whole, "lhcb", demand).exclusions}
    return has, {each.text for each in explanation.suggest_changes(whole, "lhcb", demand)}


def test_texts_about_gpus_are_lowered_to_what_a_queue_states():
    queue = {
        "GPUs": 1,
        "GPUVendor": "nvidia",
        "GPUArchitecture": "sm_80",
        "GPURuntime": "11.8",
        "GPUMemory": 40_000,
    }
    gpu = {"gpus": 1, "gpu_vendor": "nvidia", "gpu_architecture": "sm_80"}
    assert explain_to(queue, **gpu, gpu_runtime="12.2") == (
        {"GPURuntime": "11.8"},
        {"lower GPURuntime from 12.2 to 11.8"},
    )
    assert explain_to(queue, **gpu | {"gpu_architecture": "sm_90"}) == (
        {"GPUArchitecture": "sm_80"},
        {"lower GPUArchitecture from sm_90 to sm_80"},
    )


def test_a_tag_expression_is_shortened_by_what_the_queue_does_not_fulfil():
    queue = {"Tag": ["os:el9", "network:wan-degraded"]}
    has, changes = explain_to(queue, tag_expression="(os:el9 | os:el10) & cvmfs:lhcb & ~network:wan-degraded")
    assert has == {"TagExpression": "os:el9, network:wan-degraded"}
    assert changes == {"write TagExpression (os:el10 | os:el9) & cvmfs:lhcb", "leave out TagExpression"}
    assert explain_to(queue, tag_expression="os:el10")[1] == {"leave out TagExpression"}


def test_a_job_without_gpus_is_told_how_many_the_queue_has():
    assert explain_to({"GPUs": 2}) == ({"MaxGPUs": "2"}, set())


def test_a_job_without_gpus_is_told_how_to_use_nodes_whose_gpus_may_be_idle():
    open_queue = {"GPUs": 2, "Tag": ["gpu:opportunistic-cpu-ok", "os:el9"]}
    own = "let it run beside idle GPUs: state GPUs 0 and TagExpression "
    assert explain_to(open_queue)[1] == {f"{own}gpu:opportunistic-cpu-ok"}
    assert explain_to(open_queue, gpus=0, gpus_max=0)[1] == {f"{own}gpu:opportunistic-cpu-ok"}
    assert f"{own}gpu:opportunistic-cpu-ok & os:el9" in explain_to(open_queue, tag_expression="os:el9")[1]
    assert explain_to(open_queue, gpus=1, gpus_max=1, gpu_vendor="nvidia", gpu_architecture="sm_80")[1] == {
        "raise MaxGPUs to 2"
    }


def test_switching_on_a_queue_that_fits_comes_before_two_changes_together():
    """Also if the job names no place: it is the only change that leaves the job as it is."""
    queues = {
        "on": {"CPUTime": 3600, "MaxRAM": 2000},
        "off": {"CPUTime": 864_000, "MaxRAM": 64_000, "Enabled": False},
    }
    config = validate.parse(repr({"Resources": {"Sites": {"A.B.org": {"CEs": {"ce": {"Queues": queues}}}}}}))
    asked = derive_class("cms", {"cpu_time": 400_000, "min_ram_mb": 8000}, OPTIONS)
    told = explanation.suggest_changes(queue_set.all_queues(config, "cms"), "cms", JobDemand(asked=asked))
    assert told[0].text == "ask the site to switch the queue on (Enabled: true)"
    assert len(told) > 1


@pytest.mark.parametrize(("other", "is_first"), [(300_000, False), (3600, True)])
def test_switching_on_comes_before_giving_up_more_than_half_of_a_value(other: int, is_first: bool) -> None:
    queues = {"on": {"CPUTime": other}, "off": {"CPUTime": 864_000, "Enabled": False}}
    config = validate.parse(repr({"Resources": {"Sites": {"A.B.org": {"CEs": {"ce": {"Queues": queues}}}}}}))
    asked = derive_class("cms", {"cpu_time": 400_000}, OPTIONS)
    told = explanation.suggest_changes(queue_set.all_queues(config, "cms"), "cms", JobDemand(asked=asked))
    assert [each.demand is None for each in told] == [is_first, not is_first]
