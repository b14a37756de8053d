"""What must not have happened, asked of the tables afterwards: a job doubled, a job lost."""

from collections.abc import Iterator

from sqlalchemy import Connection, Engine, text

from taskqueue.db import database

_HELD = "('Matched', 'Running', 'Stalled', 'Completing')"
#: What is said of so many jobs, and which they are.
_FLAWS = {
    "wait, but no pilot can take them": """
        SELECT count(*) FROM jobs LEFT JOIN waiting_jobs USING (job_id)
        WHERE jobs.status = 'Waiting' AND waiting_jobs.job_id IS NULL
    """,
    "can be taken though they do not wait": """
        SELECT count(*) FROM waiting_jobs JOIN jobs USING (job_id) WHERE jobs.status <> 'Waiting'
    """,
    "are handed out, but have no open attempt": f"""
        SELECT count(*) FROM jobs
        LEFT JOIN attempts ON attempts.job_id = jobs.job_id AND attempts.closed_at IS NULL
        WHERE jobs.status IN {_HELD} AND attempts.job_id IS NULL
    """,
    "have an open attempt, but are not handed out": f"""
        SELECT count(*) FROM attempts JOIN jobs USING (job_id)
        WHERE attempts.closed_at IS NULL AND jobs.status NOT IN {_HELD}
    """,
    "were matched more often than they came back": """
        SELECT count(*) FROM (
          SELECT job_id FROM attempts GROUP BY job_id
          HAVING count(*) FILTER (
            WHERE coalesce(closed_as, '') NOT IN ('expired', 'lost', 'released', 'rescheduled')
          ) > 1
        ) AS doubled
    """,
    "were finished twice": """
        SELECT count(*) FROM (
          SELECT job_id FROM attempts WHERE closed_as = 'finished' GROUP BY job_id HAVING count(*) > 1
        ) AS doubled
    """,
}


def flaws(engine: Engine, *, jobs: int) -> list[str]:
    """What is wrong with the jobs; there have to be so many. PostgreSQL only."""
    with database.reading(engine) as conn:
        conn.execute(text("SET LOCAL statement_timeout = 0"))
        return list(_found(conn, jobs))


def _found(conn: Connection, jobs: int) -> Iterator[str]:
    there = conn.scalar(text("SELECT count(*) FROM jobs")) or 0
    if there != jobs:
        yield f"{jobs} jobs were submitted, {there} are there"
    for what, statement in _FLAWS.items():
        if number := conn.scalar(text(statement)):
            yield f"{number} jobs {what}"
