"""Where pilots are sent, and the stamps that say so.

A stamp names its director, the broker if there is one, and the flags that its pilot was sent with, so that a
director that was killed knows from the stamps alone which pilots are its own and what each was for.
"""

import hashlib
import json
import re
import secrets
from dataclasses import dataclass

#: What a director may be called: its name is part of the name of every batch job.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,29}")
#: What a broker may be called, for the same reason.
BROKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,19}")
_ANY = "any"
_DIGITS = 10  #: of the digest of flags
_BYTES = 12  #: of chance in a stamp
_STAMP = re.compile(
    rf"(?P<director>{NAME.pattern})\.((?P<broker>{BROKER.pattern})\.)?"
    rf"(?P<kind>{_ANY}|[0-9a-f]{{{_DIGITS}}})\.[0-9a-f]{{{2 * _BYTES}}}"
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Post:
    """Pilots of one VO that are sent the same way with the same flags: they may stand in for each other."""

    vo: str
    queues: tuple[str, ...]  #: `Site/CE/Queue` in their order: the one, or those among which a broker picks
    flags: tuple[str, ...] = ()  #: arguments of the submit command, each one whole; none: any node will do
    broker: str = ""  #: through which they are sent; empty: straight to their queue

    @property
    def where(self) -> str:
        """The queues in a word or two."""
        return ", ".join(self.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What a stamp says of how its pilot was sent."""

    kind: str  #: the flags, as `kind` tells them
    broker: str = ""


def new_stamp(director: str, flags: tuple[str, ...], broker: str = "") -> str:
    """A stamp that nobody ever had."""
    way = f"{broker}.{kind(flags)}" if broker else kind(flags)
    return f"{prefix(director)}{way}.{secrets.token_hex(_BYTES)}"


def prefix(director: str) -> str:
    """What all stamps of a director begin with, and none of another."""
    return f"{director}."


def sent_as(stamp: str, director: str) -> Sent | None:
    """How a pilot was sent; None: it is not this director's, or no pilot's."""
    said = _STAMP.fullmatch(stamp)
    if said is None or said["director"] != director:
        return None
    return Sent(kind=said["kind"], broker=said["broker"] or "")


def kind(flags: tuple[str, ...]) -> str:
    """Flags in a word: equal ones have the same, others another."""
    if not flags:
        return _ANY
    return hashlib.sha256(json.dumps(flags).encode()).hexdigest()[:_DIGITS]
