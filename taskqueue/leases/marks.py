"""Marks: which attempt a client of DIRAC reports on, which names only the job.

A mark is what the client showed: the hash of its key with its address. The first report with a new mark
belongs to the latest attempt of the job, and so do later ones with it; a mark that only an earlier attempt
has is that of a ghost, whose job was given away. A ghost that has renewed its proxy has a new key: then its
address tells. So it does for clients without a key, whose mark is the same for all attempts.

A JobAgent keeps the proxy of a user for hours: payloads of two attempts that it runs have one key. If the
sender ended the earlier attempt itself, and both have a mark of the JobAgent, a report is about the later,
until that has a key which the earlier has not. The reference of a pilot, if it states one, is a mark of its
attempts, too: it tells JobAgents apart that have one proxy behind one address.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, and_, bindparam, select

from taskqueue.db import sql
from taskqueue.leases import attempts
from taskqueue.leases.attempts import Attempt
from taskqueue.schema.tables import attempt_marks as table
from taskqueue.schema.tables import attempts as attempts_table

#: How attempts are closed whose payload has ended by its own report.
_ENDED: Final = (attempts.FINISHED, attempts.RELEASED)
#: Marks of one attempt; payloads renew their proxies now and then.
_MOST: Final = 50

OF_JOB = select(table.c.epoch, table.c.mark).where(table.c.job_id == bindparam("job_id"))
WITH_MARK = (
    select(table.c.job_id, attempts_table.c.closed_as, attempts_table.c.closed_at)
    .join(
        attempts_table,
        and_(attempts_table.c.job_id == table.c.job_id, attempts_table.c.epoch == table.c.epoch),
    )
    .where(sql.is_listed(table.c.job_id), table.c.mark == bindparam("mark"))
)
STORE = sql.insert_or_skip(table)


def store_mark(conn: Connection, attempt: Attempt, mark: str) -> None:
    """Note that reports with this mark are about the attempt."""
    row = {"job_id": attempt.job_id, "epoch": attempt.epoch, "mark": mark}
    conn.execute(STORE, row)


def find_attempt(
    conn: Connection, job_id: int, mark: str, *, learn: bool = True, has_key: bool = True
) -> tuple[Attempt | None, bool]:
    """The attempt that a report with this mark is about, None if the job never had one; and if it is its own.

    A new mark is noted for the latest attempt, while that is open, unless `learn` is false; one from an
    address that only an earlier attempt has is about that one. Without a key, a report from an address of
    the latest attempt is its own, whatever marks earlier ones have.
    """
    found = attempts.list_newest(conn, job_id)
    if not found:
        return None, False
    by_epoch: defaultdict[int, set[str]] = defaultdict(set)
    for row in conn.execute(OF_JOB, {"job_id": job_id}):
        by_epoch[row.epoch].add(row.mark)
    if not has_key and _is_from(mark, by_epoch[found[0].epoch]):
        return found[0], True
    latest = found[0]
    own = next((each for each in found if mark in by_epoch[each.epoch]), None)
    if own is None and (ghost := _find_by_address(found, by_epoch, mark)) is not None:
        return ghost, False
    if own is None or (
        own.closed_as in _ENDED and _is_of_same_pilot(by_epoch[own.epoch], by_epoch[latest.epoch])
    ):
        if learn and latest.closed_at is None and len(by_epoch[latest.epoch]) < _MOST:
            store_mark(conn, latest, mark)
        return latest, own is not None
    return own, True


def list_releases(conn: Connection, job_ids: Collection[int], mark: str) -> dict[int, datetime | None]:
    """The jobs that have attempts with this mark, and when the latest of these was released."""
    found: dict[int, datetime | None] = {}
    for row in sql.read_batches(conn, WITH_MARK, job_ids, mark=mark):
        released_at = row.closed_at if row.closed_as == attempts.RELEASED else None
        found[row.job_id] = max(filter(None, (released_at, found.get(row.job_id))), default=None)
    return found


def _find_by_address(
    found: Sequence[Attempt], by_epoch: Mapping[int, Collection[str]], mark: str
) -> Attempt | None:
    """The latest attempt with marks from the address of this one, if that is not the job's latest."""
    latest = next((each for each in found if _is_from(mark, by_epoch[each.epoch])), None)
    return None if latest is found[0] else latest


def _is_of_same_pilot(earlier: Collection[str], later: Collection[str]) -> bool:
    """Whether two attempts have a mark in common, and the later no key that the earlier has not."""
    keys = {mark.partition("@")[0] for mark in earlier}
    is_without_new = all(mark.partition("@")[0] in keys for mark in later)
    return is_without_new and not set(earlier).isdisjoint(later)


def _is_from(mark: str, others: Collection[str]) -> bool:
    """Whether one of the others has the address of this mark."""
    address = mark.rpartition("@")[2]
    return any(other.rpartition("@")[2] == address for other in others)
