"""A value that a queue has, and that excludes it nevertheless, is explained with the reason."""

import pytest

from cs_config import validate
from matcher.explain import queue_set
from matcher.explain.explanation import explain, suggest_changes
from matcher.explain.job_conditions import JobDemand
from requirements.classad.expression import parse_expression
from requirements.requirement_class import RequirementClass

QUEUE = "{SE: se1, SoftwareTag: [A], Ports: [1, 2]}"
TREE = f"Resources: {{Sites: {{S: {{CEs: {{ce1.a.org: {{Queues: {{q: {QUEUE}}}}}}}}}}}}}\n"
KEYWORDS = "is absent (name places by Site and GridCE beside Requirements)"
PLACES = "is absent (name places by Site and GridCE beside Requirements, or set Pools/ByAddress)"
BY_KEYWORD = f" {KEYWORDS.removeprefix('is absent ')}"
BY_ADDRESS = f" {PLACES.removeprefix('is absent ')}"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ('member("se1", other.SE)', "SE = se1, which is no list"),
        ('member(2, other.Ports) && member("se2", other.se)', "se = se1, which is no list"),
        ('!member("A", other.SoftwareTag)', "SoftwareTag = A"),
        ('other.SE == "se2"', "SE = se1"),
        ('RegExp("ce1.a.org/q", other.GlueCEUniqueID)', f"GlueCEUniqueID {PLACES}"),
        ('!RegExp("ce2", other.glueceinfohostname)', f"glueceinfohostname {PLACES}"),
        ('other.QueueName == "q" || other.SE == "x"', f"QueueName {PLACES}; SE = se1"),
        ('other.GridCE == "ce1.a.org"', f"GridCE {KEYWORDS}"),
        ('other.site == "S" || other.Queue == "q"', f"site {KEYWORDS}; Queue {KEYWORDS}"),
        ("other.GlueCEStateFreeCPUs > 1", "GlueCEStateFreeCPUs is absent"),
    ],
)
def test_the_reason_stands_beside_the_value(asked: str, said: str) -> None:
    config = validate.parse(TREE, "test.yaml")
    demand = JobDemand(asked=RequirementClass(vo="cms", cpu_time=60), requirements=parse_expression(asked))
    [found] = explain(queue_set.all_queues(config, "cms"), "cms", demand).exclusions
    assert found.example.has == said


def test_an_address_that_is_asked_for_is_there_where_the_vo_has_it() -> None:
    config = validate.parse(TREE + "Operations: {cms: {Pools: {ByAddress: true}}}\n", "test.yaml")
    asked = parse_expression('RegExp("ce1.a.org/q", other.GlueCEUniqueID)')
    demand = JobDemand(asked=RequirementClass(vo="cms", cpu_time=60), requirements=asked)
    assert explain(queue_set.all_queues(config, "cms"), "cms", demand).eligible_queues == 1


@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        ('RegExp("ce1.a.org/q", other.GlueCEUniqueID)', BY_ADDRESS),
        ('!RegExp("ce2", other.glueceinfohostname)', BY_ADDRESS),
        ('other.GridCE == "ce1.a.org"', BY_KEYWORD),
        ('member("se2", other.SE)', ""),
    ],
)
def test_what_would_help_tells_how_to_name_places(asked: str, advice: str) -> None:
    config = validate.parse(TREE, "test.yaml")
    demand = JobDemand(asked=RequirementClass(vo="cms", cpu_time=60), requirements=parse_expression(asked))
    changes = suggest_changes(queue_set.all_queues(config, "cms"), "cms", demand)
    [left_out] = [each.text for each in changes if each.text.startswith("leave out ")]
    assert left_out.partition(" of the Requirements")[2] == advice


def test_a_place_that_the_vo_sees_needs_no_advice() -> None:
    config = validate.parse(TREE + "Operations: {cms: {Pools: {ByAddress: true}}}\n", "test.yaml")
    asked = parse_expression('RegExp("ce2", other.GlueCEUniqueID)')
    demand = JobDemand(asked=RequirementClass(vo="cms", cpu_time=60), requirements=asked)
    changes = suggest_changes(queue_set.all_queues(config, "cms"), "cms", demand)
    assert not [each.text for each in changes if "name places" in each.text]
