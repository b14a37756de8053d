"""Answers to match requests, by the sender's `request_id`.

The row is written in the transaction of the claim, so that a repeated request (after a lost answer) gets the
same jobs and cannot claim twice: the second of two waits for the first at the primary key.
"""

import json
from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, select, tuple_, update

from taskqueue.db import sql
from taskqueue.schema.tables import match_requests as table

#: Token subject of the sender, and its id of the request.
RequestKey = tuple[str, str]


RESERVE = sql.insert_or_skip(table, "subject", "request_id")
_KEY = (table.c.subject, table.c.request_id)
_THIS = (table.c.subject == bindparam("the_subject"), table.c.request_id == bindparam("the_request_id"))
ANSWERS = select(*_KEY, table.c.matches).where(tuple_(*_KEY).in_(sql.IDS))
STORE = update(table).where(*_THIS).values(matches=bindparam("the_matches"), at=bindparam("now"))
RELEASE = delete(table).where(*_THIS)


def read_answers(conn: Connection, keys: Collection[RequestKey]) -> Mapping[RequestKey, list[int]]:
    """Jobs that the requests got before."""
    return {
        (row.subject, row.request_id): json.loads(row.matches)
        for row in sql.read_batches(conn, ANSWERS, keys)
    }


def reserve_keys(conn: Connection, keys: Collection[RequestKey], *, now: datetime) -> frozenset[RequestKey]:
    """Insert the keys in this transaction; those that are new. The others were answered meanwhile."""
    new: set[RequestKey] = set()
    for some in sql.split_batches(keys):
        rows = [
            {"subject": subject, "request_id": request_id, "at": now, "matches": "[]"}
            for subject, request_id in some
        ]
        found = conn.execute(RESERVE.to_statement(conn), rows)
        new |= {(row.subject, row.request_id) for row in found}
    return frozenset(new)


def store_answers(conn: Connection, given: Mapping[RequestKey, Collection[int]], *, now: datetime) -> None:
    """Store the jobs that requests get, before the transaction commits."""
    rows = [
        {
            "the_subject": subject,
            "the_request_id": request_id,
            "the_matches": json.dumps(sorted(job_ids)),
            "now": now,
        }
        for (subject, request_id), job_ids in sorted(given.items())
    ]
    if rows:
        conn.execute(STORE, rows)


def release_keys(conn: Connection, keys: Collection[RequestKey]) -> None:
    """Delete reserved keys whose requests got no jobs."""
    rows = [{"the_subject": subject, "the_request_id": request_id} for subject, request_id in sorted(keys)]
    if rows:
        conn.execute(RELEASE, rows)
