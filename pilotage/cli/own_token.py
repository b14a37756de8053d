"""Tokens by the key of the installation: who holds it needs nobody to ask."""

from datetime import datetime

from pilotage.cli import home_directory, last_seen
from pilotage.cli.settings import Settings
from pilotage.service import key_file
from pilotage.service.grants import Grant
from pilotage.service.tokens import Tokens


def mint(chosen: Settings, grant: Grant, *, now: datetime) -> tuple[str, datetime]:
    """A token for the grant, and when it expires.

    Raises:
        Refused: No installation was made in this home directory.
    """
    home_directory.require_installation(chosen.home, chosen.key)
    seen = last_seen.read(chosen)
    ring = key_file.load_or_create(chosen.key)
    return Tokens(ring, incarnation=lambda: seen.incarnation if seen else 1).mint(grant, now=now)
