"""Each documented parameter has an effect, or is said to be for Requirements or for people only."""

import importlib
import inspect
import re
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from cs_config import validate
from cs_config.tree.address import QueueAddress
from cs_config.tree.parameters import KNOWN, KnownParameter
from matcher.request import queue_offer
from pilotage.fabric.director import configuration, matcher_client, targets

#: Of a queue, with what they need beside them: two values that a job or a pilot can tell apart.
OFFERED: Mapping[str, tuple[object, object, Mapping[str, object]]] = {
    "MaxRAM": (1000, 2000, {}),
    "MaxRAMPerCore": (1000, 2000, {}),
    "CPUTime": (1000, 2000, {}),
    "maxWallClockTime": (1000, 2000, {}),
    "maxCPUTime": (10, 20, {}),
    "CPUNormalizationFactor": (1, 2, {}),
    "SI00": (250, 500, {"maxCPUTime": 10}),
    "NumberOfProcessors": (1, 2, {}),
    "NumberOfGPUs": (1, 2, {}),
    "GPUs": (1, 2, {}),
    "WholeNode": (False, True, {}),
    "MaxScratch": (1000, 2000, {}),
    "Architecture": ("x86_64", "aarch64", {}),
    "CPUPowerDB12": (10, 20, {}),
    "GPUVendor": ("nvidia", "amd", {"GPUs": 1}),
    "GPUArchitecture": ("sm_80", "sm_89", {"GPUs": 1}),
    "GPUMemory": (16_000, 40_000, {"GPUs": 1}),
    "GPURuntime": ("11.8", 12.4, {"GPUs": 1}),
    "Platform": ("el8", "el9", {}),
    "Tag": ("a", "b", {}),
    "RequiredTag": ("a", "b", {}),
    "JobType": ("generic", "montecarlo", {}),
}
LIMITS = ("MaxTotalJobs", "MaxWaitingJobs")
FROM_TREE = {
    "CEType": ("Slurm", "PBS"),
    "Endpoint": ("a.org", "b.org"),
    "CEQueueName": ("a", "b"),
    "BatchQueue": ("a", "b"),
    "SubmitOptions": ("-append 'rank = 1'", "-append 'rank = 2'"),
}
#: Of the tree: for a queue with FreeCPUs, after 1970.
IN_TREE: Mapping[str, tuple[str, str]] = {
    "Enabled": ("true", "false"),
    "VO": ("[cms]", "[atlas]"),
    "update_time": ("1000", "1000000"),
    "expiry_time": ("10", "2000000"),
}
#: By which modules they are read, whose tests have them.
ELSEWHERE = {
    "Requirements": "cs_config.tree.admission",
    "Rank": "cs_config.tree.admission",
    "Checks": "cs_config.tree.admission",
    "Expressions": "pilotage.plugins.formats.ce_ads",
    "SE": "cs_config.tree.storage",
    "MoUTierLevel": "pilotage.plugins.dirac.monitoring",
    "HEPScore23": "pilotage.service.queries.usage_records",
}
GRID = """
Resources: {Sites: {S.x: {CEs: {ce: {Queues: {q: {PARAMETERS}}}}}}}
Registry: {VO: {cms: {}, atlas: {}}}
"""
QUEUE = QueueAddress(site="S.x", ce="ce", queue="q")
WITHOUT_EFFECT = ("only read by Requirements of jobs", "for people")


def is_only_described(known: KnownParameter) -> bool:
    return known.meaning.endswith(WITHOUT_EFFECT)


def test_every_parameter_is_here_once() -> None:
    names = [
        *OFFERED,
        *LIMITS,
        *FROM_TREE,
        *IN_TREE,
        *ELSEWHERE,
        *(each.name for each in KNOWN if is_only_described(each)),
    ]
    assert sorted(names) == sorted(each.name for each in KNOWN)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_module_that_reads_a_parameter_names_it(name: str) -> None:
    source = inspect.getsource(importlib.import_module(ELSEWHERE[name]))
    assert re.search(rf"""["'.\b]({name}|{name.lower()})["']""", source)


@pytest.mark.parametrize("name", OFFERED)
def test_a_pilot_offers_another_slot(name: str) -> None:
    one, other, beside = OFFERED[name]
    managed = frozenset({"generic", "montecarlo"})
    offers = [queue_offer.build_resource({**beside, name: value}, managed) for value in (one, other)]  # type: ignore[dict-item]
    assert offers[0] != offers[1]


@pytest.mark.parametrize("name", LIMITS)
def test_a_director_sends_another_number_of_pilots(name: str) -> None:
    assert matcher_client._limits({name: 3}) != matcher_client._limits({name: 4})


@pytest.mark.parametrize("name", FROM_TREE)
def test_a_director_submits_otherwise(name: str) -> None:
    systems = {
        "Slurm": {"kind": "slurm", "directory": "/shared"},
        "PBS": {
            "kind": "htcondor",
            "directory": "/spool/{ce}",
            "schedd": {"name": "{endpoint}", "token_file": "/t"},
        },
    }
    said = {
        "url": "https://p.org",
        "name": "north",
        "vos": {"cms": {"token_file": "/t"}},
        "systems": systems,
        "queues": {"from_tree": {}},
    }
    told = configuration.read_file(said, "director.yaml")
    found = []
    for value in FROM_TREE[name]:
        parameters = {"CEType": "PBS", name: value}
        complete = configuration.add_tree_queues(told, {"S.x/ce/q": parameters}, "director.yaml")
        found.append((complete.queues, complete.systems))
    assert found[0] != found[1]


@pytest.mark.parametrize("name", ["CPUTime", "maxWallClockTime", "maxCPUTime", "MaxRAM", "MaxRAMPerCore"])
def test_a_slot_in_the_batch_system_has_another_size(name: str) -> None:
    target = targets.QueueTarget(queue="S.x/ce/q", system="farm", batch_queue="q")
    assert targets.find_slot(target, {name: 1000}) != targets.find_slot(target, {name: 2000})


@pytest.mark.parametrize("name", IN_TREE)
def test_a_queue_is_another_for_a_vo(name: str) -> None:
    found = []
    for value in IN_TREE[name]:
        written = {"update_time": "1000", "expiry_time": "10", "FreeCPUs": "5", name: value}
        queue = ", ".join(f"{key}: {each}" for key, each in written.items())
        config = validate.parse(GRID.replace("PARAMETERS", queue)).at_moment(
            datetime(1970, 1, 12, tzinfo=UTC)
        )
        found.append([config.usable(QUEUE, "cms"), "freecpus" in config.expired(QUEUE, "cms")])
    assert found[0] != found[1]
