"""Keeping the pilot's token good for as long as the pilot runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Callable

from pilotage.fabric.pilot.pulse import Pulse
from pilotage.fabric.pilot.service import Service
from pilotage.fabric.pilot.transport import Away, Refused

log = logging.getLogger(__name__)

#: A token is renewed when this part of its life is over: time enough left for a service that is away.
_PART = 0.5
#: Seconds until the next try when the service is away.
_AGAIN = 30.0
#: Seconds between two looks at the clock at most: a host that slept misses nothing for longer.
_LONGEST = 300.0
#: Tokens of these roles can be renewed.
_RENEWABLE = frozenset({"pilot", "gateway"})


def life_left(claims: Mapping[str, object], now: float) -> float | None:
    """Seconds that a token is good by our own clock; None: it cannot be renewed.

    Args:
        claims: What the token says.
        now: Seconds since the epoch.
    """
    expires = claims.get("exp")
    if claims.get("role") not in _RENEWABLE or not isinstance(expires, (int, float)):
        return None
    return expires - now


class Renewal:
    """When the token is renewed; it happens in a thread of its own, `going_on`."""

    def __init__(
        self, service: Service, *, life: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Make it.

        Args:
            service: Whose transport shows the token, and the renewed one afterwards.
            life: Seconds that the token is good from now on; None: it is not renewed.
            clock: Seconds that never go back.
        """
        self._service = service
        self._clock = clock
        self._refusal = ""
        self._due = None if life is None else clock() + life * _PART

    def going_on(self) -> Pulse:
        """Renews until the end of a `with` block."""
        return Pulse(self.turn, name="token")

    def refusal(self) -> str:
        """Why the token is not renewed any more; empty as long as it is."""
        return self._refusal

    def turn(self) -> float | None:
        """Renew the token if it is time; seconds until the next look, None: never again."""
        if self._due is None or self._refusal:
            return None
        if self._clock() >= self._due:
            self._renew()
        return min(max(self._due - self._clock(), 0.0), _LONGEST)

    def _renew(self) -> None:
        try:
            token = self._service.renew_token()
        except Refused as error:
            log.warning("the token is not renewed: %s", error)
            self._refusal = str(error)
        except (Away, OSError) as error:
            log.info("the token could not be renewed, trying again: %s", error)
            self._due = self._clock() + _AGAIN
        else:
            log.info("the token was renewed")
            self._due = self._clock() + token.life * _PART
