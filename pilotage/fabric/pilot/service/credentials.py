"""The pilot's token or secret: reading, claims, and renewal while the pilot runs. It is never printed."""

from __future__ import annotations

import base64
import json
import logging
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from pilotage.fabric.pilot.service import heartbeat
from pilotage.fabric.pilot.service.service_client import Service
from pilotage.fabric.pilot.service.transport import Away, Refused

VARIABLE = "PILOTAGE_TOKEN"
_LONGEST = 64 << 10


class NoToken(Exception):
    """The source has no token or secret."""


@dataclass(frozen=True)
class Credential:
    """The first credential of the pilot: a token or a one-use secret."""

    text: str = field(repr=False)
    stamp: str | None = None  #: pilot that the secret belongs to; None: it is a token


def read_secret(source: str, *, stamp: str) -> Credential:
    """Read the one-use secret of the pilot `stamp`, and remove its file if possible; `-`: standard input.

    Raises:
        NoToken: It is missing or malformed.
    """
    secret = _check(_text(source), source, "secret")
    if source != "-":
        with suppress(OSError):
            Path(source).unlink()
    return Credential(secret, stamp)


def read_token(source: str | None, environment: Mapping[str, str]) -> Credential:
    """Read the token from a file, from standard input (`-`), or from the variable PILOTAGE_TOKEN (None).

    Raises:
        NoToken: It is missing or malformed.
    """
    text, where = (environment.get(VARIABLE, ""), VARIABLE) if source is None else (_text(source), source)
    return Credential(_check(text, where, "token"))


def read_claims(token: str) -> dict[str, Any]:
    """Claims of the token, not verified: never base a decision on them; empty if it is no JWT."""
    try:
        payload = token.split(".")[1]
        said = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _check(text: str, where: str, what: str) -> str:
    shown = text.strip()
    where = "standard input" if where == "-" else where
    if not shown:
        raise NoToken(f"no {what} in {where}: give --token-file or --secret-file FILE, or set {VARIABLE}")
    if not shown.isascii() or not shown.isprintable() or " " in shown:
        raise NoToken(f"the content of {where} is not a {what}")
    return shown


def _text(source: str) -> str:
    if source == "-":
        return sys.stdin.read(_LONGEST)
    try:
        return Path(source).read_text(encoding="ascii")[:_LONGEST]
    except (OSError, UnicodeDecodeError) as error:
        raise NoToken(f"{source}: {error}") from None


log = logging.getLogger(__name__)

#: Fraction of its lifetime after which a token is renewed, which leaves time if the service is away.
_PART = 0.5
#: Seconds until the next try if the service is away.
_AGAIN = 30.0
#: Maximum seconds between two checks of the clock, for hosts that were suspended.
_LONGEST_PAUSE = 300.0
#: The code of a refusal that the next heartbeat or request for jobs of the pilot ends.
_NOT_HEARD = "not_heard"


def life_left(claims: Mapping[str, object], now: float) -> float | None:
    """Seconds until a pilot's token expires by the local clock; None: it is none, and cannot be renewed."""
    expires = claims.get("exp")
    if claims.get("role") != "pilot" or not isinstance(expires, (int, float)):
        return None
    return expires - now


class TokenRenewal:
    """Renewal of the token in a thread of its own (`periodically`)."""

    def __init__(
        self, service: Service, *, life: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create it; `life` is the seconds until the token expires, None: it is not renewed."""
        self._service = service
        self._clock = clock
        self._refusal = ""
        self._due = None if life is None else clock() + life * _PART

    def periodically(self) -> AbstractContextManager[None]:
        """Renew the token while in a `with` block."""
        return heartbeat.call_periodically(self.renew_if_due, name="token")

    def refusal(self) -> str:
        """Why the token cannot be renewed any more; empty while it can."""
        return self._refusal

    def renew_if_due(self) -> float | None:
        """Renew the token if due; return the seconds until the next check, None: never."""
        if self._due is None or self._refusal:
            return None
        if self._clock() >= self._due:
            self._renew()
        return min(max(self._due - self._clock(), 0.0), _LONGEST_PAUSE)

    def _renew(self) -> None:
        try:
            token = self._service.renew_token()
        except Refused as error:
            log.warning("the token is not renewed: %s", error)
            if error.code == _NOT_HEARD:  # the network was away for long, and this came before a heartbeat
                self._due = self._clock() + _AGAIN
            else:
                self._refusal = str(error)
        except (Away, OSError) as error:
            log.info("the token could not be renewed, trying again: %s", error)
            self._due = self._clock() + _AGAIN
        else:
            log.info("the token was renewed")
            self._due = self._clock() + token.life * _PART
