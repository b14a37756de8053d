from dataclasses import replace
from datetime import timedelta

import pytest

from optimizers.chain.chain import ChainContext, Done, Failed, Hold, JobContext, ResolvedPool
from optimizers.steps.job_scheduling import job_scheduling
from requirements.record import Record
from requirements.requirement_class import RequirementClass, round_to_segment
from tests.support.factories.chain_contexts import candidate_of, context_of

GRID = """
Resources:
  Sites:
    A.B.ch: {CEs: {ce: {Queues: {q: {Memory: 4000}}}}}
    C.D.ch: {CEs: {ce: {Queues: {q: {Memory: 2000}}}}}
  Computing:
    OSCompatibility: {el9: [el8, el7], el8: [el7]}
"""


def scheduled(candidate: JobContext, context: ChainContext) -> JobContext:
    outcome = job_scheduling(candidate, context)
    assert isinstance(outcome, Done), outcome
    return outcome.candidate


def asked(candidate: JobContext, context: ChainContext) -> RequirementClass:
    found = scheduled(candidate, context).requirement_class
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("cpu_time", "expected"), [(1, 360), (360, 360), (361, 1800), (86400, 86400), (10**9, 1080000)]
)
def test_cpu_time_is_rounded_up_to_a_segment(cpu_time: int, expected: int) -> None:
    segments = (360, 1800, 3600, 86400, 1080000)
    assert round_to_segment(cpu_time, segments) == expected


def test_the_segments_are_configured() -> None:
    context = context_of(
        "Operations: {Defaults: {JobScheduling: {taskQueueCPUTimeIntervals: [1020, 399600]}}}"
    )
    assert asked(candidate_of(context), context).cpu_time == 399600


@pytest.mark.parametrize(
    ("raw", "minimum", "maximum", "tags"),
    [
        ({}, 1, 1, set()),
        ({"NumberOfProcessors": 1}, 1, 1, set()),
        ({"NumberOfProcessors": 8}, 8, 8, {"8Processors", "MultiProcessor"}),
        ({"MinNumberOfProcessors": 4, "MaxNumberOfProcessors": 4}, 4, 4, {"4Processors", "MultiProcessor"}),
        ({"MinNumberOfProcessors": 2, "MaxNumberOfProcessors": 8}, 2, 8, {"MultiProcessor"}),
        ({"MinNumberOfProcessors": 2}, 2, None, {"MultiProcessor"}),
        ({"MaxNumberOfProcessors": 4}, 1, 4, {"MultiProcessor"}),
        ({"WholeNode": True}, 1, None, {"WholeNode", "MultiProcessor"}),
        ({"Tags": ["GPU"], "NumberOfProcessors": 2}, 2, 2, {"GPU", "2Processors", "MultiProcessor"}),
        ({"Tags": ["8processors", "MultiProcessor"]}, 8, 8, {"8processors", "MultiProcessor"}),
        ({"Tags": ["8Processors"], "NumberOfProcessors": 1}, 1, 1, {"8Processors"}),
        ({"Tags": ["MultiProcessor"]}, 1, 1, {"MultiProcessor"}),
        ({"Tags": ["WholeNode"]}, 1, None, {"WholeNode"}),
        ({"Tags": "wholenode"}, 1, None, {"wholenode"}),
    ],
)
def test_cores_are_numbers_and_tags(
    raw: dict[str, object], minimum: int, maximum: int | None, tags: set[str]
) -> None:
    context = context_of()
    found = asked(candidate_of(context, **raw), context)
    assert (found.processors_min, found.processors_max, found.tags) == (minimum, maximum, tags)
    assert found.whole_node == ("wholenode" in {tag.lower() for tag in tags})


def test_memory_gpus_type_and_ces_are_passed_on() -> None:
    context = context_of()
    raw = {
        "MinRAM": 2000,
        "MaxRAM": 4000,
        "RAMPerCore": 1000,
        "GPUs": 2,
        "JobType": "User",
        "GridCE": ["x", "y"],
    }
    found = asked(candidate_of(context, **raw), context)
    assert (found.min_ram, found.max_ram, found.min_ram_per_core, found.gpus) == (2000, 4000, 1000, 2)
    assert (found.job_types, found.grid_ces) == ({"User"}, {"x", "y"})
    assert asked(candidate_of(context, GridCE=["Any", "x"]), context).grid_ces == frozenset()


def test_the_class_has_the_platforms_that_are_stated() -> None:
    context = context_of(GRID)
    assert asked(candidate_of(context, Platform="el7"), context).platforms == {"el7"}
    assert asked(candidate_of(context, Platform="el9"), context).platforms == {"el9"}
    assert asked(candidate_of(context, Platform="ANY"), context).platforms == frozenset()


@pytest.mark.parametrize(
    ("raw", "sites", "banned", "shown"),
    [
        ({}, set(), set(), "ANY"),
        ({"Site": "ANY"}, set(), set(), "ANY"),
        ({"Site": "A.B.ch"}, {"A.B.ch"}, set(), "A.B.ch"),
        ({"Site": ["A.B.ch", "C.D.ch"]}, {"A.B.ch", "C.D.ch"}, set(), "Multiple"),
        ({"Site": ["A.B.ch", "C.D.ch"], "BannedSites": "a.b.CH"}, {"C.D.ch"}, set(), "C.D.ch"),
        ({"BannedSites": "A.B.ch"}, set(), {"A.B.ch"}, "ANY"),
        ({"Site": "Unknown.Site.ch"}, {"Unknown.Site.ch"}, set(), "Unknown.Site.ch"),
    ],
)
def test_sites_are_the_jobs_list_minus_what_it_bans(
    raw: dict[str, object], sites: set[str], banned: set[str], shown: str
) -> None:
    context = context_of(GRID)
    found = scheduled(candidate_of(context, **raw), context)
    assert found.requirement_class is not None
    assert (found.requirement_class.sites, found.requirement_class.banned_sites) == (sites, banned)
    assert found.site == shown


def test_a_job_that_bans_all_its_sites_is_impossible() -> None:
    context = context_of(GRID)
    candidate = candidate_of(context, Site="A.B.ch")  # as 1.0 accepted it, with the other keyword
    both = replace(
        candidate.description, banned_sites=("a.b.CH",), stated=frozenset({"sites", "banned_sites"})
    )
    outcome = job_scheduling(replace(candidate, description=both), context)
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith("Impossible site requirement")


def test_unknown_sites_fail_where_the_configuration_insists() -> None:
    context = context_of(GRID + "Operations: {Defaults: {JobScheduling: {AllowInvalidSites: false}}}\n")
    outcome = job_scheduling(candidate_of(context, Site=["A.B.ch", "A.B.cn"]), context)
    assert outcome == Failed(reason="unknown site A.B.cn, did you mean A.B.ch?")


CLOSED = """
Resources:
  Sites:
    A.B.ch: {CEs: {ce: {Queues: {q: {}}}}}
    C.D.ch: {Enabled: false, CEs: {ce: {Queues: {q: {}}}}}
    E.F.ch: {VO: [cms], CEs: {ce: {Queues: {q: {}}}}}
"""
INSISTS = "Operations: {Defaults: {JobScheduling: {AllowInvalidSites: false}}}\n"


def test_a_job_fails_only_if_none_of_its_sites_is_open() -> None:
    context = context_of(CLOSED + INSISTS)
    closed = candidate_of(context, Site=["C.D.ch", "E.F.ch"])
    outcome = job_scheduling(closed, context)
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith("all_sites_banned: C.D.ch, E.F.ch: ")
    assert isinstance(job_scheduling(candidate_of(context, Site=["A.B.ch", "C.D.ch"]), context), Done)
    assert isinstance(job_scheduling(replace(closed, reschedules=1, held_by="JobScheduling"), context), Done)
    patient = context_of(CLOSED)
    assert isinstance(job_scheduling(candidate_of(patient, Site=["C.D.ch"]), patient), Done)


def test_a_job_whose_bans_leave_no_open_site_fails_where_the_vo_insists() -> None:
    context = context_of(CLOSED + INSISTS)
    outcome = job_scheduling(candidate_of(context, BannedSites=["a.B.ch"]), context)
    assert outcome == Failed(
        reason="all_sites_banned: all but its BannedSites: none of them takes jobs of lhcb now"
    )
    every = candidate_of(context, BannedSites=["A.B.ch", "C.D.ch", "E.F.ch"])
    assert isinstance(job_scheduling(every, context), Failed)
    assert isinstance(job_scheduling(candidate_of(context, BannedSites=["C.D.ch"]), context), Done)
    banned = replace(context, banned_sites=frozenset({"a.b.ch"}))
    assert isinstance(job_scheduling(candidate_of(banned, BannedSites=["C.D.ch"]), banned), Failed)
    assert isinstance(job_scheduling(candidate_of(banned), banned), Done)
    patient = context_of(CLOSED)
    assert isinstance(job_scheduling(candidate_of(patient, BannedSites=["A.B.ch"]), patient), Done)


def test_sites_that_only_a_default_bans_fail_and_hold_no_job() -> None:
    """It waits like a job that states nothing; what it states itself counts whatever the defaults are."""
    text = INSISTS.replace("}}}", "}, JobDescription: {BannedSites: {default: [A.B.ch]}}}}")
    context = context_of(CLOSED + text)
    assert isinstance(job_scheduling(candidate_of(context), context), Done)
    assert isinstance(job_scheduling(candidate_of(context, Site=["A.B.ch", "C.D.ch"]), context), Done)
    outcome = job_scheduling(candidate_of(context, Site=["C.D.ch", "E.F.ch"]), context)
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith("all_sites_banned: C.D.ch, E.F.ch: ")
    named = INSISTS.replace("}}}", "}, JobDescription: {Site: {default: [C.D.ch]}}}}")
    context = context_of(CLOSED + named)
    assert isinstance(job_scheduling(candidate_of(context), context), Done)


def test_a_ban_closes_a_site_to_all_but_tests() -> None:
    context = replace(context_of(CLOSED + INSISTS), banned_sites=frozenset({"a.b.ch"}))
    assert isinstance(job_scheduling(candidate_of(context, Site=["a.B.ch"]), context), Failed)
    assert isinstance(job_scheduling(candidate_of(context, Site=["A.B.ch"], JobType="Test"), context), Done)
    near = replace(candidate_of(context), replicas=frozenset({frozenset({"A.B.ch"})}))
    outcome = job_scheduling(near, context)
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith("impossible_input_data_site: A.B.ch")


def test_a_job_goes_only_where_its_data_are() -> None:
    context = context_of(GRID)
    both, there = frozenset({"A.B.ch", "C.D.ch"}), frozenset({"C.D.ch"})
    with_data = replace(candidate_of(context), replicas=frozenset({both}))
    found = asked(with_data, context)
    assert (found.sites, found.replicas) == (set(), {both})
    assert scheduled(with_data, context).site == "Multiple"
    assert scheduled(replace(with_data, replicas=frozenset({both, there})), context).site == "C.D.ch"
    elsewhere = replace(candidate_of(context, Site="A.B.ch"), replicas=frozenset({there}))
    outcome = job_scheduling(elsewhere, context)
    assert isinstance(outcome, Failed)
    assert outcome.reason.startswith("Impossible InputData * Site requirements")
    banned = replace(candidate_of(context, BannedSite="C.D.ch"), replicas=frozenset({there}))
    assert isinstance(job_scheduling(banned, context), Failed)


def with_pool(candidate: JobContext) -> JobContext:
    requirements = Record(values=(("Memory", 4000),))
    return replace(candidate, pool=ResolvedPool(pool_id="f" * 64, requirements=requirements, canonical=""))


def test_the_pool_is_part_of_the_class() -> None:
    context = context_of(GRID)
    assert asked(with_pool(candidate_of(context)), context).submit_pool == "f" * 64


def test_the_sites_of_today_are_not_written_into_the_class() -> None:
    context = context_of(GRID + "Operations: {Defaults: {JobScheduling: {NarrowSites: true}}}\n")
    assert asked(with_pool(candidate_of(context)), context).sites == set()


@pytest.mark.parametrize(("reschedules", "seconds"), [(1, 60), (2, 180), (3, 300), (4, 600), (9, 600)])
def test_a_rescheduled_job_waits_longer_each_time(reschedules: int, seconds: int) -> None:
    context = context_of()
    outcome = job_scheduling(candidate_of(context, reschedules=reschedules), context)
    assert isinstance(outcome, Hold)
    assert outcome.delay == timedelta(seconds=seconds)


def test_a_rescheduled_job_without_a_delay_goes_on_at_once() -> None:
    context = context_of("Operations: {Defaults: {JobScheduling: {RescheduleDelays: [0, 60]}}}")
    assert isinstance(job_scheduling(candidate_of(context, reschedules=1), context), Done)
    assert isinstance(job_scheduling(candidate_of(context, reschedules=2), context), Hold)


def test_a_delay_is_waited_for_once() -> None:
    context = context_of()
    waited = candidate_of(context, reschedules=2, held_by="JobScheduling")
    assert isinstance(job_scheduling(waited, context), Done)
    other = candidate_of(context, reschedules=2, held_by="InputData")
    assert isinstance(job_scheduling(other, context), Hold)
