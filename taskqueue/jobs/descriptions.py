"""Job descriptions and job parameters.

A description is source text and validated form, shared by jobs, with placeholders for values of each.

Parameters are named texts that a pilot or another component reports, such as the batch job's id. They belong
to the job, not to an attempt: a later value of the same name replaces the earlier one. They are removed with
the job's log.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, exists, func, select

from cs_config.options import bounds
from requirements.errors import InvalidRequest, Problem
from taskqueue.db import sql
from taskqueue.errors import JobNotFound
from taskqueue.jobs.placeholders import Parameters, fill_job_id, fill_placeholders, fill_source
from taskqueue.schema.tables import descriptions, job_parameters, jobs

STORE_DESCRIPTIONS = sql.bulk_insert(
    descriptions, "description_id", "source", "body", "sandbox", "rank", "waiting_ttl", "relax_after"
)

#: Read once for all jobs that share a description.
DESCRIPTIONS = select(descriptions.c.description_id, descriptions.c.body, descriptions.c.sandbox).where(
    sql.is_listed(descriptions.c.description_id)
)
DESCRIPTIONS_OF_JOBS = (
    select(jobs.c.job_id, descriptions.c.source, descriptions.c.body, descriptions.c.sandbox)
    .add_columns(jobs.c.parameters, jobs.c.description_id)
    .join(jobs, jobs.c.description_id == descriptions.c.description_id)
    .where(sql.is_listed(jobs.c.job_id))
)

#: Of each job, also where they share a description: each is read with its own values.
BYTES_OF_JOBS = (
    select(
        jobs.c.job_id,
        (sql.count_bytes(descriptions.c.source) + sql.count_bytes(descriptions.c.body)).label("bytes"),
    )
    .select_from(jobs)
    .join(descriptions, jobs.c.description_id == descriptions.c.description_id)
    .where(sql.is_listed(jobs.c.job_id))
)

REMOVE_UNUSED = delete(descriptions).where(
    sql.is_listed(descriptions.c.description_id),
    ~exists().where(jobs.c.description_id == descriptions.c.description_id),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A description with placeholders, shared by jobs; or that of one job, with its own values."""

    source: str  #: submitted text: JDL, YAML or JSON
    body: Mapping[str, object]  #: validated, with canonical key names
    sandbox: str | None = None  #: blob of the input sandbox
    rank: str | None = None  #: expression over queues, written only; with the own values of the first job
    waiting_ttl: int | None = None  #: seconds, written only; None: that of the VO
    #: Seconds until the first of its own rules of relaxation, written only; 0: no rules; None: the VO's.
    relax_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDescription:
    """The description of a job as it is stored, with the job's values for its placeholders."""

    description_id: int
    body: Mapping[str, object]  #: with placeholders
    sandbox: str | None
    parameters: Parameters | None


def store_descriptions(conn: Connection, new: Sequence[Description]) -> Sequence[int]:
    """Store descriptions; their ids in the same order."""
    ids = sql.allocate_ids(conn, descriptions, len(new))
    columns = {
        "description_id": ids,
        "source": [each.source for each in new],
        "body": [json.dumps(each.body) for each in new],
        "sandbox": [each.sandbox for each in new],
        "rank": [each.rank for each in new],
        "waiting_ttl": [each.waiting_ttl for each in new],
        "relax_after": [each.relax_after for each in new],
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
    rows = conn.execute(DESCRIPTIONS, {"ids": sorted(ids)}) if ids else ()
    return {row.description_id: (row.body, row.sandbox) for row in rows}


def read_description(conn: Connection, job_id: int) -> Description:
    """The description of one job, with its id in it; JobNotFound."""
    found = read_submitted(conn, job_id)
    return replace(found, body=fill_job_id(found.body, job_id))


def read_submitted(conn: Connection, job_id: int) -> Description:
    """The description of one job as a copy is submitted; JobNotFound."""
    found = list_submitted(conn, [job_id])
    if not found:
        raise JobNotFound(job_id)
    return found[job_id]


def list_submitted(conn: Connection, job_ids: Collection[int]) -> Mapping[int, Description]:
    """The descriptions of jobs as copies are submitted: `%j` stands for the id that each will have.

    InvalidRequest for several with more bytes than `bounds.ALL_FILLED`.
    """
    require_few_bytes(conn, job_ids)
    return {row.job_id: _fill(row) for row in sql.read_batches(conn, DESCRIPTIONS_OF_JOBS, job_ids)}


def read_stored(conn: Connection, job_ids: Collection[int]) -> Mapping[int, StoredDescription]:
    """The descriptions of jobs as they are stored, by job id.

    However long: agents read those of many jobs, and what one VO's have must not stop them.
    """
    return {
        row.job_id: StoredDescription(
            description_id=row.description_id,
            body=json.loads(row.body),
            sandbox=row.sandbox,
            parameters=None if row.parameters is None else json.loads(row.parameters),
        )
        for row in sql.read_batches(conn, DESCRIPTIONS_OF_JOBS, job_ids)
    }


def require_few_bytes(conn: Connection, job_ids: Collection[int]) -> None:
    """InvalidRequest for several jobs whose descriptions are too long together, before these are read."""
    number = sum(_read_sizes(conn, job_ids).values()) if len(job_ids) > 1 else 0
    if number > bounds.ALL_FILLED:
        message = (
            f"the descriptions of these jobs have {number:,} bytes, allowed are "
            f"{bounds.ALL_FILLED:,} at a time: name fewer jobs"
        )
        raise InvalidRequest([Problem(path="ids", message=message)])


def count_readable(conn: Connection, job_ids: Sequence[int]) -> int:
    """How many of the first jobs `require_few_bytes` admits together; one at least, if there is one."""
    sizes = _read_sizes(conn, job_ids)
    sums = accumulate(sizes.get(job_id, 0) for job_id in job_ids)
    return min(len(job_ids), max(1, sum(each <= bounds.ALL_FILLED for each in sums)))


def _read_sizes(conn: Connection, job_ids: Collection[int]) -> Mapping[int, int]:
    """Bytes of the descriptions of jobs that have one."""
    rows = sql.read_batches(conn, BYTES_OF_JOBS, job_ids)
    return {row.job_id: row.bytes or 0 for row in rows}


def remove_unused(conn: Connection, ids: Collection[int]) -> None:
    """Remove those of the descriptions that no job has."""
    conn.execute(REMOVE_UNUSED, {"ids": sorted(ids)})


def _fill(row: Row[Any]) -> Description:
    parameters = None if row.parameters is None else json.loads(row.parameters)
    body = fill_placeholders(json.loads(row.body), parameters)
    return Description(source=fill_source(row.source, parameters), body=body, sandbox=row.sandbox)


READ_PARAMETERS = (
    select(job_parameters)
    .where(sql.is_listed(job_parameters.c.job_id))
    .order_by(job_parameters.c.job_id, job_parameters.c.name)
)
READ_PARAMETER_SIZES = select(
    job_parameters.c.job_id, job_parameters.c.name, func.length(job_parameters.c.value).label("size")
).where(sql.is_listed(job_parameters.c.job_id))
STORE_PARAMETERS = sql.insert_or_update(job_parameters, "value", "at")
REMOVE_PARAMETERS = delete(job_parameters).where(sql.is_listed(job_parameters.c.job_id))

#: Where they are named in messages.
_PATH: Final = "parameters"


def read_parameters(conn: Connection, job_ids: Collection[int]) -> Mapping[int, Mapping[str, str]]:
    """The parameters of the jobs by name, without jobs that have none."""
    found: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for row in sql.read_batches(conn, READ_PARAMETERS, job_ids):
        found[row.job_id][row.name] = row.value
    return found


def read_parameter_sizes(conn: Connection, job_ids: Collection[int]) -> Mapping[int, Mapping[str, int]]:
    """Characters of each parameter of the jobs by name, without jobs that have none."""
    found: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for row in sql.read_batches(conn, READ_PARAMETER_SIZES, job_ids):
        found[row.job_id][row.name] = row.size
    return found


def check_parameters(given: Mapping[str, str], stored: Mapping[str, int]) -> None:
    """Raise InvalidRequest if these, and those stored (characters by name), are too many or too long."""
    problems: list[Problem] = []
    for name, value in given.items():
        if not 0 < len(name) <= bounds.PARAMETER_NAME or not name.isprintable():
            allowed = f"1 to {bounds.PARAMETER_NAME} printable characters"
            problems.append(Problem(path=_PATH, message=f"the name {name!r:.80} has not {allowed}"))
        if len(value) > bounds.PARAMETER_VALUE:
            seen = f"{len(value):,} characters, {bounds.PARAMETER_VALUE:,} are allowed"
            problems.append(Problem(path=f"{_PATH}.{name:.80}", message=f"has {seen}"))
        if "\0" in value:
            problems.append(Problem(path=f"{_PATH}.{name:.80}", message="contains a character NUL"))
    sizes = {**stored, **{name: len(value) for name, value in given.items()}}
    if given and len(sizes) > bounds.PARAMETERS:
        message = f"the job would have {len(sizes):,} of them, {bounds.PARAMETERS:,} are allowed"
        problems.append(Problem(path=_PATH, message=message))
    if given and sum(sizes.values()) > bounds.ALL_PARAMETERS:
        seen = f"{sum(sizes.values()):,} characters of them, {bounds.ALL_PARAMETERS:,} are allowed"
        problems.append(Problem(path=_PATH, message=f"the job would have {seen}"))
    if problems:
        raise InvalidRequest(problems)


def store_parameters(conn: Connection, given: Mapping[int, Mapping[str, str]], *, now: datetime) -> None:
    """Store parameters of existing jobs, by job id; call `check_parameters` before."""
    rows = [
        {"job_id": job_id, "name": name, "value": value, "at": now}
        for job_id, parameters in sorted(given.items())
        for name, value in sorted(parameters.items())
    ]
    if rows:
        conn.execute(STORE_PARAMETERS, rows)


def remove_parameters(conn: Connection, job_ids: Collection[int]) -> None:
    """Remove all parameters of the jobs."""
    for ids in sql.split_batches(job_ids):
        conn.execute(REMOVE_PARAMETERS, {"ids": ids})
