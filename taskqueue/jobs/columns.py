"""The columns of the fields of jobs in the database."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy import ColumnElement, FromClause

from requirements.job_fields import FIELDS, AnyField
from taskqueue.jobs import grid_jobs, jobs
from taskqueue.schema.tables import jobs as table

#: Gives the column of a selection of jobs.
ColumnOf = Callable[[FromClause], ColumnElement[Any]]

#: Fields that are no columns of jobs.
_OF_ATTEMPTS: Final[Mapping[str, ColumnOf]] = {
    "exit_code": jobs.exit_code,
    "local_status": grid_jobs.latest_status,
}


def _find_column(field: AnyField) -> ColumnOf:
    """The column of a field; `KeyError` if there is none of its name."""
    if field.is_of_attempt:
        return _OF_ATTEMPTS[field.name]
    name = table.c[field.name].name
    return lambda of: of.c[name]


#: By the names of the fields.
COLUMNS: Final[Mapping[str, ColumnOf]] = {field.name: _find_column(field) for field in FIELDS}
