"""One-time login links, command lines that wait for a login, and revoked tokens.

The database stores only the digests of secrets.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from secrets import choice, token_urlsafe

from sqlalchemy import Connection, and_, bindparam, delete, func, insert, select

from cs_config.options import bounds
from taskqueue.db import sql
from taskqueue.schema.tables import device_logins as devices
from taskqueue.schema.tables import login_links as table
from taskqueue.schema.tables import revoked_tokens

#: Lifetime of a link: it is used immediately.
LINK_LIFETIME = timedelta(minutes=5)
#: Random bytes of a secret: too many to guess, so that a plain digest is sufficient protection.
_SECRET_BYTES = 32


class Purpose(StrEnum):
    """Purpose of the secret in a link, which is valid for no other."""

    BROWSER = "browser"  #: signs a browser in
    DEVICE = "device"  #: is exchanged for the token of a command line


_ADD_LINK = insert(table)
_EXPIRED_LINKS = delete(table).where(table.c.expires_at <= bindparam("now"))
_is_good = and_(table.c.digest == bindparam("shown"), table.c.expires_at > bindparam("now"))
_READ_LINK = select(table.c.session).where(_is_good)
_REDEEM_LINK = delete(table).where(_is_good).returning(table.c.session)


def issue_link(conn: Connection, session: str, *, now: datetime) -> tuple[str, datetime]:
    """Create a link for a session; its secret and expiry. Expired links are deleted."""
    secret, expires_at = token_urlsafe(_SECRET_BYTES), now + LINK_LIFETIME
    conn.execute(_EXPIRED_LINKS, {"now": now})
    conn.execute(
        _ADD_LINK, {"digest": _digest(secret, Purpose.BROWSER), "session": session, "expires_at": expires_at}
    )
    return secret, expires_at


def read_link(conn: Connection, secret: str, purpose: Purpose, *, now: datetime) -> str | None:
    """The session of an unused link, which stays good; read-only, so that guessing causes no writes."""
    values = {"shown": _digest(secret, purpose), "now": now}
    found: str | None = conn.execute(_READ_LINK, values).scalar_one_or_none()
    return found


def redeem_link(conn: Connection, secret: str, purpose: Purpose, *, now: datetime) -> str | None:
    """The session of the link, once; None: it was used before, expired, or never existed."""
    values = {"shown": _digest(secret, purpose), "now": now}
    found: str | None = conn.execute(_REDEEM_LINK, values).scalar_one_or_none()
    return found


#: Time to confirm the code of a command line.
DEVICE_LIFETIME = timedelta(minutes=15)
#: Letters of a code that a person may have to type: no vowels, which make words, and none that look alike.
_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
_ADD_DEVICE = insert(devices)
_EXPIRED_DEVICES = delete(devices).where(devices.c.expires_at <= bindparam("now"))
_COUNT_DEVICES = select(
    func.count(), func.count().filter(devices.c.address == bindparam("of_address"))
).where(devices.c.expires_at > bindparam("now"))
_FIND_DEVICE = select(devices.c.address, devices.c.expires_at).where(
    devices.c.user_code == bindparam("code"), devices.c.expires_at > bindparam("now")
)
_IS_WAITING = select(devices.c.user_code).where(
    devices.c.digest == bindparam("shown"), devices.c.expires_at > bindparam("now")
)
_CONFIRM = (
    delete(devices)
    .where(devices.c.user_code == bindparam("code"), devices.c.expires_at > bindparam("now"))
    .returning(devices.c.digest)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingDevice:
    """A command line that waits for a login."""

    address: str  #: its host
    begun_at: datetime


def is_room_for_device(conn: Connection, *, address: str, now: datetime) -> bool:
    """Whether fewer command lines wait than may, of all and of an address.

    Read-only, so that strangers cause no writes beyond that.
    """
    of_all, of_address = conn.execute(_COUNT_DEVICES, {"now": now, "of_address": address}).one()
    return bool(of_all < bounds.DEVICE_LOGINS and of_address < bounds.DEVICE_LOGINS_OF_ADDRESS)


def begin_device(conn: Connection, *, address: str, now: datetime) -> tuple[str, str, datetime]:
    """Let a command line wait for a login: its secret, the code for the person, and the expiry."""
    secret, expires_at = token_urlsafe(_SECRET_BYTES), now + DEVICE_LIFETIME
    letters = "".join(choice(_LETTERS) for _ in range(8))
    code = f"{letters[:4]}-{letters[4:]}"
    conn.execute(_EXPIRED_DEVICES, {"now": now})
    about = {"user_code": code, "address": address, "expires_at": expires_at}
    conn.execute(_ADD_DEVICE, {"digest": _digest(secret, Purpose.DEVICE), **about})
    return secret, code, expires_at


def is_device_waiting(conn: Connection, secret: str, *, now: datetime) -> bool:
    """Whether nobody has confirmed the code of a command line yet."""
    values = {"shown": _digest(secret, Purpose.DEVICE), "now": now}
    return conn.execute(_IS_WAITING, values).first() is not None


def find_device(conn: Connection, code: str, *, now: datetime) -> WaitingDevice | None:
    """The command line that waits with a code."""
    row = conn.execute(_FIND_DEVICE, {"code": _normalize(code), "now": now}).one_or_none()
    return row and WaitingDevice(address=row.address, begun_at=row.expires_at - DEVICE_LIFETIME)


def confirm_device(conn: Connection, code: str, session: str, *, now: datetime) -> bool:
    """Give a session to the command line with this code, which fetches it as by a link, once."""
    digest = conn.execute(_CONFIRM, {"code": _normalize(code), "now": now}).scalar_one_or_none()
    if digest is None:
        return False
    conn.execute(_ADD_LINK, {"digest": digest, "session": session, "expires_at": now + LINK_LIFETIME})
    return True


def _normalize(code: str) -> str:
    return code.strip().upper().replace(" ", "-")


def _digest(secret: str, purpose: Purpose) -> str:
    return sha256(f"{purpose} {secret}".encode("utf-8", "surrogatepass")).hexdigest()


_REVOKED = select(revoked_tokens.c.jti).where(revoked_tokens.c.expires_at > bindparam("now"))
_EXPIRED_TOKENS = delete(revoked_tokens).where(revoked_tokens.c.expires_at <= bindparam("now"))
_ADD_REVOKED = sql.insert_or_skip(revoked_tokens)


def revoke_token(conn: Connection, token_id: str, *, expires_at: datetime, now: datetime) -> None:
    """Reject the token until it expires by itself; idempotent."""
    conn.execute(_EXPIRED_TOKENS, {"now": now})
    conn.execute(_ADD_REVOKED, {"jti": token_id, "expires_at": expires_at})


def list_revoked(conn: Connection, *, now: datetime) -> frozenset[str]:
    """Ids of revoked tokens that have not expired."""
    return frozenset(conn.scalars(_REVOKED, {"now": now}))
