"""The idempotency key of a submission: the same request again gets the same ids, not new jobs.

`reserve` and `fulfil` stand in the transaction that stores the jobs. A second request with the key
waits in `reserve` until that transaction has ended.
"""

import json
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, bindparam, select, update
from sqlalchemy.sql.dml import Insert

from taskqueue.errors import IdempotencyConflict
from taskqueue.tables import idempotency_keys as table
from taskqueue.upserts import Twins, Upsert


def _reserve(insert: Upsert) -> Insert:
    return insert.on_conflict_do_nothing(index_elements=["subject", "key"]).returning(table.c.key)


RESERVE = Twins(table, _reserve)

_IS_IT = (table.c.subject == bindparam("the_subject"), table.c.key == bindparam("the_key"))

FIND = select(table.c.body_digest, table.c.job_ids).where(*_IS_IT)

FULFIL = update(table).where(*_IS_IT).values(job_ids=bindparam("ids"))


def reserve(conn: Connection, *, subject: str, key: str, body_digest: str, now: datetime) -> list[int] | None:
    """Take a key for a new request.

    Args:
        conn: In the transaction that will store the jobs.
        subject: Token subject of the sender; keys of others are others.
        key: The sender's own.
        body_digest: SHA-256 of the request.
        now: When it came.

    Returns:
        The ids that the same request got earlier; None: it is new, store its jobs and `fulfil`.

    Raises:
        IdempotencyConflict: The key was used for another request.
    """
    row = {"subject": subject, "key": key, "body_digest": body_digest, "job_ids": "[]", "at": now}
    if conn.execute(RESERVE.of(conn), row).first() is not None:
        return None
    earlier = conn.execute(FIND, {"the_subject": subject, "the_key": key}).one()
    if earlier.body_digest != body_digest:
        raise IdempotencyConflict(f"the key {key!r} was used for another request; a new one needs a new key")
    ids: list[int] = json.loads(earlier.job_ids)
    return ids


def fulfil(conn: Connection, *, subject: str, key: str, job_ids: Sequence[int]) -> None:
    """Store the ids that the request with this key got."""
    conn.execute(FULFIL, {"the_subject": subject, "the_key": key, "ids": json.dumps(list(job_ids))})
