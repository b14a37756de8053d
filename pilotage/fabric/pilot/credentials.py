"""The pilot's token or secret: where it is read, and what it says about the pilot. It is never shown."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "PILOTAGE_TOKEN"
_LONGEST = 64 << 10


class NoToken(Exception):
    """There is no token, and no secret, where it was looked for."""


@dataclass(frozen=True)
class Credential:
    """What the pilot shows first."""

    text: str = field(repr=False)
    stamp: str | None = None  #: it is the one-use secret of this pilot; None: it is a token


def read_secret(source: str, *, stamp: str) -> Credential:
    """The one-use secret of the pilot `stamp`; its file is removed, where we may.

    Args:
        source: Path of its file, `-` for standard input.
        stamp: Of the pilot that was registered with it.

    Raises:
        NoToken: There is none, or what is there is not one.
    """
    secret = _checked(_text(source), source, "secret")
    if source != "-":
        with contextlib.suppress(OSError):
            Path(source).unlink()
    return Credential(secret, stamp)


def read(source: str | None, environment: Mapping[str, str]) -> Credential:
    """The token.

    Args:
        source: Path of its file, `-` for standard input, None for the variable PILOTAGE_TOKEN.
        environment: The pilot's own.

    Raises:
        NoToken: There is none, or what is there is not one.
    """
    text, where = (environment.get(VARIABLE, ""), VARIABLE) if source is None else (_text(source), source)
    return Credential(_checked(text, where, "token"))


def claims(token: str) -> dict[str, Any]:
    """What the token says, unverified: good for being polite, not for deciding; empty if it is no JWT."""
    try:
        payload = token.split(".")[1]
        said = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _checked(text: str, where: str, what: str) -> str:
    shown = text.strip()
    where = "standard input" if where == "-" else where
    if not shown:
        raise NoToken(f"no {what} in {where}: give --token-file or --secret-file FILE, or set {VARIABLE}")
    if not shown.isascii() or not shown.isprintable() or " " in shown:
        raise NoToken(f"what is in {where} is no {what}")
    return shown


def _text(source: str) -> str:
    if source == "-":
        return sys.stdin.read(_LONGEST)
    try:
        return Path(source).read_text(encoding="ascii")[:_LONGEST]
    except (OSError, UnicodeDecodeError) as error:
        raise NoToken(f"{source}: {error}") from None
