"""Job descriptions: source text and validated form, shared by jobs, with placeholders for values of each."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select

from taskqueue.db import sql
from taskqueue.db.sql import BulkInsert, IdListStatement
from taskqueue.errors import JobNotFound
from taskqueue.jobs.placeholders import fill_placeholders, fill_source
from taskqueue.schema.tables import descriptions, jobs

STORE_DESCRIPTIONS = BulkInsert(descriptions, varying=("description_id", "source", "body", "sandbox", "rank"))

#: Read once for all jobs that share a description.
DESCRIPTIONS = IdListStatement(
    descriptions.c.description_id,
    select(descriptions.c.description_id, descriptions.c.body, descriptions.c.sandbox).where,
)
DESCRIPTION_OF_JOB = (
    select(descriptions.c.source, descriptions.c.body, descriptions.c.sandbox, jobs.c.parameters)
    .join(jobs, jobs.c.description_id == descriptions.c.description_id)
    .where(jobs.c.job_id == bindparam("job_id"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A description with placeholders, shared by jobs; or that of one job, with its own values."""

    source: str  #: submitted text: JDL, YAML or JSON
    body: Mapping[str, object]  #: validated, with canonical key names
    sandbox: str | None = None  #: blob of the input sandbox
    rank: str | None = None  #: expression over queues, written only; with the own values of the first job


def store_descriptions(conn: Connection, new: Sequence[Description]) -> Sequence[int]:
    """Store descriptions; their ids in the same order."""
    ids = sql.allocate_ids(conn, descriptions, len(new))
    columns = {
        "description_id": ids,
        "source": [each.source for each in new],
        "body": [json.dumps(each.body) for each in new],
        "sandbox": [each.sandbox for each in new],
        "rank": [each.rank for each in new],
    }
    STORE_DESCRIPTIONS.execute(conn, columns)
    return ids


def add_defaults(text: str, defaults: Mapping[str, str]) -> str:
    """Add keywords that a description, JSON, does not state; `defaults` has each as JSON, with its value.

    Parsing takes longer than a claim, so it is avoided where no inner record could have the same names.
    """
    missing = {name: stated for name, stated in defaults.items() if f'"{name}":' not in text}
    if len(missing) < len(defaults) and '": {' in text:
        stated = json.loads(text)
        missing = {name: value for name, value in defaults.items() if name not in stated}
    return f"{text[:-1]},{','.join(missing.values())}}}" if missing else text


def read_shared(conn: Connection, ids: Collection[int]) -> Mapping[int, tuple[str, str | None]]:
    """Body (JSON, with placeholders) and sandbox of descriptions, by their id."""
    rows = conn.execute(DESCRIPTIONS.to_statement(conn), {"ids": sorted(ids)}) if ids else ()
    return {row.description_id: (row.body, row.sandbox) for row in rows}


def read_description(conn: Connection, job_id: int) -> Description:
    """The description of one job; JobNotFound."""
    row = conn.execute(DESCRIPTION_OF_JOB, {"job_id": job_id}).one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    parameters = None if row.parameters is None else json.loads(row.parameters)
    body = fill_placeholders(json.loads(row.body), parameters)
    return Description(source=fill_source(row.source, parameters), body=body, sandbox=row.sandbox)
