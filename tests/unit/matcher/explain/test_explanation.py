from cs_config import validate
from cs_config.options.operations import options_for
from matcher.explain import queue_report, queue_set, waiting_reason
from matcher.explain.explanation import explain
from matcher.explain.job_conditions import JobDemand
from requirements.record import parse_record
from requirements.requirement_class import RequirementClass
from taskqueue.task_queues.listing import WaitingClass

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
    return parse_record(values, options_for(CONFIG, "cms").job_description.declarations)


def asked(vo: str = "cms", requirements=None, **conditions) -> JobDemand:
    return JobDemand(
        asked=RequirementClass(vo=vo, cpu_time=3600, **conditions),
        requirements=requirements,
    )


def explained(demand: JobDemand):
    vo = demand.asked.vo
    return explain(queue_set.all_queues(CONFIG, vo), vo, demand)


def test_a_job_that_asks_nothing_fits_every_queue_that_its_vo_may_use():
    assert (explained(asked()).eligible_queues, explained(asked("dune")).candidate_queues) == (3, 4)


def test_every_requirement_is_named_with_what_it_excludes_alone():
    found = explained(asked(requirements=record(Memory=8000, CPUModel="AMD")))
    assert (found.eligible_queues, found.candidate_queues) == (0, 3)
    model, memory = found.exclusions
    assert (model.requirement, model.excluded, model.only_this) == ("CPUModel", 3, 1)
    assert (str(model.example.queue), model.example.has) == ("LCG.B.org/ce2/all", "Intel Xeon")
    assert (memory.requirement, memory.wanted, memory.excluded, memory.only_this) == (
        "Memory",
        "at least 8000",
        2,
        0,
    )
    assert memory.example.has == "4000"


def test_places_exclude_as_requirements_do():
    found = explained(asked(sites=frozenset({"lcg.a.ORG"}), grid_ces=frozenset({"ce2"})))
    by_name = {each.requirement: each for each in found.exclusions}
    assert (by_name["Site"].excluded, by_name["Site"].example.has) == (1, "LCG.B.org")
    assert (by_name["GridCE"].excluded, by_name["GridCE"].example.has) == (2, "ce1")
    banned = explained(asked(banned_sites=frozenset({"LCG.A.org"})))
    assert banned.eligible_queues == 1
    assert banned.exclusions[0].requirement == "BannedSites"


def test_rights_are_named_where_a_queue_would_do_but_for_them():
    mine = asked(grid_ces=frozenset({"ce2"}), min_ram=8000, banned_sites=frozenset({"LCG.A.org"}))
    assert {each.requirement for each in explained(mine).exclusions} == {"BannedSites", "GridCE", "MinRAM"}
    found = explained(asked(sites=frozenset({"LCG.C.org"})))
    assert {each.requirement for each in found.exclusions} == {"Site"}


def test_conditions_of_task_queues_are_requirements_like_others():
    found = explained(asked(min_ram=8000, tags=frozenset({"gpu", "fast"}), gpus=2))
    assert found.eligible_queues == 0
    assert {(each.requirement, each.wanted) for each in found.exclusions} == {
        ("MinRAM", "at least 8000 MB"),
        ("Tags", "gpu"),
        ("Tags", "fast"),
        ("GPUs", "at least 2"),
    }


FAULTY = CONFIG.source.replace("short: {}", "short: {Tag: [any], RequiredTag: [gpu]}")


def test_a_queue_whose_pilots_could_not_ask_for_jobs_fails_with_the_reason_and_the_others_are_looked_at():
    config = validate.parse(FAULTY, "test.yaml")
    found = explain(queue_set.all_queues(config, "cms"), "cms", asked())
    assert (found.eligible_queues, found.candidate_queues) == (2, 2)
    [why] = found.exclusions
    assert (why.requirement, why.excluded, why.only_this) == ("Configuration", 1, 1)
    assert str(why.example.queue) == "LCG.A.org/ce1/short"
    assert why.example.has == "RequiredTag: ['gpu'] are required of jobs but not all offered under Tag"


def test_the_window_of_such_a_queue_says_why_it_serves_nothing():
    config = validate.parse(FAULTY, "test.yaml")
    address = next(each for each in config.addresses if each.queue == "short")
    waiting = WaitingClass(asked=asked().asked, requirements=None, jobs=3, first_job=1)
    found = queue_report.report_queue(config, address, [waiting])
    assert not found.served
    [why] = found.excluded
    assert (why.requirement, why.jobs, why.only_this) == ("Configuration", 3, 3)
    assert "not all offered under Tag" in str(why.has)


CLOSED = """
Resources:
  Sites:
    LCG.A.org:
      CPUTime: 9
      CEs:
        ce1: {Queues: {on: {CPUTime: 3600}, off: {CPUTime: 864000, Enabled: false}, too: {Enabled: false}}}
        ce2: {VO: [cms], Queues: {one: {CPUTime: 864000}, two: {CPUTime: 864000}}}
"""


def test_what_is_closed_to_a_vo_is_counted_apart_from_what_it_may_use():
    """The reason in short is of a requirement, whose queues are among those that the VO may use."""
    demand = JobDemand(asked=RequirementClass(vo="biomed", cpu_time=400_000))
    whole = queue_set.all_queues(validate.parse(CLOSED, "test.yaml"), "biomed")
    found = explain(whole, "biomed", demand)
    assert {each.requirement: each.closed for each in found.exclusions} == {
        "CPUTime": None,
        "VO": "2 queues for other VOs; 2 of them would do otherwise",
        "Enabled": "2 queues switched off; 1 of them would do otherwise",
    }
    assert all(each.excluded <= found.candidate_queues for each in found.exclusions if each.closed is None)
    told = waiting_reason.describe_stuck(whole, demand)
    assert told.startswith("no queue is eligible: 1 of 1 fails CPUTime, ")


def test_one_closed_queue_is_told_as_one():
    config = validate.parse(
        CLOSED.replace(
            "ce2: {VO: [cms], Queues: {one: {CPUTime: 864000}, two", "ce2: {VO: [cms], Queues: {two"
        ),
        "t",
    )
    demand = JobDemand(asked=RequirementClass(vo="biomed", cpu_time=400_000))
    found = explain(queue_set.all_queues(config, "biomed"), "biomed", demand)
    assert "1 queue for other VOs; it would do otherwise" in {each.closed for each in found.exclusions}
