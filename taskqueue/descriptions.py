"""What users wrote: the text as it came and its checked form, once for all jobs that share it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select

from taskqueue import placeholders, row_ids
from taskqueue.bulk import BulkInsert
from taskqueue.errors import JobNotFound
from taskqueue.tables import descriptions, jobs

STORE = BulkInsert(descriptions, varying=("description_id", "source", "body", "sandbox"))

OF_JOB = (
    select(descriptions.c.source, descriptions.c.body, descriptions.c.sandbox, jobs.c.parameters)
    .join(jobs, jobs.c.description_id == descriptions.c.description_id)
    .where(jobs.c.job_id == bindparam("job_id"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A job's description in the form that people and pilots get."""

    source: str  #: as it came, JDL, YAML or JSON; of what shares a stored text, with the job's own values
    body: Mapping[str, object]  #: checked, in our spelling, with the job's own values for its placeholders
    sandbox: str | None  #: blob of the input sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDescription:
    """A description to be stored."""

    source: str  #: as it came
    body: Mapping[str, object]  #: checked, in our spelling, with its placeholders
    sandbox: str | None = None  #: blob of the input sandbox


def store(conn: Connection, new: Sequence[NewDescription]) -> Sequence[int]:
    """Store descriptions; their ids in the same order."""
    ids = row_ids.take(conn, descriptions, len(new))
    columns = {
        "description_id": ids,
        "source": [each.source for each in new],
        "body": [json.dumps(each.body) for each in new],
        "sandbox": [each.sandbox for each in new],
    }
    STORE.execute(conn, columns)
    return ids


def of_job(conn: Connection, job_id: int) -> Description:
    """The description of one job.

    Raises:
        JobNotFound: There is no such job.
    """
    row = conn.execute(OF_JOB, {"job_id": job_id}).one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    parameters = None if row.parameters is None else json.loads(row.parameters)
    body = placeholders.fill(json.loads(row.body), parameters)
    return Description(
        source=placeholders.fill_source(row.source, parameters), body=body, sandbox=row.sandbox
    )
