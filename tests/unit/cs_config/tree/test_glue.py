from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config import validate
from cs_config.classes import queue_class_index, queue_classes
from cs_config.tree import cpu_time, glue
from cs_config.tree.address import QueueAddress
from matcher.request import queue_offer
from requirements.classad.expression import parse_expression
from requirements.values import Value

DOCS = Path(__file__).parents[4] / "docs"
ADDRESS = QueueAddress(site="EGEE.Milano.it", ce="atlfarm006.mi.infn.it:2119", queue="blah-pbs-long")
TREE = """\
Resources:
  Sites:
    S:
      CEs:
        C:
          CPUTime: 172800
          Queues:
            a: {SI00: 400}
            b: {SI00: 600}
            twin: {SI00: 600}
            own: {SI00: 600, glueHostBenchmarkSI00: 100}
"""
BY_ADDRESS = TREE + "Operations: {cms: {Pools: {ByAddress: true}}}\n"


@pytest.mark.parametrize(
    ("values", "name", "seen"),
    [
        ({"CPUTime": 172_800}, "GlueCEPolicyMaxCPUTime", 2880),
        ({"CPUTime": 3659}, "GlueCEPolicyMaxCPUTime", 60),
        ({"maxCPUTime": 700}, "GlueCEPolicyMaxCPUTime", 700),
        ({"maxCPUTime": 700, "cputime": 600}, "GlueCEPolicyMaxCPUTime", 10),
        ({"maxWallClockTime": 7200}, "GlueCEPolicyMaxWallClockTime", 120),
        ({"SI00": 400}, "GlueHostBenchmarkSI00", 400),
        ({"MaxRAM": 1001}, "GlueHostMainMemoryRAMSize", 1001),
        ({"NumberOfProcessors": 2}, "GlueHostArchitectureSMPSize", 2),
        ({"CPUModel": "PIII"}, "GlueHostProcessorModel", "PIII"),
        ({"OS": ("SLC",)}, "GlueHostOperatingSystemName", "SLC"),
        ({"Tag": "APP1"}, "GlueHostApplicationSoftwareRunTimeEnvironment", ("APP1",)),
        ({"SE": ("a", "b"), "CloseSE": "a"}, "GlueCESEBindGroupSEUniqueID", ("a",)),
        ({"VO": ("EGEE", "cms")}, "GlueCEAccessControlBaseRule", ("VO:EGEE", "VO:cms")),
        ({"Enabled": True}, "GlueCEStateStatus", "Production"),
        ({"Enabled": False}, "GlueCEStateStatus", "Closed"),
        ({"BatchQueue": "infinite"}, "GlueCEName", "infinite"),
    ],
)
def test_glue_names_follow_from_parameters(values: dict[str, Value], name: str, seen: Value) -> None:
    assert glue.build_ad(values)[name] == seen


def test_what_is_not_stated_says_nothing() -> None:
    assert glue.build_ad({}) == {}
    assert "GlueHostOperatingSystemName" not in glue.build_ad({"OS": ("a", "b")})


def test_what_a_queue_states_itself_stays() -> None:
    assert glue.build_ad({"SI00": 400, "GLUEHOSTBENCHMARKSI00": 100}) == {
        "SI00": 400,
        "GLUEHOSTBENCHMARKSI00": 100,
    }


def test_an_address_gives_the_ids_that_a_ce_ad_has() -> None:
    ad = glue.build_ad({"BatchQueue": "infinite"}, ADDRESS)
    assert ad["GlueCEUniqueID"] == "atlfarm006.mi.infn.it:2119/blah-pbs-long"
    assert ad["GlueCEInfoHostName"] == "atlfarm006.mi.infn.it"
    assert ad["QueueName"] == "infinite"
    assert glue.build_ad({}, ADDRESS)["QueueName"] == "blah-pbs-long"


PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        "CPUTime": st.integers(1, 10_000).map(lambda minutes: minutes * 60),
        "maxWallClockTime": st.integers(1, 10_000).map(lambda minutes: minutes * 60),
        "SI00": st.integers(1, 10_000),
        "MaxRAM": st.integers(1, 10_000),
        "NumberOfProcessors": st.integers(1, 128),
        "CPUModel": st.text(min_size=1),
        "SoftwareTag": st.lists(st.text(min_size=1), max_size=3).map(tuple),
        "CloseSE": st.lists(st.text(min_size=1), max_size=3).map(tuple),
        "VO": st.lists(st.sampled_from(["cms", "EGEE"]), max_size=2).map(tuple),
        "CEQueueName": st.text(min_size=1),
    },
)


@given(PARAMETERS)
def test_the_way_back_gives_the_parameters(values: dict[str, Value]) -> None:
    only_glue = {name: value for name, value in glue.build_ad(values).items() if name not in values}
    assert glue.parameters_from_glue(only_glue) == values


@pytest.mark.parametrize(
    "published",
    [
        *(0, -1, 444_444, 444_444_444, 999_999, 999_999_999, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1),
        *("444444", str(2**53), "", "n/a"),
    ],
)
@pytest.mark.parametrize(
    "name", ["GlueCEPolicyMaxCPUTime", "GlueHostMainMemoryRAMSize", "GlueHostArchitectureSMPSize"]
)
def test_a_number_that_stands_for_none_implies_nothing(name: str, published: Value) -> None:
    assert glue.parameters_from_glue({name: published}) == {}
    assert list(glue.unstated_numbers({name: published, "GlueCEStateWaitingJobs": 444_444})) == [name]


@pytest.mark.parametrize(
    ("name", "published", "seen"),
    [
        ("GlueCEPolicyMaxWallClockTime", 999_999_999, None),
        ("gluecepolicymaxwallclocktime", 2**31 - 1, None),
        ("GlueHostMainMemoryRAMSize", 444_444, None),
        ("GlueHostMainMemoryRAMSize", 0, None),
        ("GlueHostBenchmarkSI00", "n/a", None),
        ("GlueHostBenchmarkSI00", " 400 ", 400),
        ("GlueCEPolicyMaxCPUTime", 2880, 2880),
        ("GlueCEStateWaitingJobs", 444_444, None),
        ("GlueCEPolicyMaxRunningJobs", 999_999_999.0, None),
        ("GlueCEStateFreeCPUs", 0, 0),
        ("GlueCEStateFreeCPUs", -1, -1),
        ("GlueCEInfoLRMSVersion", "999999", "999999"),
        ("GlueHostMainMemoryRAMSize", (1000, 2000), (1000, 2000)),
        ("MyNumber", 999_999, 999_999),
    ],
)
def test_requirements_see_a_number_of_an_information_system_or_nothing(
    name: str, published: Value, seen: Value | None
) -> None:
    assert glue.build_ad({name: published}).get(name) == seen


def test_what_follows_from_a_parameter_stands_in_for_a_placeholder() -> None:
    ad = glue.build_ad({"CPUTime": 7200, "gluecepolicymaxcputime": 999_999})
    assert ad == {"CPUTime": 7200, "GlueCEPolicyMaxCPUTime": 120}


def test_pools_and_selections_see_no_placeholder() -> None:
    stated = "{GlueCEPolicyMaxWallClockTime: 999999999}"
    config = validate.parse(TREE.replace("{SI00: 400}", stated).replace("{SI00: 600}", stated))
    for comparison in ("< 5", "> 5", "== 999999999"):
        asked = parse_expression(f"other.GlueCEPolicyMaxWallClockTime {comparison}")
        assert queue_class_index.eligible_queues(config, "cms", asked) == frozenset()
    asked = parse_expression("isUndefined(other.GlueCEPolicyMaxWallClockTime)")
    assert len(queue_class_index.eligible_queues(config, "cms", asked)) == 4


@pytest.mark.parametrize("published", [2880, "2880", " 2880 ", 44_444, 99_999, 4_444_445])
def test_a_number_implies_a_parameter_also_as_its_text(published: Value) -> None:
    number = int(str(published))
    assert glue.parameters_from_glue({"GlueCEPolicyMaxCPUTime": published}) == {"CPUTime": number * 60}
    assert glue.unstated_numbers({"GlueCEPolicyMaxCPUTime": published}) == {}


@pytest.mark.parametrize(
    ("rules", "vos"),
    [
        (("VO:EGEE", "/DC=it/CN=A"), ("EGEE",)),
        (("VOMS:/cms/Role=production",), ()),
        (("vo:EGEE", "DENY:VOMS:/EGEE/guests"), ()),
        ((), ()),
        (5, ()),
    ],
)
def test_rules_of_no_whole_vo_let_nobody_in(rules: Value, vos: Value) -> None:
    assert glue.parameters_from_glue({"GlueCEAccessControlBaseRule": rules}) == {"VO": vos}


def test_a_ce_that_is_not_in_production_is_switched_off() -> None:
    assert glue.parameters_from_glue({"GlueCEStateStatus": "Draining"}) == {"Enabled": False}
    assert glue.parameters_from_glue({"gluecestatestatus": "production"}) == {}


def test_pools_and_selections_see_the_names() -> None:
    config = validate.parse(TREE)
    asked = parse_expression("other.GlueHostBenchmarkSI00 > 500 && other.GlueCEPolicyMaxCPUTime > 1000")
    assert [each.queue for each in sorted(queue_class_index.eligible_queues(config, "cms", asked))] == [
        "b",
        "twin",
    ]
    found = queue_class_index.get_eligible_nodes(
        config, vo="cms", ce={"GlueCEPolicyMaxCPUTime": 2880}, queue={"GlueHostBenchmarkSI00": 500}
    )
    assert list(found["S"]["C"]) == ["b", "twin"]
    assert found["S"]["C"]["b"] == {"CPUTime": 172_800, "SI00": 600}
    assert queue_class_index.get_eligible_nodes(config, vo="cms", ce={"GlueCEPolicyMaxCPUTime": 2881}) == {}


def test_addresses_do_not_split_classes_unless_the_vo_asks_for_it() -> None:
    config = validate.parse(BY_ADDRESS)
    asked = parse_expression('other.GlueCEUniqueID == "C/twin"')
    assert len(queue_classes.queue_classes(config, "atlas")) == 3
    assert queue_class_index.eligible_queues(config, "atlas", asked) == frozenset()
    assert len(queue_classes.queue_classes(config, "cms")) == 4
    assert [each.queue for each in queue_class_index.eligible_queues(config, "cms", asked)] == ["twin"]


@pytest.mark.parametrize("entry", glue.TABLE, ids=lambda each: f"{each.name} of {each.parameter}")
def test_every_glue_name_is_documented(entry: glue.GlueName) -> None:
    unit = f" ({entry.unit})" if entry.unit else ""
    text = (DOCS / "site-admin" / "glue.md").read_text()
    assert f"| `{entry.name}` | `{entry.parameter}` | {entry.form}{unit} |" in text


def test_values_of_nested_ads_can_be_required_by_the_names_of_both() -> None:
    ad = glue.build_ad(
        {
            "CloseStorageElements": '{ [ mount = "/mn/SE2"; name = gridftp05.cern.ch ] }',
            "Disks": "[size = 10; fast = true; free = -1; gone = undefined]",
            "Disks_size": 20,
            "Broken": "[size = ",
        }
    )
    assert ad["CloseStorageElements_mount"] == ("/mn/SE2",)
    assert ad["CloseStorageElements_name"] == ("gridftp05.cern.ch",)
    assert (ad["Disks_fast"], ad["Disks_size"]) == ((True,), 20), "its own value is never replaced"
    assert ad["Disks_free"] == (-1,)
    assert not [name for name in ad if name.startswith("Broken_") or name == "Disks_gone"]
    own = {"Disks": "[Size = 10]", "disks_size": 20}
    assert not dict(glue.nested_values(own)), "in whatever letters its own value is"


LIMITED = """
Resources:
  Sites:
    LCG.A.ch:
      CEs:
        ce:
          Queues:
            short: {maxCPUTime: 60, SI00: 250}
            long: {maxCPUTime: 10080, SI00: 3000}
            walled: {maxWallClockTime: 100000, CPUNormalizationFactor: 2.5}
            stated: {CPUTime: 1000, maxCPUTime: 10080}
            open: {MaxRAM: 2000}
Registry: {VO: {cms: {}}}
Operations: {Defaults: {JobDescription: {Seconds: {type: number, resource: CPUTime}}}}
"""


@pytest.mark.parametrize(
    ("asked", "queues"),
    [
        ("other.CPUTime >= 200000", ["long", "walled"]),
        ({"CPUTime": 200_000}, ["long", "open", "walled"]),
        ({"cputime": cpu_time.DEFAULT}, ["long", "open"]),
        ({"CPUTime": cpu_time.DEFAULT + 1}, ["long"]),
        ({"CPUTime": 200_000, "MaxRAM": 2000}, ["open"]),
        ({"CPUTime": 200_000, "MaxRAM": 2001}, []),
        ({"Seconds": 200_000}, ["long", "open", "walled"]),
    ],
    ids=str,
)
def test_cpu_time_that_follows_from_other_limits_can_be_required_like_a_stated_one(
    asked: dict[str, object] | str, queues: list[str]
) -> None:
    """An expression compares values of the ad; a record's CPU time what pilots offer, as a job's does."""
    config = validate.parse(LIMITED)
    found = queue_class_index.get_eligible_nodes(config, vo="cms", queue=asked)
    assert sorted(found.get("LCG.A.ch", {}).get("ce", ())) == queues


def test_cpu_time_that_nodes_decide_is_theirs() -> None:
    text = LIMITED.replace("MaxRAM: 2000", "NodeAttributes: {CPUTime: [1000, 2000]}")
    found = queue_class_index.get_eligible_nodes(validate.parse(text), vo="cms", queue={"CPUTime": 200_000})
    assert sorted(found["LCG.A.ch"]["ce"]) == ["long", "walled"]


def test_the_cpu_time_of_a_queues_ad_is_what_pilots_offer_there() -> None:
    config = validate.parse(LIMITED)
    ads = {each.queue: config.ad(each, "cms").get("CPUTime") for each in config.addresses}
    assert ads == {"short": 3600, "long": 7_257_600, "walled": 250_000, "stated": 1000, "open": None}
    offers = {
        each.queue: queue_offer.build_resource(config.values(each, "cms")).cpu_time
        for each in config.addresses
    }
    assert offers == {**ads, "open": cpu_time.DEFAULT}
