"""Where pilots are sent, and the stamps that say so.

A stamp names its director and the flags that its pilot was sent with, so that a director that was killed
knows from the stamps alone which pilots are its own and what each was for.
"""

import hashlib
import json
import re
import secrets
from dataclasses import dataclass

#: What a director may be called: its name is part of the name of every batch job.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,29}")
_ANY = "any"
_DIGITS = 10  #: of the digest of flags
_PARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Post:
    """Pilots of one VO that are sent to one queue with the same flags: they may stand in for each other."""

    vo: str
    queue: str  #: `Site/CE/Queue`
    flags: tuple[str, ...] = ()  #: arguments of the submit command, each one whole; none: any node will do


def new_stamp(director: str, flags: tuple[str, ...]) -> str:
    """A stamp that nobody ever had."""
    return f"{director}.{kind(flags)}.{secrets.token_hex(12)}"


def kind_of(stamp: str, director: str) -> str | None:
    """The flags in a stamp, as `kind` tells them; None: the pilot is not this director's."""
    parts = stamp.split(".")
    return parts[1] if len(parts) == _PARTS and parts[0] == director else None


def kind(flags: tuple[str, ...]) -> str:
    """Flags in a word: equal ones have the same, others another."""
    if not flags:
        return _ANY
    return hashlib.sha256(json.dumps(flags).encode()).hexdigest()[:_DIGITS]
