"""The journal of a gateway is read with as many statements for one grid job as for many."""

from contextlib import closing
from pathlib import Path

from pilotage.fabric.manager import journal as journals
from pilotage.fabric.manager.grid_job import LocalJob
from pilotage.fabric.manager.journal import Journal
from tests.grid_jobs import taken


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
