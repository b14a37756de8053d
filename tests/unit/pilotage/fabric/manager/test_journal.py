"""The journal of a gateway: names of requests, one of an earlier version, and how it is read."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from pilotage.fabric.manager import journal as journals
from pilotage.fabric.manager.grid_job import LocalJob
from pilotage.fabric.manager.journal import Journal, LastAnswer
from pilotage.fabric.pilot.payload.payload import Report
from tests.support.factories.grid_jobs import taken


def test_a_request_keeps_its_name_over_a_restart_until_it_is_done(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        name = journal.open_request("cms A/b/c")
        assert journal.open_request("dune A/b/c") != name, "another question"
    with closing(Journal(tmp_path)) as journal:
        assert journal.open_request("cms A/b/c") == name
        journal.close_request("cms A/b/c")
        assert journal.requests.keys() == {"dune A/b/c"}
        assert journal.open_request("cms A/b/c") != name


def test_a_journal_of_an_earlier_version_keeps_its_grid_jobs(tmp_path: Path) -> None:
    one = taken()
    with closing(Journal(tmp_path)) as journal:
        journal.take(one)
    with closing(sqlite3.connect(tmp_path / "book.sqlite")) as database:
        database.execute("ALTER TABLE grid_jobs DROP COLUMN answer")

    answer = LastAnswer(boot="b", elapsed=1.0, at=2.0, run_on=None)
    with closing(Journal(tmp_path)) as journal:
        assert journal.find_answer(one.key) is None
        journal.note_answer(one.key, answer)
        assert [each.taken.key for each in journal.entries()] == [one.key]
        assert journal.find_answer(one.key) == answer


def test_a_journal_of_a_later_release_with_further_fields_is_read(tmp_path: Path) -> None:
    one, answer = taken(), LastAnswer(boot="b", elapsed=1.0, at=2.0, run_on=None)
    report = Report(status="Done", minor_status="fine", exit_code=0)
    with closing(Journal(tmp_path)) as journal:
        journal.take(one)
        journal.note_answer(one.key, answer)
        [entry] = journal.entries()
        journal.write(one.key, entry=replace(entry, outcome=report))
    with closing(sqlite3.connect(tmp_path / "book.sqlite")) as database, database:
        for column in ("taken", "answer", "outcome"):
            database.execute(f"UPDATE grid_jobs SET {column} = json_set({column}, '$.later', 7)")
    with closing(Journal(tmp_path)) as journal:
        [entry] = journal.entries()
        assert (entry.taken, entry.outcome) == (one, report)
        assert journal.find_answer(one.key) == answer


def test_all_local_jobs_are_read_at_once_and_parsed_when_they_changed(tmp_path: Path) -> None:
    grid_jobs = [taken(job_id) for job_id in (1, 2, 3)]
    with closing(Journal(tmp_path)) as journal:
        for each in grid_jobs:
            journal.take(each)
            local_jobs = [LocalJob(key=each.key, number=n, stamp=f"{each.job_id}.{n}") for n in (2, 1)]
            journal.write(each.key, local_jobs=local_jobs)
        journal.forget(grid_jobs[2].key)
        statements: list[str] = []
        journal._connection.set_trace_callback(statements.append)
        found = journal.grid_jobs()
        assert len(statements) == 2
        parsed = journals._parse_record.cache_info().misses
        assert journal.grid_jobs() == found
        assert journals._parse_record.cache_info().misses == parsed
        assert [(entry.key, [job.stamp for job in jobs]) for entry, jobs in found] == [
            (grid_jobs[0].key, ["1.1", "1.2"]),
            (grid_jobs[1].key, ["2.1", "2.2"]),
        ]
    assert len(journals.read_grid_jobs(tmp_path)) == 3
