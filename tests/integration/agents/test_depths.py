"""How many waiting jobs each site and queue could run is sampled, and is a series with gaps."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine

from agents import accounting
from agents.accounting import DepthsResult
from agents.retention import retention
from matcher.explain import queue_report
from pilotage.service.queries.overview import SampledJobs
from requirements.requirement_class import RequirementClass
from taskqueue.accounting import depths
from taskqueue.db import database
from taskqueue.task_queues import listing
from tests.support.factories import queued_jobs

CONFIG = queued_jobs.grid()
START = datetime(2026, 3, 2, 12, 3, tzinfo=UTC)
STEP = timedelta(minutes=10)
LHCB, CMS = (RequirementClass(vo=vo, cpu_time=0) for vo in ("lhcb", "cms"))


def _cycle(engine: Engine, now: datetime) -> DepthsResult | None:
    return accounting.sample_depths(engine, CONFIG, now=now, holder="test")


def _sample(engine: Engine, at: datetime, more: int, *, asked: RequirementClass = LHCB) -> None:
    """Take a sample with so many more jobs."""
    queued_jobs.put(engine, START, more, asked=asked)
    _cycle(engine, at)


def _read(engine: Engine, steps: int, **which: str | frozenset[str]) -> Mapping[str, Sequence[int | None]]:
    with database.reading(engine) as conn:
        until = START + (steps - 1) * STEP
        return depths.read_depths(conn, since=START, until=until, step=STEP, **which).jobs  # type: ignore[arg-type]


def test_a_job_counts_once_at_a_site_and_at_each_queue_that_could_run_it(engine: Engine) -> None:
    queued_jobs.put(engine, START, 3, asked=LHCB)
    queued_jobs.put(engine, START, 2, asked=CMS)
    assert _cycle(engine, START) == DepthsResult(sampled=11)
    assert _read(engine, 1) == {"A.B.ch": [5], "C.D.ch": [5]}
    assert _read(engine, 1, sites=frozenset({"C.D.ch"})) == {"C.D.ch": [5]}
    assert _read(engine, 1, vos=frozenset({"lhcb"})) == {"A.B.ch": [3], "C.D.ch": [3]}
    assert _read(engine, 1, site="A.B.ch") == {"": [5], "ce1/long": [5], "ce1/short": [5], "ce2/long": [2]}


def test_what_is_too_much_to_count_for_a_page_is_read_from_the_latest_sample(engine: Engine) -> None:
    _sample(engine, START, 3)
    _sample(engine, START + STEP, 2, asked=CMS)
    for vos, jobs, at_queues in (
        (None, {"A.B.ch": 5, "C.D.ch": 5}, {"long": 5, "short": 5}),
        ({"cms"}, {"A.B.ch": 2, "C.D.ch": 2}, {"long": 2, "short": 2}),
    ):
        with database.reading(engine) as conn:
            sampled = SampledJobs(jobs=depths.read_sample(conn, vos))
            classes = listing.list_waiting(conn, vos)
        counted = queue_report.count_runnable(CONFIG, classes, {})
        assert sampled.by_site == counted.by_site == jobs
        found = sampled.count_by_queue("A.B.ch")
        assert found == counted.count_by_queue("A.B.ch")
        assert {each.queue: number for each, number in found.items() if each.ce == "ce1"} == at_queues


def test_a_sample_is_taken_once_and_a_step_without_one_is_a_gap(engine: Engine) -> None:
    job_ids = queued_jobs.put(engine, START, 1, asked=LHCB)
    assert _cycle(engine, START) != DepthsResult()
    assert _cycle(engine, START + timedelta(minutes=6)) == DepthsResult()
    with database.writing(engine) as conn:
        queued_jobs.claim(conn, {queued_jobs.task_queue_of(conn, job_ids[0])}, START)
    assert _cycle(engine, START + 2 * STEP) == DepthsResult()  # it has no place, but is a sample
    assert _read(engine, 4)["A.B.ch"] == [1, None, 0, None]


def test_samples_of_a_clock_that_was_ahead_are_replaced_when_it_is_set_back(engine: Engine) -> None:
    _sample(engine, START, 1)
    _sample(engine, START + STEP, 2)
    _sample(engine, START, 4)
    assert _read(engine, 2)["A.B.ch"] == [7, None]


def test_the_largest_depths_of_sites_are_those_of_the_latest_sample_if_it_is_new(engine: Engine) -> None:
    _sample(engine, START, 1)
    _sample(engine, START + STEP, 2)
    with database.reading(engine) as conn:
        find = depths.read_largest
        assert find(conn, since=START, most=9) == {("lhcb", "A.B.ch"): 3, ("lhcb", "C.D.ch"): 3}
        assert find(conn, since=START, most=1) == {("lhcb", "A.B.ch"): 3}
        assert find(conn, since=START + 2 * STEP, most=9) == {}


def test_samples_are_removed_after_a_week(engine: Engine) -> None:
    _sample(engine, START, 1)
    retention.cycle(engine, CONFIG, now=START + timedelta(days=6), holder="test")
    assert _read(engine, 1)
    retention.cycle(engine, CONFIG, now=START + timedelta(days=8), holder="test")
    assert not _read(engine, 1)
