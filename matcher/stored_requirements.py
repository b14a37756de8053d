"""Cached parsing of the stored requirements of pools and classes."""

from functools import lru_cache

from requirements import canonical
from requirements.canonical import Requirements


@lru_cache(maxsize=20_000)
def parse_stored(text: str) -> Requirements:
    """Parse requirements from JSON; see `canonical.from_json`."""
    return canonical.from_json(text)
