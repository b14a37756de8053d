import pytest

from cs_config import validate
from cs_config.classes import queue_class_index
from cs_config.options.operations import options_for
from requirements.errors import InvalidInput, InvalidRequest
from requirements.record import parse_record

CONFIG = validate.parse("""\
Resources:
  Sites:
    LCG.CERN.ch:
      SoftwareTag: [AppVersion1]
      CEs:
        ce01:
          CEType: HTCondorCE
          Queues:
            long: {MaxRAM: 4000, VOs: {cms: {MaxRAM: 8000}}}
            short: {MaxRAM: 2000}
            off: {MaxRAM: 9000, Enabled: false}
    LCG.KIT.de:
      VO: [cms]
      CEs:
        arc: {CEType: ARC, Queues: {q: {MaxRAM: 6000, CEType: HTCondorCE}}}
Operations:
  Defaults: {JobDescription: {Memory: {type: number, resource: MaxRAM}}}
  atlas: {JobDescription: {Memory: {type: string}}}
""")


def eligible(vo: str, **wanted: object) -> list[str]:
    requirements = parse_record(wanted, options_for(CONFIG, vo).job_description.declarations)
    return sorted(str(queue) for queue in queue_class_index.eligible_queues(CONFIG, vo, requirements))


def test_queues_that_have_what_is_asked() -> None:
    assert eligible("dune", Memory=3000) == ["LCG.CERN.ch/ce01/long"]
    assert eligible("dune", Memory=2000, SoftwareTag=["AppVersion1", "AppVersion2"]) == [
        "LCG.CERN.ch/ce01/long",
        "LCG.CERN.ch/ce01/short",
    ]
    assert eligible("dune", Memory=5000) == []


def test_a_vo_sees_its_own_values_and_queues() -> None:
    assert eligible("cms", Memory=5000) == ["LCG.CERN.ch/ce01/long", "LCG.KIT.de/arc/q"]
    assert eligible("CMS", Memory=7000) == ["LCG.CERN.ch/ce01/long"]


def test_a_disabled_queue_is_not_eligible() -> None:
    assert eligible("cms", Memory=9000) == []


def test_nodes_come_as_a_tree_with_their_parameters() -> None:
    assert queue_class_index.get_eligible_nodes(CONFIG, vo="cms", queue={"Memory": 7000}) == {
        "LCG.CERN.ch": {
            "ce01": {"long": {"SoftwareTag": ("AppVersion1",), "CEType": "HTCondorCE", "MaxRAM": 8000}}
        }
    }


def test_without_a_selection_all_usable_queues_come() -> None:
    assert list(queue_class_index.get_eligible_nodes(CONFIG, vo="cms")) == ["LCG.CERN.ch", "LCG.KIT.de"]
    assert list(queue_class_index.get_eligible_nodes(CONFIG, vo="dune")) == ["LCG.CERN.ch"]
    assert "off" not in queue_class_index.get_eligible_nodes(CONFIG, vo="dune")["LCG.CERN.ch"]["ce01"]


def test_the_selection_of_ces_looks_at_the_ce_not_at_its_queues() -> None:
    assert list(queue_class_index.get_eligible_nodes(CONFIG, vo="cms", ce={"CEType": "arc"})) == [
        "LCG.KIT.de"
    ]
    assert list(queue_class_index.get_eligible_nodes(CONFIG, vo="cms", ce={"CEType": "HTCondorCE"})) == [
        "LCG.CERN.ch"
    ]
    assert list(queue_class_index.get_eligible_nodes(CONFIG, vo="cms", ce={"MaxRAM": 1})) == []
    assert list(
        queue_class_index.get_eligible_nodes(CONFIG, vo="cms", ce={"SoftwareTag": "appversion1"})
    ) == ["LCG.CERN.ch"]


def test_both_selections_must_hold() -> None:
    found = queue_class_index.get_eligible_nodes(
        CONFIG, vo="cms", ce={"CEType": ["ARC", "AREX"]}, queue={"CEType": "HTCondorCE"}
    )
    assert found == {"LCG.KIT.de": {"arc": {"q": dict(CONFIG.values(CONFIG.addresses[-1], "cms"))}}}


def test_another_type_of_node_is_refused() -> None:
    with pytest.raises(
        InvalidRequest,
        match=r"'Queu' is not a type of node, allowed are Site, CE, Queue, did you mean Queue\?",
    ):
        queue_class_index.get_eligible_nodes(CONFIG, vo="cms", node="Queu")


def test_sites_and_ces_are_selected_by_their_queues_and_have_their_own_parameters() -> None:
    def select(node: str, **how: object) -> object:
        return queue_class_index.get_eligible_nodes(CONFIG, vo="cms", node=node, **how)  # type: ignore[arg-type]

    assert select("Site", queue={"Memory": 7000}) == {"LCG.CERN.ch": {"SoftwareTag": ("AppVersion1",)}}
    assert select("CE", ce={"CEType": "ARC"}) == {"LCG.KIT.de": {"arc": {"CEType": "ARC", "VO": ("cms",)}}}
    assert select("CE", queue={"Memory": 99999}) == {}


def test_a_selection_may_be_an_expression_and_restricted_to_sites() -> None:
    wanted = "other.MaxRAM >= 6000"
    assert list(queue_class_index.get_eligible_nodes(CONFIG, vo="cms", queue=wanted)) == [
        "LCG.CERN.ch",
        "LCG.KIT.de",
    ]
    assert list(
        queue_class_index.get_eligible_nodes(CONFIG, vo="cms", queue=wanted, sites=["LCG.KIT.de"])
    ) == ["LCG.KIT.de"]
    assert list(queue_class_index.get_eligible_nodes(CONFIG, vo="cms", ce='other.CEType == "ARC"')) == [
        "LCG.KIT.de"
    ]
    with pytest.raises(InvalidInput, match="queue"):
        queue_class_index.get_eligible_nodes(CONFIG, vo="cms", queue="other.MaxRAM >=")


def test_a_selection_that_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InvalidInput, match="queue/Memory"):
        queue_class_index.get_eligible_nodes(CONFIG, vo="cms", queue={"Memory": "much"})
