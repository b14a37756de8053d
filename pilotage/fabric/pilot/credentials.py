"""The pilot's token: where it is read, and what it says about the pilot. It is never shown."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = "PILOTAGE_TOKEN"
_LONGEST = 64 << 10


class NoToken(Exception):
    """There is no token where it was looked for."""


def read(source: str | None, environment: Mapping[str, str]) -> str:
    """The token.

    Args:
        source: Path of its file, `-` for standard input, None for the variable PILOTAGE_TOKEN.
        environment: The pilot's own.

    Raises:
        NoToken: There is none, or what is there is not one.
    """
    if source is None:
        text, where = environment.get(VARIABLE, ""), VARIABLE
    elif source == "-":
        text, where = sys.stdin.read(_LONGEST), "standard input"
    else:
        text, where = _file(source), source
    token = text.strip()
    if not token:
        raise NoToken(f"no token in {where}: give --token-file FILE or set {VARIABLE}")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise NoToken(f"what is in {where} is no token")
    return token


def claims(token: str) -> dict[str, Any]:
    """What the token says, unverified: good for being polite, not for deciding; empty if it is no JWT."""
    try:
        payload = token.split(".")[1]
        said = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _file(source: str) -> str:
    try:
        return Path(source).read_text(encoding="ascii")[:_LONGEST]
    except (OSError, UnicodeDecodeError) as error:
        raise NoToken(f"{source}: {error}") from None
