"""The journal of a gateway: names of requests, and one of an earlier version."""

import sqlite3
from contextlib import closing
from pathlib import Path

from pilotage.fabric.manager.journal import Journal, LastAnswer
from tests.grid_jobs import taken


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
