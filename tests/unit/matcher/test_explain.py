from cs_config import validate
from cs_config.operations import operations
from matcher.explain import Asked, explain
from requirements.record import parse_record

CONFIG = validate.parse(
    """
Resources:
  Sites:
    LCG.A.org:
      CEs:
        ce1:
          MaxRAM: 4000
          Queues: {long: {}, short: {}}
    LCG.B.org:
      CPUModel: Intel Xeon
      CEs:
        ce2:
          MaxRAM: 16000
          Queues: {all: {}, mine: {VO: [dune]}}
Operations:
  Defaults:
    JobDescription:
      Memory: {type: number, resource: MaxRAM}
""",
    "test.yaml",
)


def record(**values: object):
    return parse_record(values, operations(CONFIG, "cms").job_description.declarations)


def test_a_job_that_asks_nothing_fits_every_queue_that_its_vo_may_use():
    assert (
        explain(CONFIG, "cms", Asked()).eligible_queues,
        explain(CONFIG, "dune", Asked()).candidate_queues,
    ) == (3, 4)


def test_every_requirement_is_named_with_what_it_excludes_alone():
    found = explain(CONFIG, "cms", Asked(requirements=record(Memory=8000, CPUModel="AMD")))
    assert (found.eligible_queues, found.candidate_queues) == (0, 3)
    model, memory = found.exclusions
    assert (model.requirement, model.excluded, model.only_this, model.has) == ("CPUModel", 3, 1, "Intel Xeon")
    assert str(model.example) == "LCG.B.org/ce2/all"
    assert (memory.requirement, memory.wanted, memory.excluded, memory.only_this) == (
        "Memory",
        "at least 8000",
        2,
        0,
    )
    assert memory.has == "4000"


def test_places_exclude_as_requirements_do():
    asked = Asked(sites=frozenset({"lcg.a.ORG"}), grid_ces=frozenset({"ce2"}))
    site, ce = sorted(explain(CONFIG, "cms", asked).exclusions, key=lambda each: each.excluded)
    assert (site.requirement, site.excluded, site.has) == ("Site", 1, "LCG.B.org")
    assert (ce.requirement, ce.excluded, ce.has) == ("GridCE", 2, "ce1")
    banned = explain(CONFIG, "cms", Asked(banned_sites=frozenset({"LCG.A.org"})))
    assert banned.eligible_queues == 1
    assert banned.exclusions[0].requirement == "BannedSites"
