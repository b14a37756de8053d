"""One-time secrets that a submitted pilot exchanges for a token at its first contact.

A secret is part of the pilot's script, where others may read it later. So exactly one process can redeem it;
a later one is a duplicate. The database stores only its digest.
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from secrets import token_urlsafe

from sqlalchemy import Connection, bindparam, exists, insert, select, update

from requirements.states import PILOT_ACTIVE, PILOT_ENDS, PilotStatus
from taskqueue.db import sql
from taskqueue.errors import IllegalTransition, SecretUsed
from taskqueue.pilots import pilots
from taskqueue.pilots.pilots import Pilot
from taskqueue.schema.tables import pilot_secrets as table
from taskqueue.schema.tables import pilots as pilots_table

#: Maximum lifetime of a secret, equal to that of a pilot's token.
MAX_LIFETIME = timedelta(days=4)
#: For this time the process that redeemed it gets its answer again: the first one may have been lost.
RETRY_WINDOW = timedelta(minutes=10)

#: Random bytes of a secret: too many to guess, so that a plain digest is sufficient protection.
_BYTES = 32

_IS_SECRET = (table.c.stamp == bindparam("the_stamp"), table.c.digest == bindparam("shown"))
_PILOT_HAS_NOT_ENDED = exists().where(
    pilots_table.c.stamp == bindparam("the_stamp"), pilots_table.c.status.in_(sorted(PILOT_ACTIVE))
)


_NEW = sql.insert(table)
ISSUE = _NEW.on_conflict_do_update(
    index_elements=["stamp"],
    set_={"digest": _NEW.excluded.digest, "expires_at": _NEW.excluded.expires_at},
    where=table.c.redeemed_at.is_(None),
).returning(table.c.stamp)


GET = select(table.c.expires_at, table.c.redeemed_at, table.c.request_id).where(*_IS_SECRET)

REDEEM = (
    update(table)
    .where(
        *_IS_SECRET,
        table.c.redeemed_at.is_(None),
        table.c.expires_at > bindparam("now"),
        _PILOT_HAS_NOT_ENDED,
    )
    .values(redeemed_at=bindparam("now"), request_id=bindparam("by_request"))
)


def issue_secret(conn: Connection, stamp: str, *, life: timedelta, now: datetime) -> tuple[str, datetime]:
    """A new secret for a registered pilot, and its expiry; an earlier one becomes void.

    SecretUsed: the pilot already has a token. IllegalTransition: it has ended.
    """
    _refuse_ended(pilots.get_pilot(conn, stamp))
    secret, expires_at = token_urlsafe(_BYTES), now + min(life, MAX_LIFETIME)
    row = {"stamp": stamp, "digest": _digest(secret), "expires_at": expires_at}
    if conn.execute(ISSUE, row).first() is None:
        raise SecretUsed(stamp)
    return secret, expires_at


def issue_secrets(
    conn: Connection, stamps: Collection[str], *, life: timedelta, now: datetime
) -> Mapping[str, str]:
    """Secrets for pilots that were registered in this transaction, by stamp."""
    found = {stamp: token_urlsafe(_BYTES) for stamp in sorted(stamps)}
    expires_at = now + min(life, MAX_LIFETIME)
    rows = [
        {"stamp": stamp, "digest": _digest(secret), "expires_at": expires_at}
        for stamp, secret in found.items()
    ]
    conn.execute(insert(table), rows)
    return found


def is_secret_known(conn: Connection, stamp: str, secret: str) -> bool:
    """Whether this is the pilot's secret, even if expired or used; only reads."""
    return conn.execute(GET, _bind_secret(stamp, secret)).first() is not None


def redeem_secret(
    conn: Connection, stamp: str, secret: str, *, request_id: str, now: datetime
) -> Pilot | None:
    """Redeem the secret of a pilot, which is Running from now on; None: the secret is not valid.

    `request_id` is chosen by the calling process; a repeated request gets the same answer for a while, one of
    another process SecretUsed. IllegalTransition: the pilot has ended.
    """
    shown = _bind_secret(stamp, secret)
    won = conn.execute(REDEEM, {**shown, "now": now, "by_request": request_id}).rowcount
    if not won and not _is_retry(conn, stamp, secret, request_id=request_id, now=now):
        return None
    pilot = pilots.get_pilot(conn, stamp)
    _refuse_ended(pilot)
    pilots.record_contact(conn, stamp=stamp, vo=pilot.vo, queue=None, now=now)
    return pilot


def _is_retry(conn: Connection, stamp: str, secret: str, *, request_id: str, now: datetime) -> bool:
    """Whether the secret is valid although it was not redeemed just now."""
    row = conn.execute(GET, _bind_secret(stamp, secret)).one_or_none()
    if row is None:
        return False
    if row.redeemed_at is None:
        return bool(now < row.expires_at)  # the pilot has ended
    if row.request_id != request_id or now - row.redeemed_at > RETRY_WINDOW:
        raise SecretUsed(stamp)
    return True


def _refuse_ended(pilot: Pilot) -> None:
    if pilot.status in PILOT_ENDS:
        raise IllegalTransition(pilot.stamp, current=pilot.status, wanted=PilotStatus.RUNNING)


def _bind_secret(stamp: str, secret: str) -> dict[str, str]:
    return {"the_stamp": stamp, "shown": _digest(secret)}


def _digest(secret: str) -> str:
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
