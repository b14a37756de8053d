"""PanDA queues of CRIC's JSON become queues of their compute elements."""

import json
from typing import Any

import pytest

from cs_config import validate
from cs_config.errors import ConfigError
from cs_config.formats.importers import ImportedConfiguration
from cs_config.tree.configuration import Configuration
from cs_config.versions.store import NOTHING
from pilotage.plugins.formats import cric
from tests.conftest import ROOT

ELEMENT = {"ce_endpoint": "ce1.example.org:9619", "ce_flavour": "HTCONDOR-CE", "ce_queue_name": "share"}
QUEUE = {
    "name": "EXAMPLE",
    "rc_site": "EXAMPLE-T2",
    "vo_name": "atlas",
    "status": "online",
    "state": "ACTIVE",
    "corecount": 8,
    "maxrss": 32000,
    "maxtime": 288000,
    "queues": [ELEMENT],
}


def propose(queues: Any, config: Configuration = NOTHING, site: str | None = None) -> ImportedConfiguration:
    return cric.propose_cric(config, {"queues.json": json.dumps(queues)}, site=site)


def messages(found: ImportedConfiguration) -> list[str]:
    return [f"{each.path}: {each.message}" for each in found.notes]


def test_a_sample_as_cric_publishes_it() -> None:
    text = (ROOT / "tests/data/foreign/cric_queues.json").read_text()
    found = cric.propose_cric(NOTHING, {"cric_queues.json": text})
    config = found.proposal.after
    values = {str(each): dict(config.values(each, "atlas")) for each in config.addresses}
    of_all = {"NumberOfProcessors": 8, "MaxRAM": 32000, "MaxScratch": 160000, "maxWallClockTime": 288000}
    site = "LCG.EXAMPLE-T2"
    assert values == {
        f"{site}/ce1.example.org/EXAMPLE": {
            **of_all,
            "CEType": "HTCondorCE",
            "BatchQueue": "share",
            "maxCPUTime": 2880,
            "VO": ("atlas",),
        },
        f"{site}/arc1.example.org/EXAMPLE": {
            **of_all,
            "CEType": "AREX",
            "Endpoint": "arc1.example.org:8443",
            "BatchQueue": "grid",
            "VO": ("atlas",),
            "Enabled": False,
        },
        **{
            f"{site}/ce1.example.org/EXAMPLE_TEST-{name}": {
                "CEType": "HTCondorCE",
                "BatchQueue": name,
                "MaxRAM": 2000,
                "maxWallClockTime": minutes * 60,
                "VO": ("atlas",),
                "Enabled": False,
            }
            for name, minutes in (("short", 1440), ("long", 10080))
        },
    }


def test_the_file_of_one_queue_is_read_as_its_entry_among_all() -> None:
    of_one, of_all = propose(QUEUE), propose({"EXAMPLE": QUEUE})
    assert of_one.proposal.after.source == of_all.proposal.after.source
    assert len(of_one.proposal.after.addresses) == 1
    assert of_one.notes == ()


def test_a_ce_that_the_tree_has_stays_at_its_site() -> None:
    mine = validate.parse("Resources: {Sites: {LCG.Mine.de: {CEs: {ce1.example.org: {Queues: {q: {}}}}}}}\n")
    found = propose({"EXAMPLE": QUEUE}, mine, site="LCG.Other.de")
    assert [str(each) for each in found.proposal.after.addresses] == [
        "LCG.Mine.de/ce1.example.org/EXAMPLE",
        "LCG.Mine.de/ce1.example.org/q",
    ]
    elsewhere = propose({"EXAMPLE": QUEUE}, site="LCG.Other.de").proposal.after
    assert [each.site for each in elsewhere.addresses] == ["LCG.Other.de"]


@pytest.mark.parametrize(
    ("of_queue", "of_element", "reason"),
    [
        ({"status": "brokeroff"}, {}, "status is 'brokeroff'"),
        ({"status": "offline"}, {}, "status is 'offline'"),
        ({"state": "DISABLED"}, {}, "state is 'DISABLED'"),
        ({"site_state": "NOTREADY"}, {}, "site_state is 'NOTREADY'"),
        ({}, {"ce_status": "draining"}, "ce_status is 'draining'"),
        ({"status": 0}, {}, "status is 0"),
        ({"allowednode": ["n1"]}, {}, "allowednode is ['n1']"),
        ({"allowedgroups": "/atlas/Role=production"}, {}, "allowedgroups is"),
        ({"accesscontrol": "GROUPLIST"}, {}, "accesscontrol is"),
    ],
)
def test_what_is_not_open_there_is_closed_here(
    of_queue: dict[str, object], of_element: dict[str, object], reason: str
) -> None:
    found = propose({"EXAMPLE": {**QUEUE, **of_queue, "queues": [{**ELEMENT, **of_element}]}})
    [place] = found.proposal.after.addresses
    assert not found.proposal.after.usable(place, "atlas")
    assert any(reason in each and "Enabled: false" in each for each in messages(found))


def test_a_queue_that_names_no_vo_admits_nobody_until_the_tree_does() -> None:
    queue = {name: value for name, value in QUEUE.items() if name != "vo_name"}
    found = propose({"EXAMPLE": queue})
    [place] = found.proposal.after.addresses
    assert not found.proposal.after.usable(place, "atlas")
    assert any("no VO is admitted" in each for each in messages(found))
    source = found.proposal.after.source.replace("VO: []", "VO: [atlas]")
    again = propose({"EXAMPLE": queue}, validate.parse(source))
    assert again.proposal.after.usable(place, "atlas")


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        ({**QUEUE, "is_virtual": True}, "it is virtual"),
        ({**QUEUE, "queues": []}, "no compute element"),
        ({**QUEUE, "queues": [{"ce_flavour": "ARC-CE"}]}, "an endpoint with a host"),
        ({**QUEUE, "queues": [ELEMENT, ELEMENT]}, "stated twice"),
        ({**QUEUE, "maxtime": 1.5, "maxrss": True}, "maxtime = 1.5: not carried over"),
        ({**QUEUE, "corecount": -1}, "corecount = -1: not carried over"),
    ],
)
def test_what_cannot_be_a_queue_is_told(queue: dict[str, object], words: str) -> None:
    assert any(words in each for each in messages(propose({"EXAMPLE": queue})))


@pytest.mark.parametrize("text", ["[]", "{}", "3", "{", '{"a": 1}', '{"a": {"b": 1}}', "[" * 100_000])
def test_what_is_no_answer_of_cric_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"JSON|PanDA queues"):
        cric.propose_cric(NOTHING, {"queues.json": text})


@pytest.mark.parametrize("number", [0, "999999", 2147483647, 444444])
def test_a_number_that_means_no_limit_is_left_out_and_told(number: object) -> None:
    element = {**ELEMENT, "ce_queue_maxcputime": number}
    found = propose({"EXAMPLE": {**QUEUE, "maxrss": number, "maxtime": number, "queues": [element]}})
    config = found.proposal.after
    values = config.values(config.addresses[0], "atlas")
    assert not {"MaxRAM", "maxWallClockTime", "maxCPUTime"} & values.keys()
    for name in ("maxrss", "maxtime", "ce_queue_maxcputime"):
        assert any(f"{name} = {number}" in each for each in messages(found)), messages(found)
