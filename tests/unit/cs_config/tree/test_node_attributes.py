"""What sites, CEs and queues say of their nodes: inherited, checked, shown."""

import pytest

from cs_config import validate
from cs_config.classes import queue_class_index
from cs_config.classes.queue_classes import queue_classes
from cs_config.editing import show
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from requirements.record import Record

TEXT = """
Resources:
  Sites:
    A.B.ch:
      NodeAttributes: {OS: [el8, el9], Fast: unknown}
      Forwarding:
        Vocabulary: Slurm
        Attributes:
          RAM: {min: mem, unit: MB}
          OS: {features: {el8: el8, el9: el9}}
      CEs:
        ce:
          NodeAttributes: {Fast: null}
          Queues:
            inherits: {}
            again: {NodeAttributes: {os: [el9, el8]}}
            narrower: {NodeAttributes: {OS: [el9]}, VOs: {cms: {NodeAttributes: {OS: [el7], RAM: unknown}}}}
            alike: {NodeAttributes: null, OS: el9}
            silent: {Forwarding: null}
            unsaid: {VOs: {cms: {NodeAttributes: null}}}
Operations: {lhcb: {}, cms: {}}
"""


def read(text: str = TEXT) -> Configuration:
    return validate.parse(text, "grid.yaml")


def declared(queue: str, vo: str = "lhcb") -> dict[str, object]:
    found = read().node_attributes(address(queue), vo)
    return dict(found.declared)


def address(queue: str) -> QueueAddress:
    return QueueAddress(site="A.B.ch", ce="ce", queue=queue)


def test_each_attribute_inherits_by_its_name() -> None:
    assert declared("inherits") == {"OS": ("el8", "el9")}
    assert declared("narrower") == {"OS": ("el9",)}
    assert declared("alike") == {}


def test_a_vo_may_have_other_nodes() -> None:
    assert declared("narrower", "cms") == {"OS": ("el7",), "RAM": None}
    assert declared("unsaid") == {"OS": ("el8", "el9")}
    assert declared("unsaid", "cms") == {}


def test_the_nearest_forwarding_holds() -> None:
    config = read()
    assert config.forwarding(address("silent"), "lhcb") is None
    mapping = config.forwarding(address("inherits"), "lhcb")
    assert mapping is not None
    assert mapping.vocabulary.name == "Slurm"
    assert [meaning.name for meaning in mapping.meanings] == ["RAM", "OS"]


def test_queues_that_say_other_things_of_their_nodes_are_other_classes() -> None:
    found = {tuple(queue.queue for queue in each.queues) for each in queue_classes(read(), "lhcb")}
    assert found == {("again", "inherits", "unsaid"), ("narrower",), ("alike",), ("silent",)}


def test_attributes_are_shown_with_where_they_are_written() -> None:
    lines = {line.path: line for line in show.list_lines(read(), "A.B.ch/ce/narrower", "cms")}
    assert str(lines["NodeAttributes/OS"]) == "NodeAttributes/OS = [el7]"
    assert lines["NodeAttributes/OS"].origin.startswith("Queue VOs/cms, grid.yaml:")
    assert str(lines["NodeAttributes/RAM"]) == "NodeAttributes/RAM = unknown"
    assert lines["Forwarding"].origin == "Site, grid.yaml:6"


def test_no_attribute_is_a_parameter_of_the_queue() -> None:
    assert dict(read().values(address("inherits"), "lhcb")) == {}


def test_an_attribute_hides_the_parameter_of_its_name() -> None:
    queues = "{q: {NodeAttributes: {MaxRAM: [2000]}}}"
    config = read(f"Resources: {{Sites: {{A.B.ch: {{MaxRAM: 4000, CEs: {{ce: {{Queues: {queues}}}}}}}}}}}")
    for asked, eligible in ((2000, True), (4000, False)):
        found = queue_class_index.eligible_queues(config, "lhcb", Record(values=(("MaxRAM", asked),)))
        assert bool(found) is eligible


def test_of_a_parameter_and_an_attribute_of_one_name_the_deeper_one_holds() -> None:
    text = """
Resources:
  Sites:
    A.B.ch:
      NodeAttributes: {OS: [el8, el9]}
      RAM: 4000
      CEs:
        ce:
          VOs: {cms: {NodeAttributes: {RAM: [1000, 2000]}}}
          Queues:
            plain: {OS: el9}
            back: {NodeAttributes: {RAM: unknown}, VOs: {cms: {RAM: 8000}, lhcb: {OS: el7}}}
"""
    config = read(text)

    def said(queue: str, vo: str) -> tuple[dict[str, object], dict[str, object]]:
        at = address(queue)
        return dict(config.values(at, vo)), dict(config.node_attributes(at, vo).declared)

    assert said("plain", "lhcb") == ({"RAM": 4000, "OS": "el9"}, {})
    assert said("plain", "cms") == ({"OS": "el9"}, {"RAM": (1000, 2000)})
    assert said("back", "cms") == ({"RAM": 8000}, {"OS": ("el8", "el9")})
    assert said("back", "lhcb") == ({"OS": "el7"}, {"RAM": None})


def test_eligible_nodes_are_those_where_some_node_would_do() -> None:
    found = queue_class_index.get_eligible_nodes(read(), vo="lhcb", queue={"OS": "el8"})
    assert set(found["A.B.ch"]["ce"]) == {"inherits", "again", "silent", "unsaid"}
    assert queue_class_index.get_eligible_nodes(read(), vo="lhcb", ce={"OS": "el7"}) == {}
    assert queue_class_index.get_eligible_nodes(read(), vo="lhcb", ce={"OS": "el9"}) != {}


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("NodeAttributes: el8", "NodeAttributes: 'el8' is a value, a section is needed here"),
        ("NodeAttributes: {OS: unknwon}", "NodeAttributes/OS: 'unknwon', allowed is a list of the values"),
        ("NodeAttributes: {OS: unknwon}", "unknown or advertised, did you mean unknown? (grid.yaml:1)"),
        ("NodeAttributes: {OS: advertized}", "unknown or advertised, did you mean advertised? (grid.yaml:1)"),
        ("NodeAttributes: {OS: [a, unknown]}", "unknown is not a value of a node"),
        ("NodeAttributes: {OS: [a, Advertised]}", "Advertised is not a value of a node"),
        ("NodeAttributes: {OS: []}", "NodeAttributes/OS: the list is empty"),
        ("NodeAttributes: {OS: {a: b}}", "NodeAttributes/OS: 'a section', allowed is a list"),
        ("NodeAttributes: {MaxRAM: [a lot]}", "'a lot' is not allowed here, allowed is a number of MB"),
        (
            "NodeAttributes: {MaxRamm: unknown}",
            "NodeAttributes/MaxRamm: unknown parameter, did you mean MaxRAM?",
        ),
        ("NodeAttributes: {VO: [cms]}", "VO is an access rule and cannot differ between nodes"),
        ("nodeattributes: {OS: [a]}", "unknown level, did you mean NodeAttributes?"),
        ("VOs: {cms: {nodeattributes: {OS: [a]}}}", "unknown level, did you mean NodeAttributes?"),
        ("Forwarding: Slurm", "Forwarding: 'Slurm' is a value, a section is needed here"),
        ("Forwarding: {Vocabulary: Slrm}", "'Slrm' is not a vocabulary"),
        ("Forwarding: {Vocabulary: Slrm}", "did you mean Slurm? (grid.yaml:1)"),
        (
            "Forwarding: {Vocabulary: Slurm, Attributes: {OS: {fetures: {}}}}",
            "Forwarding/Attributes/OS/fetures: unknown",
        ),
    ],
)
def test_what_is_wrong_is_said_with_path_and_line(said: str, problem: str) -> None:
    found = validate.report(f"Resources: {{Sites: {{A.B.ch: {{{said}}}}}}}", "grid.yaml").errors
    assert [each for each in found if problem in str(each)], [str(each) for each in found]
