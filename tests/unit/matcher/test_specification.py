"""Jobs and nodes of DiracX's match-making specification: scenarios, and a model from its document alone."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cs_config import validate
from cs_config.options.operations import options_for
from matcher import allotment, conditions, rules
from matcher.allotment import SlotAllotment
from matcher.explain.job_conditions import ClassCondition, JobDemand, list_conditions
from matcher.index.requirement_class_index import ClassIndex
from matcher.request import match_request, node_document
from optimizers.description.description import parse_description
from requirements.column_index import SingleItem
from requirements.diracx import specification
from requirements.requirement_class import RequirementClass
from requirements.resource import Allotment, Resource
from taskqueue.task_queues.class_derivation import CLASSIFIED, derive_class
from tests.support.factories.specification_scenarios import SpecificationScenario, read_scenarios

OPTIONS = options_for(validate.parse("Registry: {VO: {cms: {}}}\n", version=1), "cms")
NO_POOLS = frozenset[str]()


def ask(requirements: Mapping[str, Any]) -> RequirementClass:
    return ask_whole({"executable": "x", "requirements": requirements})


def ask_whole(description: Mapping[str, Any]) -> RequirementClass:
    """The class of a document's job, as it is stored and read."""
    read = parse_description(description, OPTIONS)
    stated = {name: getattr(read, name) for name in CLASSIFIED if read.states(name)}
    found = RequirementClass.from_json(derive_class("cms", stated, OPTIONS).to_json())
    assert found is not None
    return found


def offer(node: Mapping[str, Any]) -> Resource:
    return match_request.read_resource(node).resource


@pytest.mark.parametrize("scenario", read_scenarios(), ids=lambda each: each.name)
def test_a_job_and_a_node_fit_as_the_specification_has_it(scenario: SpecificationScenario) -> None:
    refused = conditions.refusals(ask_whole(scenario.description), offer(scenario.node), ())
    assert (not refused) == scenario.fits, refused


def test_the_index_finds_the_jobs_of_all_scenarios_that_fit_a_node() -> None:
    index, asked = ClassIndex(), [ask_whole(each.description) for each in read_scenarios()]
    for class_id, each in enumerate(asked):
        index.add(class_id, each)
    for scenario in read_scenarios():
        resource = offer(scenario.node)
        fitting = {class_id for class_id, each in enumerate(asked) if conditions.fits(each, resource)}
        assert set(index.classes(index.mask(resource, NO_POOLS))) == fitting, scenario.name


def model_fits(job: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """The rules as the document has them (sections 5 and 7), without anything of ours."""
    cores = job["cpu"].get("num_cores", {"min": 1, "max": 1})
    request = job["cpu"].get("ram_mb", {}).get("request")
    allocated = node["cpu"]["num_cores"]
    if cores.get("max") is not None:
        allocated = min(allocated, cores["max"])
    if request and node["cpu"].get("ram_mb") is not None:
        while allocated and request["overhead"] + request["per_core"] * allocated > node["cpu"]["ram_mb"]:
            allocated -= 1
    if allocated < cores["min"]:
        return False
    power = node["wall_time"] * node["cpu_power_db12"] * allocated
    if job.get("cpu_work_db12", 0) > power or job.get("wall_time", 0) > node["wall_time"]:
        return False
    disk = node.get("io", {}).get("scratch_mb")
    if disk is not None and job.get("io", {}).get("scratch_mb", 0) > disk:
        return False
    has, wants = node["cpu"]["architecture"], job["cpu"]["architecture"]
    if has["name"] != wants["name"] or not set(wants.get("required_features", ())) <= set(has["features"]):
        return False
    return model_gpus(job, node) and model_tags(job.get("tags"), node["tags"])


def model_gpus(job: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    count, gpu = node["gpu"]["count"], job.get("gpu")
    if gpu is None:
        return count == 0
    if not gpu["count"]["min"] <= count <= gpu["count"]["max"]:
        return False
    if not count:
        return True
    consent = "gpu:opportunistic-cpu-ok"
    if not gpu["count"]["min"] and not (consent in node["tags"] and consent in job.get("tags", "")):
        return False
    return (
        node["gpu"]["vendor"] == gpu["vendor"]
        and int(node["gpu"]["arch"][3:]) >= int(gpu["arch"][3:])
        and node["gpu"]["vram_mb_per_gpu"] >= gpu.get("vram_mb_per_gpu", 0)
    )


def model_tags(expression: str | None, tags: list[str]) -> bool:
    """Python's `not`, `and` and `or` bind as the specification's operators do."""
    if not expression:
        return True
    words = expression.replace("(", " ( ").replace(")", " ) ").replace("~", " ~ ").split()
    signs = {"~": "not", "&": "and", "|": "or", "(": "(", ")": ")"}
    return bool(eval(" ".join(signs.get(word) or str(word in tags) for word in words)))  # noqa: S307


TAGS = st.sampled_from(["a", "b", "gpu:opportunistic-cpu-ok"])
expressions = st.recursive(
    TAGS,
    lambda inner: st.one_of(
        inner.map("~ {}".format),
        st.tuples(inner, st.sampled_from("&|"), inner).map(" ".join),
        inner.map("( {} )".format),
    ),
    max_leaves=6,
)
jobs = st.fixed_dictionaries(
    {
        "cpu": st.fixed_dictionaries(
            {
                "architecture": st.fixed_dictionaries(
                    {
                        "name": st.just("x86_64"),
                        "required_features": st.lists(
                            st.sampled_from(["avx", "fma"]), min_size=1, unique=True
                        ),
                    }
                )
            },
            optional={
                "num_cores": st.tuples(st.integers(1, 4), st.none() | st.integers(0, 4)).map(
                    lambda pair: {"min": pair[0], "max": None if pair[1] is None else sum(pair)}
                ),
                "ram_mb": st.fixed_dictionaries(
                    {
                        "request": st.fixed_dictionaries(
                            {"overhead": st.integers(1, 9), "per_core": st.integers(1, 9)}
                        )
                    }
                ),
            },
        ),
        "wall_time": st.integers(1, 9),
    },
    optional={
        "cpu_work_db12": st.integers(1, 400),
        "io": st.fixed_dictionaries({"scratch_mb": st.integers(0, 3)}),
        "tags": expressions,
        "gpu": st.fixed_dictionaries(
            {
                "vendor": st.just("nvidia"),
                "arch": st.sampled_from(["sm_80", "sm_89"]),
                "count": st.tuples(st.integers(0, 2), st.integers(0, 2)).map(
                    lambda pair: {"min": pair[0], "max": pair[0] + pair[1] or 1}
                ),
            },
            optional={"vram_mb_per_gpu": st.integers(0, 3)},
        ),
    },
)
nodes = st.fixed_dictionaries(
    {
        "site": st.just("SiteA"),
        "system": st.just({"name": "Linux"}),
        "wall_time": st.integers(0, 12),
        "cpu_power_db12": st.sampled_from([0, 1, 2.5, 10]),
        "cpu": st.fixed_dictionaries(
            {
                "num_nodes": st.just(1),
                "num_cores": st.integers(1, 8),
                "architecture": st.fixed_dictionaries(
                    {
                        "name": st.sampled_from(["x86_64", "aarch64"]),
                        "features": st.lists(st.sampled_from(["avx", "fma", "mmx"]), unique=True),
                    }
                ),
            },
            optional={"ram_mb": st.integers(0, 60)},
        ),
        "gpu": st.just({"count": 0})
        | st.fixed_dictionaries(
            {
                "count": st.integers(1, 3),
                "vendor": st.sampled_from(["nvidia", "amd"]),
                "arch": st.sampled_from(["sm_75", "sm_80", "sm_90"]),
                "vram_mb_per_gpu": st.integers(1, 3),
            }
        ),
        "tags": st.lists(TAGS, unique=True),
    },
    optional={"io": st.fixed_dictionaries({"scratch_mb": st.integers(0, 3)})},
)


@settings(max_examples=300, deadline=None)
@given(jobs, nodes)
def test_the_rules_agree_with_a_model_of_the_document(job: dict[str, Any], node: dict[str, Any]) -> None:
    refused = conditions.refusals(ask(job), offer(node), ())
    assert (not refused) == model_fits(job, node), refused


def test_a_job_is_given_as_many_cores_as_its_memory_allows() -> None:
    asked = ask(
        {
            "wall_time": 60,
            "cpu": {
                "num_cores": {"min": 1, "max": 128},
                "ram_mb": {"request": {"overhead": 512, "per_core": 256}},
                "architecture": {"name": "x86_64", "level": "x86-64-v1"},
            },
        }
    )
    slot = SlotAllotment(Resource(cpu_time=60, processors=16, max_ram=3400))
    slot.take(asked, 1)
    assert [each.processors for each in slot.allotments()] == [11]


def test_jobs_of_one_request_have_the_cores_that_their_work_needs_and_share_the_disk() -> None:
    cpu = {"num_cores": {"min": 1, "max": 8}, "architecture": {"name": "x86_64", "level": "x86-64-v1"}}
    asked = ask({"cpu_work_db12": 4000, "cpu": cpu, "io": {"scratch_mb": 400}})
    whole = Resource(cpu_time=1, wall_time=100, cpu_power_db12=10, processors=16)
    assert SlotAllotment(whole).most(asked, 9) == 4  # of four cores each
    disk = Resource(cpu_time=1, wall_time=100, cpu_power_db12=10, processors=16, scratch_mb=1000)
    assert SlotAllotment(disk).most(asked, 9) == 2
    slot = SlotAllotment(disk)
    slot.take(asked, 2)
    assert [each.processors for each in slot.allotments()] == [8, 8]


def test_nearly_equal_lengths_share_a_task_queue() -> None:
    cpu = {"architecture": {"name": "x86_64", "level": "x86-64-v1"}}
    lengths = [{"cpu_work_db12": 1_234_567}, {"cpu_work_db12": 1_239_000}, {"cpu_work_db12": 1_240_001}]
    one, other, longer = (ask({**length, "cpu": cpu}) for length in lengths)
    assert one == other
    assert one.cpu_work_db12 == 1_240_000
    assert longer.cpu_work_db12 == 1_250_000


def test_a_pilot_that_states_no_power_is_measured_by_its_cpu_time() -> None:
    asked = ask({"cpu_work_db12": 1000, "cpu": {"architecture": {"name": "x86_64", "level": "x86-64-v1"}}})
    architecture = {"NodeFacts": {"Architecture": "x86_64"}}  # as every pilot of ours measures it
    assert conditions.fits(asked, offer({"CPUTime": 1000, **architecture}))
    assert not conditions.fits(asked, offer({"CPUTime": 999, **architecture}))
    assert conditions.refusals(asked, offer({"CPUTime": 1000}), ()) == ("architecture",)


@pytest.mark.parametrize("power", [0, 1e-300, 5e-324])
def test_hardly_any_power_does_no_work(power: float) -> None:
    asked = ask({"cpu_work_db12": 10**15, "cpu": {"architecture": {"name": "x86_64", "level": "x86-64-v1"}}})
    has = offer({"CPUTime": 9, "WallTime": 1, "CPUPowerDB12": power, "Architecture": "x86_64"})
    assert conditions.refusals(asked, has, ()) == ("cpu_work",)
    assert rules.needed_cores(asked, has) > 10**6


@given(st.integers(1, 10**15), st.floats(0.01, 100), st.integers(1, 10**6), st.integers(1, 64))
def test_a_job_that_fits_needs_no_more_cores_than_there_are(
    work: int, power: float, seconds: int, cores: int
) -> None:
    asked = RequirementClass(vo="cms", cpu_time=0, cpu_work_db12=work, processors_max=None)
    has = Resource(cpu_time=1, wall_time=seconds, cpu_power_db12=power, processors=cores)
    assert conditions.fits(asked, has) == (rules.needed_cores(asked, has) <= cores)


@given(
    st.integers(1, 1000),
    st.lists(st.integers(1, 20), min_size=2, max_size=5),
    st.integers(1, 16),
    st.booleans(),
    st.sampled_from([None, 4000]),
)
def test_the_time_left_decides_an_allotment_by_the_cores_that_are_needed_only(
    work: int, times: list[int], cores: int, whole: bool, ram: int | None
) -> None:
    asked = RequirementClass(
        vo="cms", cpu_time=0, cpu_work_db12=work, processors_max=None, whole_node=whole, min_ram_per_core=300
    )
    by_cores: dict[int, Allotment] = {}
    for seconds in times:
        has = Resource(cpu_time=1, wall_time=seconds, cpu_power_db12=10, processors=cores, max_ram=ram)
        found = allotment.allot_one(has, asked)
        assert by_cores.setdefault(rules.needed_cores(asked, has), found) == found


def test_work_is_compared_by_its_order_and_not_class_by_class() -> None:
    index, has = ClassIndex(), Resource(cpu_time=1, wall_time=100, cpu_power_db12=10, processors=8)
    for work in range(1, 1001):
        memory = RequirementClass(vo="cms", cpu_time=0, cpu_work_db12=10 * work, min_ram=work)
        index.add(work, memory)
    with mock.patch.object(rules, "most_cores", wraps=rules.most_cores) as counted:
        assert set(index.classes(index.mask(has, NO_POOLS))) == set(range(1, 101))
        assert set(index.classes(index.mask(replace(has, wall_time=50), NO_POOLS))) == set(range(1, 51))
        assert counted.call_count == 1
        index.add(
            0, RequirementClass(vo="cms", cpu_time=0, cpu_work_db12=1, processors_min=8, processors_max=8)
        )
        assert 0 in index.classes(index.mask(has, NO_POOLS))


def test_a_job_without_a_document_or_its_keywords_runs_where_it_did() -> None:
    plain = parse_description({"Executable": "x", "MaxNumberOfProcessors": 8}, OPTIONS)
    stated = {name: getattr(plain, name) for name in CLASSIFIED if plain.states(name)}
    asked = derive_class("cms", stated, OPTIONS)
    gpus = {
        "CPUTime": 10**6,
        "NumberOfProcessors": 8,
        "GPUs": 4,
        "GPUVendor": "nvidia",
        "Architecture": "any",
    }
    assert conditions.fits(asked, offer(gpus))
    assert not {"architecture", "gpus_max", "system"} & set(asked.to_json())


def test_an_unusable_value_of_a_new_keyword_is_left_out_with_a_warning() -> None:
    read = match_request.read_resource({"CPUTime": 1, "GPUs": 1, "GPUMemory": "16 GB", "WallTime": "long"})
    assert read.resource.gpu_memory_mb == 0
    assert read.resource.wall_time is None
    assert [each.split(":")[0] for each in read.warnings] == ["WallTime", "GPUMemory"]


def test_a_node_document_names_each_missing_and_unknown_field() -> None:
    with pytest.raises(match_request.InvalidResource) as refused:
        offer({"site": "A", "cpu": {"num_cores": 1, "architektur": {}}, "gpu": {"count": 1}})
    messages = str(refused.value)
    for path in ("wall_time: is missing", "gpu/vendor: is missing", "cpu/num_nodes: is missing"):
        assert path in messages
    assert "cpu/architektur: is unknown, did you mean architecture?" in messages


def test_the_page_has_each_field_of_a_node_document_and_whether_it_is_needed() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "matching-specification.md").read_text()
    rows = re.findall(r"^\| `([a-z_0-9.]+)` \| `?([A-Za-z0-9]+)[`:].*\| (.*) \|$", page, re.MULTILINE)
    fields = {path.replace("/", "."): keyword for path, keyword in node_document.FIELDS.items()}
    assert {name: keyword for name, keyword, _ in rows} == fields | {"cpu.num_nodes": "none"}
    with pytest.raises(match_request.InvalidResource) as refused:
        node_document.read_keywords({"cpu": {}, "gpu": {"count": 1}})
    missing = {each.path.replace("/", ".") for each in refused.value.problems}
    assert missing | {"gpu.count"} == {name for name, _, absent in rows if absent.startswith("refused")}


@pytest.mark.parametrize(("field", "most"), [("wall_time", 10**12), ("cpu_power_db12", 10**6)])
def test_numbers_of_a_node_document_have_an_upper_bound_that_is_named(field: str, most: int) -> None:
    [scenario, *_] = read_scenarios()
    offer({**scenario.node, field: most})
    with pytest.raises(match_request.InvalidResource) as refused:
        offer({**scenario.node, field: 2 * most})
    assert str(refused.value).endswith(f"{field}: is {2 * most}, allowed is a number from 0 to {most}")


@pytest.mark.parametrize("scenario", read_scenarios(), ids=lambda each: each.name)
def test_an_explanation_has_a_condition_for_each_refusal(scenario: SpecificationScenario) -> None:
    asked, resource = ask_whole(scenario.description), offer(scenario.node)
    unmet = {
        part.condition.name
        for part in list_conditions(JobDemand(asked=asked))
        if isinstance(part, ClassCondition)
        and not part.condition.select(SingleItem(part.isolated, conditions.COLUMNS), resource)
    }
    assert unmet == set(conditions.refusals(asked, resource, ()))


def test_a_tag_with_a_reserved_prefix_has_one_of_its_words() -> None:
    found = specification.list_unknown_tags(
        "os:el9 | os:debain12 & cvmfs:any & lhcb:x & ~os:el8 & os", ["os:el8"]
    )
    assert list(found) == [("os:debain12", "os:debian12")]
