"""Parameters of jobs: named texts that a pilot or another component reports, such as the batch job's id.

They belong to the job, not to an attempt: a later value of the same name replaces the earlier one. They are
removed with the job's log.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, delete, func, select

from cs_config.options import bounds
from requirements.errors import InvalidRequest, Problem
from taskqueue.db import sql
from taskqueue.schema.tables import job_parameters as table

READ = select(table).where(table.c.job_id.in_(sql.IDS)).order_by(table.c.job_id, table.c.name)
READ_SIZES = select(table.c.job_id, table.c.name, func.length(table.c.value).label("size")).where(
    table.c.job_id.in_(sql.IDS)
)
STORE = sql.insert_or_update(table, "value", "at")
REMOVE = delete(table).where(table.c.job_id.in_(sql.IDS))

#: Where they are named in messages.
_PATH: Final = "parameters"


def read_parameters(conn: Connection, job_ids: Collection[int]) -> Mapping[int, Mapping[str, str]]:
    """The parameters of the jobs by name, without jobs that have none."""
    found: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for row in sql.read_batches(conn, READ, job_ids):
        found[row.job_id][row.name] = row.value
    return found


def read_sizes(conn: Connection, job_ids: Collection[int]) -> Mapping[int, Mapping[str, int]]:
    """Characters of each parameter of the jobs by name, without jobs that have none."""
    found: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for row in sql.read_batches(conn, READ_SIZES, job_ids):
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
        conn.execute(STORE.to_statement(conn), rows)


def remove_parameters(conn: Connection, job_ids: Collection[int]) -> None:
    """Remove all parameters of the jobs."""
    for ids in sql.split_batches(job_ids):
        conn.execute(REMOVE, {"ids": ids})
