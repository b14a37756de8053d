"""Job descriptions: source text and validated form, shared by jobs, with placeholders for values of each."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select

from taskqueue.db import sql
from taskqueue.db.sql import BulkInsert
from taskqueue.errors import JobNotFound
from taskqueue.jobs.placeholders import fill_placeholders, fill_source
from taskqueue.schema.tables import descriptions, jobs

STORE_DESCRIPTIONS = BulkInsert(descriptions, varying=("description_id", "source", "body", "sandbox"))

DESCRIPTION_OF_JOB = (
    select(descriptions.c.source, descriptions.c.body, descriptions.c.sandbox, jobs.c.parameters)
    .join(jobs, jobs.c.description_id == descriptions.c.description_id)
    .where(jobs.c.job_id == bindparam("job_id"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A job's description for users and pilots, with the job's own values."""

    source: str  #: submitted text: JDL, YAML or JSON
    body: Mapping[str, object]  #: validated, with canonical key names
    sandbox: str | None  #: blob of the input sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDescription:
    """A description to be stored."""

    source: str  #: submitted text
    body: Mapping[str, object]  #: validated, with canonical key names and placeholders
    sandbox: str | None = None  #: blob of the input sandbox


def store_descriptions(conn: Connection, new: Sequence[NewDescription]) -> Sequence[int]:
    """Store descriptions; their ids in the same order."""
    ids = sql.allocate_ids(conn, descriptions, len(new))
    columns = {
        "description_id": ids,
        "source": [each.source for each in new],
        "body": [json.dumps(each.body) for each in new],
        "sandbox": [each.sandbox for each in new],
    }
    STORE_DESCRIPTIONS.execute(conn, columns)
    return ids


def read_description(conn: Connection, job_id: int) -> Description:
    """The description of one job; JobNotFound."""
    row = conn.execute(DESCRIPTION_OF_JOB, {"job_id": job_id}).one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    parameters = None if row.parameters is None else json.loads(row.parameters)
    body = fill_placeholders(json.loads(row.body), parameters)
    return Description(source=fill_source(row.source, parameters), body=body, sandbox=row.sandbox)
