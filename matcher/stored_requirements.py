"""The requirements of pools and classes as they are stored, read once each."""

from functools import lru_cache

from requirements import canonical
from requirements.canonical import Requirements


@lru_cache(maxsize=20_000)
def parse_stored(text: str) -> Requirements:
    """The requirements of their JSON; see `canonical.from_json`."""
    return canonical.from_json(text)
