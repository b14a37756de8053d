"""Storing jobs, reading them back, finding them."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine

from requirements.errors import InvalidRequest
from requirements.job_fields import JOB_GROUP, JOB_ID, OWNER, SITE, STATUS, SUBMIT_POOL, SUBMITTED_AT, VO
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.errors import JobNotFound
from taskqueue.jobs import descriptions, jobs, log, search, submission
from taskqueue.jobs.descriptions import Description
from taskqueue.jobs.search import JobSelector
from taskqueue.jobs.submission import NewJob
from tests.support.factories import stored_rows


def _new(owner: str = "alice", **about: object) -> NewJob:
    return NewJob(vo="lhcb", owner=owner, owner_group="lhcb_user", **about)  # type: ignore[arg-type]


def test_a_new_job_is_received_and_due(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        [job_id] = stored_rows.job_ids(conn, now)
        job = jobs.get_job(conn, job_id)
        entries = log.read_log(conn, job_id)
    assert (job.status, job.minor_status, job.due_at) == (JobStatus.RECEIVED, "Job accepted", now)
    assert (job.submitted_at, job.updated_at, job.started_at, job.ended_at) == (now, now, None, None)
    assert (job.epoch, job.reschedules, job.site, job.submit_pool) == (0, 0, "ANY", None)
    assert [(entry.from_status, entry.to_status, entry.at) for entry in entries] == [(None, job.status, now)]


def test_ids_come_in_the_order_of_the_jobs(engine: Engine, now: datetime) -> None:
    described = [Description(source=f"{b}", body={"Executable": f"{b}"}) for b in range(3)]
    placed = [(b, _new(job_name=f"{b}.{number}")) for b in range(3) for number in range(700)]
    with database.writing(engine) as conn:
        ids = submission.store_jobs(conn, described, placed, now=now)
        named = {job.job_id: job.job_name for job in search.list_jobs(conn, JobSelector(), limit=5000)}
        bodies = [
            descriptions.read_description(conn, job_id).body["Executable"] for job_id in (ids[0], ids[-1])
        ]
    assert [named[job_id] for job_id in ids] == [f"{b}.{n}" for b in range(3) for n in range(700)]
    assert bodies == ["0", "2"]


def test_any_text_comes_back_as_it_was(engine: Engine, now: datetime) -> None:
    names = ['"', "\\", '\\"', "a,b", "{}", "NULL", "", " ", "new\nline", "ü€😀", '","', "'", "%s"]
    described = [Description(source=name, body={}, sandbox=name or None) for name in names]
    placed = [(place, _new(job_name=name)) for place, name in enumerate(names)]
    with database.writing(engine) as conn:
        ids = submission.store_jobs(conn, described, placed, now=now)
        found = [descriptions.read_description(conn, job_id) for job_id in ids]
        assert [jobs.get_job(conn, job_id).job_name for job_id in ids] == names
    assert [(each.source, each.sandbox or "") for each in found] == [(name, name) for name in names]


def test_ids_are_never_given_out_twice(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        first = stored_rows.job_ids(conn, now, 3)
        stored_rows.remove(conn, first)
        second = stored_rows.job_ids(conn, now, 1)
    assert second[0] > max(first)


def test_no_jobs_store_nothing(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        assert submission.store_jobs(conn, [], [], now=now) == []
        assert stored_rows.count_jobs(conn) == 0


def test_a_job_that_does_not_exist_is_not_found(engine: Engine) -> None:
    with database.reading(engine) as conn:
        with pytest.raises(JobNotFound, match="job 4711 does not exist"):
            jobs.get_job(conn, 4711)
        with pytest.raises(JobNotFound):
            descriptions.read_description(conn, 4711)
        assert log.read_log(conn, 4711) == []


def test_pages_go_on_where_the_last_one_ended(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        ids = stored_rows.job_ids(conn, now, 5)
        first = search.list_jobs(conn, JobSelector(), limit=3)
        second = search.list_jobs(conn, JobSelector(), limit=3, after=first[-1].job_id)
    assert [job.job_id for job in first + second] == sorted(ids, reverse=True)


def test_a_filter_finds_what_meets_all_of_it(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        [mine, _yours] = stored_rows.job_ids(conn, now) + stored_rows.job_ids(conn, now, owner="bob")
        [other] = stored_rows.job_ids(conn, now + timedelta(hours=1), vo="cms")
        stored_rows.force(conn, mine, status="Done", site="LCG.CERN.ch", submit_pool="p" * 64, job_group="g")

        def found(which: JobSelector) -> list[int]:
            return [job.job_id for job in search.list_jobs(conn, which, limit=9)]

        everything, later = JobSelector(), now + timedelta(minutes=1)
        assert found(everything.where(OWNER, {"alice"}).where(VO, {"lhcb"})) == [mine]
        assert found(everything.where(STATUS, {JobStatus.DONE, JobStatus.FAILED})) == [mine]
        at_cern = everything.where(SITE, {"LCG.CERN.ch"})
        assert found(at_cern.where(SUBMIT_POOL, {"p" * 64}).where(JOB_GROUP, {"g"})) == [mine]
        assert found(everything.between(SUBMITTED_AT, later, None)) == [other]
        assert found(everything.where(OWNER, {"alice"}).between(SUBMITTED_AT, None, later)) == [mine]
        assert found(everything.where(JOB_ID, {mine, other}).where(VO, {"cms"})) == [other]
        assert found(everything.where(VO, ())) == []
        assert found(everything.where(VO, {"cms"}).where(VO, {"lhcb"})) == [], "both conditions hold"
        assert len(found(everything)) == 3


def test_a_summary_counts_by_columns(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        ids = stored_rows.job_ids(conn, now, 3) + stored_rows.job_ids(conn, now, owner="bob")
        stored_rows.force(conn, ids[0], status="Done", site="A")
        assert search.count_by_columns(conn, ["status", "site"], JobSelector()) == {
            ("Done", "A"): 1,
            ("Received", "ANY"): 3,
        }
        assert search.count_by_columns(conn, ["submit_pool"], JobSelector().where(OWNER, {"bob"})) == {
            (None,): 1
        }
        assert stored_rows.count_jobs(conn, JobStatus.RECEIVED) == 3
        by_exit_code = search.count_by_columns(conn, ["exit_code"], JobSelector())
        assert by_exit_code == {(None,): 4}, "all jobs are counted, though nothing else names their table"


def test_a_summary_has_a_bounded_number_of_groups(engine: Engine, now: datetime) -> None:
    """Of thousands of jobs with a name each nothing is read."""
    with database.writing(engine) as conn:
        for job_id, name in zip(stored_rows.job_ids(conn, now, 6), "aabbcc", strict=True):
            stored_rows.force(conn, job_id, job_name=name)
        assert len(search.count_by_columns(conn, ["job_name", "status"], JobSelector(), most=3)) == 3
        with pytest.raises(InvalidRequest, match="by: job_name,status makes more than 2 groups"):
            search.count_by_columns(conn, ["job_name", "status"], JobSelector(), most=2)


@pytest.mark.parametrize(
    ("by", "message"),
    [([], "names no column"), (["statsu"], "did you mean status"), (["parameters"], "not among")],
)
def test_a_summary_by_something_else_is_refused(engine: Engine, by: list[str], message: str) -> None:
    with database.reading(engine) as conn, pytest.raises(InvalidRequest, match=message):
        search.count_by_columns(conn, by, JobSelector())
