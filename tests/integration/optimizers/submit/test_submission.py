"""Submissions: whole or not at all, once for a key, within limits."""

import io
import json
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from cs_config.options import bounds
from cs_config.options.options import LimitOptions
from optimizers.submit.submitter import Submitter
from requirements.errors import InvalidJob, NotAllowed
from taskqueue import blobs
from taskqueue.blob_stores.directory import DirectoryStore
from taskqueue.db import database
from taskqueue.errors import IdempotencyConflict, QuotaExceeded
from taskqueue.jobs import descriptions, submission
from taskqueue.schema.tables import descriptions as descriptions_table
from taskqueue.schema.tables import jobs as jobs_table
from tests.support import concurrency, databases, wait
from tests.support.databases import count
from tests.support.factories import stored_rows
from tests.support.factories.submitted_jobs import ANN, GRID, OPERATOR, grid, job, submit

JOB = {"Executable": "a.sh"}


def body(engine: Engine, job_id: int) -> dict[str, object]:
    with database.reading(engine) as conn:
        return dict(descriptions.read_description(conn, job_id).body)


def test_a_job_is_stored_as_its_submitters(engine: Engine, now: datetime) -> None:
    [job_id] = submit(engine, grid(), now, {**JOB, "JobName": "mine", "Priority": 3, "Site": "A.B.ch"})
    found = job(engine, job_id)
    assert (found.vo, found.owner, found.owner_group) == ("lhcb", "ann", "lhcb_user")
    assert (found.job_name, found.priority, found.site) == ("mine", 3, "A.B.ch")
    assert (found.status, found.minor_status, found.due_at) == ("Received", "Job accepted", now)


def test_one_bad_job_refuses_the_whole_and_is_named(engine: Engine, now: datetime) -> None:
    wrong = ({**JOB, "CPUTime": "long"}, "Executable: a\nSitte: x", "Executable: [")
    with pytest.raises(InvalidJob) as caught:
        submit(engine, grid(), now, JOB, *wrong)
    paths = [problem.path for problem in caught.value.problems]
    assert paths == ["jobs[1]/CPUTime", "jobs[2]/Sitte", "jobs[3]/description"]
    assert count(engine, jobs_table) == 0


def test_a_single_job_has_no_index(engine: Engine, now: datetime) -> None:
    with pytest.raises(InvalidJob) as caught:
        submit(engine, grid(), now, {**JOB, "CPUTime": "long"})
    assert [problem.path for problem in caught.value.problems] == ["CPUTime"]


def test_an_empty_submission_is_refused(engine: Engine, now: datetime) -> None:
    with pytest.raises(InvalidJob):
        submit(engine, grid(), now)


def test_a_parametric_job_is_stored_once_with_many_members(engine: Engine, now: datetime) -> None:
    text = "Executable: a.sh\nArguments: '%s %n %(A)s'\nParameters: 3\nParameters.A: [x, y, z]\n"
    ids = submit(engine, grid(), now, text)
    assert [body(engine, job_id)["Arguments"] for job_id in ids] == ["0 0 x", "1 1 y", "2 2 z"]
    assert count(engine, descriptions_table) == 1


def test_placeholders_may_stand_where_numbers_and_names_do(engine: Engine, now: datetime) -> None:
    text = (
        "Executable: a.sh\nCPUTime: '%(cpu)s'\nSite: 'A.%s.ch'\n"
        "Parameters: [B, C]\nParameters.cpu: [1000, 2000]\n"
    )
    first, second = submit(engine, grid(), now, text)
    assert (body(engine, first)["CPUTime"], body(engine, first)["Site"]) == (1000, ["A.B.ch"])
    assert (body(engine, second)["CPUTime"], body(engine, second)["Site"]) == (2000, ["A.C.ch"])
    assert job(engine, second).site == "A.C.ch"


def test_a_member_that_is_wrong_refuses_all_and_is_named(engine: Engine, now: datetime) -> None:
    text = "Executable: a.sh\nCPUTime: '%s'\nParameters: [1000, many]\n"
    with pytest.raises(InvalidJob, match="in the job with n=1, s=many"):
        submit(engine, grid(), now, text)
    assert count(engine, jobs_table) == 0


def test_equal_descriptions_side_by_side_are_stored_once(engine: Engine, now: datetime) -> None:
    ids = submit(engine, grid(), now, *(["Executable: a"] * 5), "Executable: b")
    assert [body(engine, job_id)["Executable"] for job_id in ids] == ["a"] * 5 + ["b"]
    assert count(engine, descriptions_table) == 2


def test_the_same_key_gives_the_same_ids(engine: Engine, now: datetime) -> None:
    first = submit(engine, grid(), now, JOB, JOB, key="k")
    assert submit(engine, grid(), now + timedelta(days=6), JOB, JOB, key="k") == first
    assert count(engine, jobs_table) == 2


def test_the_same_key_gives_the_same_ids_though_the_configuration_refuses_the_job_now(
    engine: Engine, now: datetime
) -> None:
    first = submit(engine, grid(), now, {**JOB, "CPUTime": 5000}, key="k")
    stricter = grid(
        GRID + "Operations: {Defaults: {JobDescription: {CPUTime: {default: 1000, max: 1000}}}}\n", 2
    )
    assert submit(engine, stricter, now, {**JOB, "CPUTime": 5000}, key="k") == first


def test_another_body_under_the_same_key_is_refused(engine: Engine, now: datetime) -> None:
    submit(engine, grid(), now, JOB, key="k")
    with pytest.raises(IdempotencyConflict, match="'k' was used for another request"):
        submit(engine, grid(), now, {**JOB, "JobName": "other"}, key="k")


def test_the_keys_of_others_are_others(engine: Engine, now: datetime) -> None:
    bob = Submitter(subject="bob@lhcb", vo="lhcb", owner="bob", owner_group="lhcb_user")
    ours = submit(engine, grid(), now, JOB, key="k")
    assert ours != submit(engine, grid(), now, JOB, key="k", submitter=bob)


def test_a_refused_submission_does_not_use_up_its_key(engine: Engine, now: datetime) -> None:
    with pytest.raises(InvalidJob):
        submit(engine, grid(), now, {"Executable": ""}, key="k")
    assert submit(engine, grid(), now, JOB, key="k")


def test_the_same_key_at_once_makes_the_jobs_once(engine: Engine, now: datetime) -> None:
    answers = concurrency.at_once(4, lambda _: submit(engine, grid(), now, JOB, JOB, key="k"))
    assert len({tuple(answer) for answer in answers}) == 1
    assert count(engine, jobs_table) == 2


def test_only_an_operator_submits_for_others(engine: Engine, now: datetime) -> None:
    others = {**JOB, "Owner": "bob", "OwnerGroup": "lhcb_prod", "VO": "LHCb"}
    with pytest.raises(
        NotAllowed, match=r"jobs\[1\]/.*Owner: 'bob'.*OwnerGroup: 'lhcb_prod', yours is 'lhcb_user'"
    ):
        submit(engine, grid(), now, JOB, others)
    assert count(engine, jobs_table) == 0
    [job_id] = submit(engine, grid(), now, others, submitter=OPERATOR)
    found = job(engine, job_id)
    assert (found.vo, found.owner, found.owner_group) == ("lhcb", "bob", "lhcb_prod")


def test_the_vo_of_a_configured_group_is_known(engine: Engine, now: datetime) -> None:
    config = grid(GRID + "Registry: {Groups: {biomed_prod: {VO: biomed}}}\n")
    [job_id] = submit(
        engine, config, now, {**JOB, "Owner": "bob", "OwnerGroup": "biomed_prod"}, submitter=OPERATOR
    )
    assert job(engine, job_id).vo == "biomed"


def test_an_operator_without_a_vo_names_one(engine: Engine, now: datetime) -> None:
    with pytest.raises(InvalidJob) as caught:
        submit(engine, grid(), now, JOB, submitter=OPERATOR)
    assert {problem.path for problem in caught.value.problems} == {"VO", "Owner"}


def test_an_operator_who_mistypes_a_vo_is_told_which_is_meant(engine: Engine, now: datetime) -> None:
    config = grid(GRID + "Registry: {VO: {biomed: {}, lhcb: {}}}\n")
    for_others = {**JOB, "Owner": "bob"}
    with pytest.raises(InvalidJob, match=r"VO: 'biomedd'.*did you mean biomed\?"):
        submit(engine, config, now, {**for_others, "VO": "BioMedd"}, submitter=OPERATOR)
    assert submit(engine, config, now, {**for_others, "VO": "BioMed"}, submitter=OPERATOR)


def test_naming_oneself_is_allowed(engine: Engine, now: datetime) -> None:
    assert submit(engine, grid(), now, {**JOB, "Owner": "ann", "VO": "LHCB", "OwnerGroup": "lhcb_user"})


@pytest.mark.parametrize(
    ("option", "message"),
    [("WaitingJobsPerOwner", "ann has too many"), ("WaitingJobsPerVO", "lhcb has too many")],
)
def test_waiting_jobs_have_limits(engine: Engine, now: datetime, option: str, message: str) -> None:
    config = grid(GRID + f"Operations: {{Defaults: {{Limits: {{{option}: 3}}}}}}\n")
    submit(engine, config, now, JOB, JOB)
    with pytest.raises(QuotaExceeded, match=message):
        submit(engine, config, now, JOB, JOB)
    [last] = submit(engine, config, now, JOB)
    with pytest.raises(QuotaExceeded):
        submit(engine, config, now, JOB)
    stored_rows.force(engine, last, status="Running")
    assert submit(engine, config, now, JOB)


@pytest.mark.parametrize("option", ["WaitingJobsPerOwner", "WaitingJobsPerVO"])
def test_a_limit_holds_for_submissions_at_the_same_time(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """The second submission counts while the jobs of the first are stored and not yet committed."""
    config = grid(GRID + f"Operations: {{Defaults: {{Limits: {{{option}: 5}}}}}}\n")
    store_jobs = submission.store_jobs
    with ThreadPoolExecutor(1) as threads:
        second: list[Future[list[int]]] = []

        def storing(conn: Connection, *jobs: Any, **values: Any) -> list[int]:
            ids = store_jobs(conn, *jobs, **values)
            monkeypatch.setattr(submission, "store_jobs", store_jobs)
            second.append(threads.submit(submit, engine, config, now, JOB, JOB, JOB))
            if engine.dialect.name == "postgresql":  # on SQLite it waits for the end of this transaction
                wait.until(lambda: second[0].done() or _count_waits_for_a_quota(conn))
            return ids

        monkeypatch.setattr(submission, "store_jobs", storing)
        submit(engine, config, now, JOB, JOB, JOB)
        with pytest.raises(QuotaExceeded):
            second[0].result()
    assert count(engine, jobs_table) == 3


def _count_waits_for_a_quota(conn: Connection) -> int:
    locks = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    return int(conn.execute(locks).scalar_one())


@pytest.mark.parametrize("stated", [{}, {"WaitingJobsPerOwner": 10**9, "WaitingJobsPerVO": 10**9}])
def test_far_from_the_limits_submissions_do_not_wait_for_each_other(
    stated: dict[str, int], postgresql: Engine, now: datetime
) -> None:
    new = {("lhcb", "ann"): 1}
    limits = LimitOptions.model_validate(stated)
    with database.writing(postgresql) as one, database.writing(postgresql) as other:
        for conn in (one, other):  # the second would wait forever
            submission.check_quota(conn, new, {"lhcb": limits}, now=now, stored_next=True)


def test_one_owner_stores_only_so_much_at_once_that_the_limit_holds(
    postgresql: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one waits for all that a count does not see."""
    monkeypatch.setattr(bounds, "SUBMISSIONS_AT_ONCE", 2)
    new, limits = {("lhcb", "ann"): 1}, LimitOptions.model_validate({})

    def reserve(conn: Connection) -> None:
        submission.check_quota(conn, new, {"lhcb": limits}, now=now, stored_next=True)

    with ThreadPoolExecutor(1) as threads, database.writing(postgresql) as third:
        with database.writing(postgresql) as one, database.writing(postgresql) as other:
            reserve(one)
            reserve(other)
            waits = threads.submit(reserve, third)
            wait.until(lambda: _count_waits_for_a_quota(one) == 1)
        waits.result()


def test_small_submissions_that_wait_for_a_large_one_do_not_wait_for_each_other_afterwards(
    postgresql: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The large one leaves too little for submissions that share the lock."""
    monkeypatch.setattr(bounds, "DECIDED_JOBS", 1)
    connections = databases.scalar(postgresql, submission.CONNECTIONS)
    most = 3 * connections + 20
    config = grid(GRID + f"Operations: {{Defaults: {{Limits: {{WaitingJobsPerOwner: {most}}}}}}}\n")
    store_jobs = submission.store_jobs
    with ThreadPoolExecutor(2) as threads:
        small: list[Future[list[int]]] = []

        def storing(conn: Connection, *jobs: Any, **values: Any) -> list[int]:
            ids = store_jobs(conn, *jobs, **values)
            monkeypatch.setattr(submission, "store_jobs", store_jobs)
            small.extend(threads.submit(submit, postgresql, config, now, JOB) for _ in range(2))
            wait.until(lambda: _count_waits_for_a_quota(conn) == 2)
            return ids

        monkeypatch.setattr(submission, "store_jobs", storing)
        large = {**JOB, "Parameters": connections + 30}
        assert len(submit(postgresql, config, now, large)) == connections + 30
        assert [len(each.result()) for each in small] == [1, 1]


def test_many_jobs_are_refused_before_they_are_made_but_not_again_under_a_key_that_made_them(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = {**JOB, "Parameters": 2000}
    config = grid(GRID + "Operations: {Defaults: {Limits: {WaitingJobsPerOwner: 3000}}}\n")
    first = submit(engine, config, now, many, key="one")
    monkeypatch.setattr(
        "optimizers.description.parametric.expand_parameters", lambda *_, **__: pytest.fail("expanded")
    )
    with pytest.raises(QuotaExceeded, match="ann has too many"):
        submit(engine, config, now, many)
    with pytest.raises(QuotaExceeded):
        submit(engine, config, now, many, key="two")
    assert submit(engine, config, now, many, key="one") == first


def test_counts_of_few_owners_are_kept(
    postgresql: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "_CACHED", 3)
    with database.writing(postgresql) as conn:
        stored_rows.job_ids(conn, now, 3)
        limits = LimitOptions.model_validate({"WaitingJobsPerOwner": 2, "WaitingJobsPerVO": 2})
        for number in range(5):
            submission.check_quota(conn, {("cms", f"ann{number}"): 1}, {"cms": limits}, now=now)
        assert len(submission._CACHED_COUNTS[postgresql].items()) == 3


def test_limits_are_per_vo_and_owner(engine: Engine, now: datetime) -> None:
    config = grid(GRID + "Operations: {lhcb: {Limits: {WaitingJobsPerOwner: 1}}}\n")
    bob = Submitter(subject="bob", vo="lhcb", owner="bob")
    atlas = Submitter(subject="ann@atlas", vo="atlas", owner="ann")
    for submitter in (ANN, bob, atlas):
        assert submit(engine, config, now, JOB, submitter=submitter)
    assert submit(engine, config, now, JOB, submitter=atlas)


@pytest.fixture
def archive(engine: Engine, now: datetime, tmp_path: Path) -> str:
    """The digest of a sandbox of lhcb."""
    store = DirectoryStore(tmp_path / "blobs")
    staged = store.stage(iter([io.BytesIO(b"tar").read()]), limit=100)
    with database.writing(engine) as conn:
        return blobs.store_blob(conn, store, staged, vo="lhcb", quota=None, now=now)


def sandbox_of(engine: Engine, job_id: int) -> str | None:
    with database.reading(engine) as conn:
        return descriptions.read_description(conn, job_id).sandbox


def test_a_sandbox_may_come_beside_or_in_the_description(engine: Engine, now: datetime, archive: str) -> None:
    beside = {**JOB, "InputSandbox": ["run.sh"]}
    for named in (archive, archive.upper()):
        inside = {**JOB, "InputSandbox": [f"SB:sha256:{named}"]}
        first, second = submit(engine, grid(), now, beside, inside, sandbox=f"sha256:{archive}")
        assert sandbox_of(engine, first) == sandbox_of(engine, second) == archive


@pytest.mark.parametrize(
    ("entries", "beside", "message"),
    [
        (["run.sh"], None, "run.sh: not uploaded"),
        ([f"sha256:{'0' * 64}"], None, "is not stored for lhcb"),
        ([f"sha256:{'0' * 64}", f"sha256:{'1' * 64}"], None, "more than one archive"),
        ([], "sha256:12", "is not a sandbox reference"),
        ([], f"sha256:{'0' * 64}", "is not stored for lhcb"),
    ],
)
def test_a_sandbox_that_is_not_there_refuses_the_job(
    engine: Engine, now: datetime, entries: list[str], beside: str | None, message: str
) -> None:
    with pytest.raises(InvalidJob, match=message):
        submit(engine, grid(), now, {**JOB, "InputSandbox": entries}, sandbox=beside)
    assert count(engine, jobs_table) == 0


def test_a_sandbox_of_another_vo_is_not_there(engine: Engine, now: datetime, archive: str) -> None:
    atlas = Submitter(subject="x", vo="atlas", owner="x")
    with pytest.raises(InvalidJob, match="is not stored for atlas"):
        submit(engine, grid(), now, JOB, sandbox=f"sha256:{archive}", submitter=atlas)


def test_the_source_is_kept_as_it_came(engine: Engine, now: datetime) -> None:
    text = "# mine\nExecutable: a.sh\n"
    first, second = submit(engine, grid(), now, text, JOB)
    with database.reading(engine) as conn:
        assert descriptions.read_description(conn, first).source == text
        assert json.loads(descriptions.read_description(conn, second).source) == JOB
