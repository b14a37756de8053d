"""One-use secrets: what a pilot that a director submits shows at its first contact to get its token.

A secret travels with the pilot's script, where others may see it once it has been used. So exactly one
process ever redeems it; whoever comes later is a twin of that one. The database keeps its digest only.
"""

from datetime import datetime, timedelta
from hashlib import sha256
from secrets import token_urlsafe

from sqlalchemy import Connection, bindparam, exists, select, update
from sqlalchemy.sql.dml import Insert

from taskqueue import pilots
from taskqueue.errors import IllegalTransition, SecretUsed
from taskqueue.pilots import Pilot
from taskqueue.states import PILOT_STEPS, PilotStatus
from taskqueue.tables import pilot_secrets as table
from taskqueue.tables import pilots as pilots_table
from taskqueue.upserts import Twins, Upsert

#: No secret can be redeemed for longer: a pilot's token is not good for longer either.
LONGEST_LIFE = timedelta(days=4)
#: So long the process that redeemed it gets its answer again: the first may have been lost.
ANSWERED_AGAIN = timedelta(minutes=10)

#: Random bytes of a secret: nobody guesses it, so a plain digest is all the protection that it needs.
_BYTES = 32

_SHOWN = (table.c.stamp == bindparam("the_stamp"), table.c.digest == bindparam("shown"))
_PILOT_HAS_NOT_ENDED = exists().where(
    pilots_table.c.stamp == bindparam("the_stamp"),
    pilots_table.c.status.in_(sorted(status for status, steps in PILOT_STEPS.items() if steps)),
)


def _issue(insert: Upsert) -> Insert:
    return insert.on_conflict_do_update(
        index_elements=["stamp"],
        set_={"digest": insert.excluded.digest, "expires_at": insert.excluded.expires_at},
        where=table.c.redeemed_at.is_(None),
    ).returning(table.c.stamp)


ISSUE = Twins(table, _issue)

GET = select(table.c.expires_at, table.c.redeemed_at, table.c.request_id).where(*_SHOWN)

REDEEM = (
    update(table)
    .where(
        *_SHOWN,
        table.c.redeemed_at.is_(None),
        table.c.expires_at > bindparam("now"),
        _PILOT_HAS_NOT_ENDED,
    )
    .values(redeemed_at=bindparam("now"), request_id=bindparam("by_request"))
)


def issue(conn: Connection, stamp: str, *, life: timedelta, now: datetime) -> tuple[str, datetime]:
    """A fresh secret for a registered pilot, and until when it can be redeemed; one issued before is void.

    Raises:
        SecretUsed: The pilot has its token already.
        IllegalTransition: The pilot has ended.
        PilotNotFound: There is none with this stamp.
    """
    _refuse_ended(pilots.get(conn, stamp))
    secret, expires_at = token_urlsafe(_BYTES), now + min(life, LONGEST_LIFE)
    row = {"stamp": stamp, "digest": _digest(secret), "expires_at": expires_at}
    if conn.execute(ISSUE.of(conn), row).first() is None:
        raise SecretUsed(stamp)
    return secret, expires_at


def is_known(conn: Connection, stamp: str, secret: str) -> bool:
    """Whether this is the pilot's secret, be it still good or not; only reads."""
    return conn.execute(GET, _shown(stamp, secret)).first() is not None


def redeem(conn: Connection, stamp: str, secret: str, *, request_id: str, now: datetime) -> Pilot | None:
    """The pilot that a secret stands for, which runs from now on; None: the secret is not good.

    Args:
        conn: In a writing transaction.
        stamp: The pilot that is claimed to ask.
        secret: What it shows.
        request_id: Chosen by the process that asks; the same again gets the same answer for a while.
        now: The time of the exchange.

    Raises:
        SecretUsed: Another process has redeemed it.
        IllegalTransition: The pilot has ended.
    """
    shown = _shown(stamp, secret)
    won = conn.execute(REDEEM, {**shown, "now": now, "by_request": request_id}).rowcount
    if not won and not _may_ask_again(conn, stamp, secret, request_id=request_id, now=now):
        return None
    pilot = pilots.get(conn, stamp)
    _refuse_ended(pilot)
    pilots.seen(conn, stamp=stamp, vo=pilot.vo, queue=None, now=now)
    return pilot


def _may_ask_again(conn: Connection, stamp: str, secret: str, *, request_id: str, now: datetime) -> bool:
    """Whether the secret is good although it was not redeemed just now."""
    row = conn.execute(GET, _shown(stamp, secret)).one_or_none()
    if row is None:
        return False
    if row.redeemed_at is None:
        return bool(now < row.expires_at)  # the pilot has ended
    if row.request_id != request_id or now - row.redeemed_at > ANSWERED_AGAIN:
        raise SecretUsed(stamp)
    return True


def _refuse_ended(pilot: Pilot) -> None:
    if not PILOT_STEPS[pilot.status]:
        raise IllegalTransition(pilot.stamp, current=pilot.status, wanted=PilotStatus.RUNNING)


def _shown(stamp: str, secret: str) -> dict[str, str]:
    return {"the_stamp": stamp, "shown": _digest(secret)}


def _digest(secret: str) -> str:
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
