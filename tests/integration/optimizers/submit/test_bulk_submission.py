"""Submissions of many jobs: how many statements they take, what is shared, and whose limits hold."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, event, func, select

from cs_config.versions import store
from optimizers.chain import batch
from optimizers.submit import submission as submission_of_jobs
from requirements.errors import InvalidJob
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.errors import QuotaExceeded
from taskqueue.jobs import control, submission
from taskqueue.jobs.descriptions import read_description
from taskqueue.schema.tables import descriptions
from tests.support.factories import stored_rows
from tests.support.factories.submitted_jobs import (
    ANN,
    GRID,
    grid,
    job,
    log_of,
    store_grid,
    submit,
    waiting,
    way,
)

KINDS = (
    "Requirements = other.Memory >= 4000;\nCPUTime = 3600;\n",
    "Requirements = other.Memory >= 2000;\n",
    'Site = {"A.B.ch"};\n',
)


def jdls(count: int, *, first: int = 0) -> list[str]:
    """So many texts in turn of three kinds, each with a name and arguments of its own."""
    return [
        f'[\nJobName = "j{number}";\nExecutable = "run.sh";\nArguments = "--seed {number} \\\\\\\\ % %s";\n'
        f'Seed = {number};\nOutputSandbox = {{"out", "log_{number}"}};\n{KINDS[number % 3]}]'.replace(
            " \\\\\\\\", ""
        )
        for number in range(first, first + count)
    ]


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    """What is sent to the database meanwhile; many rows for one statement count once."""
    sent: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield sent
    event.remove(engine, "before_cursor_execute", note)


def test_more_jobs_take_no_more_statements(engine: Engine, now: datetime) -> None:
    config = store_grid(engine, now)
    batch.optimize(engine, config, submit(engine, config, now, *jdls(3)), now=now)
    counts = []
    for count in (30, 600):
        with database.reading(engine) as conn:
            config = store.load_version(conn)  # in front of this one nothing is known of them
        with statements(engine) as submitting:
            ids = submit(engine, config, now, *jdls(count))
        with statements(engine) as preparing:
            assert batch.optimize(engine, config, ids, now=now).waiting == tuple(ids)
        with statements(engine) as deciding:
            decided = submission_of_jobs.submit(engine, config, ANN, jdls(count), now=now)
        assert waiting(engine)[-count:] == decided.job_ids == list(decided.decided.waiting)
        counts.append((len(submitting), len(preparing), len(deciding)))
    assert counts[0] == counts[1]
    # BEGIN and the like are not counted; SQLite needs some more for new ids.
    assert counts[1][2] <= 23


def test_each_job_keeps_what_it_said(engine: Engine, now: datetime) -> None:
    texts = jdls(9)
    ids = submit(engine, grid(), now, *texts)
    with database.reading(engine) as conn:
        found = [read_description(conn, job_id) for job_id in ids]
        assert conn.scalar(select(func.count()).select_from(descriptions)) == len(KINDS)
    assert [each.source for each in found] == texts
    assert [each.body["JobName"] for each in found] == [f"j{number}" for number in range(9)]
    assert [each.body["Seed"] for each in found] == list(range(9))
    assert [each.body["Arguments"] for each in found] == [f"--seed {number} % %s" for number in range(9)]
    assert [each.body["OutputSandbox"] for each in found] == [["out", f"log_{number}"] for number in range(9)]
    assert [job(engine, job_id).job_name for job_id in ids] == [f"j{number}" for number in range(9)]


def test_a_job_that_shares_with_nobody_is_stored_as_it_came(engine: Engine, now: datetime) -> None:
    first, second = jdls(2)
    ids = submit(engine, grid(), now, first, second)
    with database.reading(engine) as conn:
        sources = conn.scalars(select(descriptions.c.source).order_by(descriptions.c.description_id)).all()
        bodies = [json.loads(each) for each in conn.scalars(select(descriptions.c.body))]
    assert sources == [first, second]
    assert "%(" not in json.dumps(bodies)
    assert len(ids) == 2


def test_those_that_share_are_decided_one_by_one_where_they_differ(engine: Engine, now: datetime) -> None:
    """Good ones, one killed meanwhile, one whose sandbox is gone, some that no queue is known for."""
    config = store_grid(engine, now)
    ids = submit(engine, config, now, *jdls(9))
    unknown = [f'[\nJobName = "u{n}";\nExecutable = "a";\nSite = {{"No.Site.org"}};\n]' for n in range(3)]
    strict = store_grid(
        engine, now, f"{GRID}Operations: {{Defaults: {{JobScheduling: {{AllowInvalidSites: false}}}}}}\n"
    )
    bad = submit(engine, strict, now, *unknown)
    stored_rows.kill(engine, now, ids[4])
    result = batch.optimize(engine, strict, [*ids, *bad], now=now)
    good = [job_id for job_id in ids if job_id != ids[4]]
    assert (result.waiting, result.failed, result.left) == (tuple(good), tuple(bad), (ids[4],))
    assert waiting(engine) == good
    assert {tuple(way(engine, job_id)) for job_id in good} == {("Received", "Waiting")}
    assert {tuple(way(engine, job_id)) for job_id in bad} == {("Received", "Failed")}
    assert job(engine, ids[4]).status is JobStatus.KILLED
    assert {entry.application_status for job_id in bad for entry in log_of(engine, job_id)[1:]} == {
        "unknown site No.Site.org"
    }


def test_options_that_limit_what_each_job_has_for_itself_hold_for_each(engine: Engine, now: datetime) -> None:
    config = store_grid(engine, now)
    ids = submit(engine, config, now, *jdls(9))
    limited = store_grid(
        engine, now, f"{GRID}Operations: {{Defaults: {{JobDescription: {{Seed: {{max: 5}}}}}}}}\n"
    )
    assert batch.optimize(engine, limited, ids, now=now).waiting == tuple(ids), "they were accepted before"
    with pytest.raises(InvalidJob) as refused:
        submit(engine, limited, now, *jdls(9))
    assert [each.path for each in refused.value.problems] == [f"jobs[{index}]/Seed" for index in (6, 7, 8)]


def test_a_count_is_gone_on_from_and_never_lets_too_many_in(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = grid(f"{GRID}Operations: {{Defaults: {{Limits: {{WaitingJobsPerOwner: 20}}}}}}\n")
    with database.writing(engine) as conn:
        ended = stored_rows.job_ids(conn, now, 30)
        control.kill_jobs(conn, ended, source="test", now=now)
    counts: list[Sequence[object]] = []
    monkeypatch.setattr(submission, "_count_waiting", _counting(counts))
    for start in range(0, 20, 5):
        submit(engine, limited, now, *jdls(5, first=start))
    assert len(counts) == 1
    with pytest.raises(QuotaExceeded):
        submit(engine, limited, now, *jdls(1))
    assert len(counts) == 2
    with pytest.raises(QuotaExceeded):
        submit(engine, limited, now + timedelta(hours=1), *jdls(1))
    assert len(counts) == 3


def _counting(counts: list[Sequence[object]], count=submission._count_waiting):  # type: ignore[no-untyped-def]
    def counted(*arguments):  # type: ignore[no-untyped-def]
        counts.append(arguments)
        return count(*arguments)

    return counted
