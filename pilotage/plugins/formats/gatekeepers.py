"""Addresses and limits of CEs as others write them: `ce.example.org ce.example.org:9619`, `https://ce:443/arex`."""

import re
from typing import Final

from cs_config.tree import glue

_HOST: Final = re.compile(r"(?:\w+://)?([^:/\s]+)")
_ENDPOINT: Final = re.compile(r"(?:^|[\s/])([\w.-]+:(\d+))(?:/\S*)?\s*$")
#: Ports that need not be named.
_USUAL_PORTS: Final = ("9619", "443")


def find_host(address: str) -> str:
    """The host of an address; empty if it has none."""
    found = _HOST.match(address)
    return found[1] if found else ""


def find_endpoint(address: str) -> str:
    """Host and port of an address; empty where the port is a usual one."""
    found = _ENDPOINT.search(address)
    return found[1] if found is not None and found[2] not in _USUAL_PORTS else ""


def read_limit(text: str) -> int | None:
    """A whole number of a CE's description; None if it is none, or states no limit as 0 and 999999 do."""
    number = glue.read_number(text)
    return None if number is None else int(number)
