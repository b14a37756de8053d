"""Jobs that were handed to pilots, counted from the job log by requirement class and minute."""

from collections import Counter
from typing import Final

from sqlalchemy import Connection, select

from requirements.states import JobStatus
from taskqueue import day_record
from taskqueue.accounting.log_reader import LogSpan
from taskqueue.day_record import Seen, Series
from taskqueue.jobs import log
from taskqueue.schema.tables import job_log, jobs, task_queues

READER_NAME: Final = "starts"

STARTS = (
    select(task_queues.c.class_id, job_log.c.at)
    .select_from(job_log)
    .join(jobs, jobs.c.job_id == job_log.c.job_id)
    .join(task_queues, task_queues.c.task_queue_id == jobs.c.task_queue_id)
    .where(log.is_within, job_log.c.to_status == JobStatus.MATCHED.value)
)


def count_starts(conn: Connection, span: LogSpan) -> None:
    """Add the jobs of a span of the log to their minutes."""
    starts = Counter(
        (row.class_id, row.at.replace(second=0, microsecond=0)) for row in conn.execute(STARTS, span.bounds)
    )
    seen = (
        Seen(series=Series.STARTS, subject=(str(class_id),), at=at, value=number)
        for (class_id, at), number in starts.items()
    )
    day_record.add_counts(conn, seen)
