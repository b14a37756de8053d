"""Job descriptions: source text and validated form, shared by jobs, with placeholders for values of each.

Source: DIRAC's parametric jobs (`%s`, `%n`, `%(name)s`).
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select

from taskqueue.db import sql
from taskqueue.db.sql import BulkInsert, IdListStatement
from taskqueue.errors import JobNotFound
from taskqueue.schema.tables import descriptions, jobs

_PLACEHOLDER = re.compile(r"%\((?P<name>[^()%]+)\)s|%(?P<short>[sn])")
_SOURCE_PLACEHOLDER = re.compile(r"%\(([A-Za-z]+)=\)s")

#: Value by name: `s` for `%s`, `n` for `%n`, `A` for `%(A)s`. A value that is not a string replaces a string
#: that consists of its placeholder.
Parameters = Mapping[str, object]


def fill_placeholders(body: Mapping[str, object], parameters: Parameters | None) -> dict[str, object]:
    """The description of one job: the shared one with this job's values in it.

    Strings at any depth may hold placeholders. Without parameters percent signs have no meaning.
    """
    if not parameters:
        return dict(body)
    return {name: _fill_value(value, parameters) for name, value in body.items()}


def _fill_value(value: object, parameters: Parameters) -> object:
    if isinstance(value, str):
        return _fill_whole(value, parameters) if "%" in value else value
    if isinstance(value, Mapping):
        return {name: _fill_value(item, parameters) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_fill_value(item, parameters) for item in value]
    return value


def _fill_whole(text: str, parameters: Parameters) -> object:
    whole = _PLACEHOLDER.fullmatch(text)
    return fill_text(text, parameters) if whole is None else parameters.get(_get_name(whole), text)


def count_places(value: object) -> tuple[int, Counter[str]]:
    """Length of the strings with placeholders in a value, at any depth, and the uses of each name."""
    characters = 0
    names: Counter[str] = Counter()
    left = [value]
    while left:
        match left.pop():
            case str() as text if "%" in text:
                characters += len(text)
                names.update(_get_name(place) for place in _PLACEHOLDER.finditer(text))
            case Mapping() as record:
                left.extend(record.values())
            case list() | tuple() as items:
                left.extend(items)
    return characters, names


def fill_text(text: str, parameters: Parameters) -> str:
    """Fill the placeholders of a string; unknown ones stay."""
    return _PLACEHOLDER.sub(lambda place: str(parameters.get(_get_name(place), place[0])), text)


def fill_source(text: str, parameters: Parameters | None) -> str:
    """The source text of one job among jobs whose texts differ in some values only.

    Such a value has a placeholder `%(X=)s`; the name `X==` has the value as the user wrote it, where our
    spelling differs.
    """
    if not parameters:
        return text
    return _SOURCE_PLACEHOLDER.sub(lambda place: _restore_text(place, parameters), text)


def _restore_text(place: re.Match[str], parameters: Parameters) -> str:
    """The original text; a placeholder without a value stays."""
    found = (parameters[name] for name in (f"{place[1]}==", f"{place[1]}=") if name in parameters)
    value = next(found, None)
    return place[0] if value is None else format_jdl_value(value)


def format_jdl_value(value: object) -> str:
    """A value in JDL syntax: a string, an integer or a list of strings."""
    if isinstance(value, list):
        return "{" + ", ".join(f'"{item}"' for item in value) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _get_name(place: re.Match[str]) -> str:
    return place["name"] or place["short"]


STORE_DESCRIPTIONS = BulkInsert(descriptions, varying=("description_id", "source", "body", "sandbox"))

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


def store_descriptions(conn: Connection, new: Sequence[Description]) -> Sequence[int]:
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
