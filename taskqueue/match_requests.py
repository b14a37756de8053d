"""Answers to requests for work, by the `request_id` of the one who asked.

The row is written in the transaction of the claim, so an answer that got lost on its way is given again,
and the same request cannot claim twice: the second one waits for the first at the primary key.
"""

import json
from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, select, tuple_, update
from sqlalchemy.sql.dml import Insert

from taskqueue import batches
from taskqueue.tables import match_requests as table
from taskqueue.upserts import Twins, Upsert

#: Token subject of the one who asks, and its name for the request.
Key = tuple[str, str]


def _keep(insert: Upsert) -> Insert:
    return insert.on_conflict_do_nothing().returning(table.c.subject, table.c.request_id)


RESERVE = Twins(table, _keep)
_KEY = (table.c.subject, table.c.request_id)
_THIS = (table.c.subject == bindparam("the_subject"), table.c.request_id == bindparam("the_request_id"))
ANSWERED = select(*_KEY, table.c.matches).where(tuple_(*_KEY).in_(bindparam("keys", expanding=True)))
REMEMBER = update(table).where(*_THIS).values(matches=bindparam("the_matches"), at=bindparam("now"))
FORGET = delete(table).where(*_THIS)


def answered(conn: Connection, keys: Collection[Key]) -> Mapping[Key, list[int]]:
    """The jobs that requests were given before."""
    return {
        (row.subject, row.request_id): json.loads(row.matches)
        for some in batches.of(keys)
        for row in conn.execute(ANSWERED, {"keys": some})
    }


def reserve(conn: Connection, keys: Collection[Key], *, now: datetime) -> frozenset[Key]:
    """Take the keys for this transaction; those that are new. The others were answered by now."""
    new: set[Key] = set()
    for some in batches.of(keys):
        rows = [
            {"subject": subject, "request_id": request_id, "at": now, "matches": "[]"}
            for subject, request_id in some
        ]
        found = conn.execute(RESERVE.of(conn), rows)
        new |= {(row.subject, row.request_id) for row in found}
    return frozenset(new)


def remember(conn: Connection, given: Mapping[Key, Collection[int]], *, now: datetime) -> None:
    """Note what requests are given, before the transaction commits."""
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
        conn.execute(REMEMBER, rows)


def forget(conn: Connection, keys: Collection[Key]) -> None:
    """Give up keys that were reserved for nothing."""
    rows = [{"the_subject": subject, "the_request_id": request_id} for subject, request_id in sorted(keys)]
    if rows:
        conn.execute(FORGET, rows)
