"""LDIF of GLUE 2: its entries, and the numbers of jobs in them, which sites may advertise.

Source: RFC 2849; OGF GFD.147 (GLUE 2.0) and GFD.218 (its rendering in LDAP).
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from cs_config.errors import one_problem
from cs_config.formats.foreign_fields import ForeignFields
from cs_config.tree import glue
from requirements.values import fold

_DIGITS: Final = re.compile(r"[0-9]{1,15}")
_COUNTS: Final = {
    "CurrentRunningJobs": "RunningJobs",
    "CurrentPendingJobs": "WaitingJobs",
    "CurrentJobs": "TotalJobs",
}


class LdapEntry(ForeignFields[list[str]]):
    """Values of an LDAP entry by folded attribute, with the place where it begins."""

    def __init__(self, file: str, line: int) -> None:
        super().__init__()
        self.file = file
        self.line = line


def read_ldif(text: str, file: str) -> Sequence[LdapEntry]:
    """The entries of a text in LDIF (RFC 2849), as `ldapsearch` prints it; ConfigError with the line."""
    found: list[LdapEntry] = []
    entry = LdapEntry(file, 1)
    for number, line in _unfolded_lines(text):
        name, colon, value = line.partition(":")
        if not line:
            entry = LdapEntry(file, number)
        elif not colon:
            raise one_problem(file, f"line {number}: {line!r:.60} is not LDIF, allowed is `name: value`")
        elif name != "version" or entry:
            if value.startswith(":"):
                try:
                    value = base64.b64decode(value[1:].strip(), validate=True).decode()
                except (binascii.Error, UnicodeDecodeError):
                    raise one_problem(file, f"line {number}: {name} is not a text in base64") from None
            if not entry:
                entry.line = number
                found.append(entry)
            entry.setdefault(fold(name), []).append(value.strip())
    return found


def _unfolded_lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines without comments; one that begins with a space continues the one before."""
    lines: list[tuple[int, list[str]]] = []  # each with its parts
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(" ") and lines:
            lines[-1][1].append(line[1:])
        else:
            lines.append((number, [line]))
    return ((number, "".join(parts)) for number, parts in lines if not parts[0].startswith("#"))


def read_counts(text: str, file: str) -> dict[str, object]:
    """The numbers of jobs of computing shares (LDIF) as an advertisement; a queue's shares are added up."""
    shares = list_class(read_ldif(text, file), "ComputingShare")
    if not shares:
        raise one_problem(file, "it has no GLUE2ComputingShare")
    found: dict[str, object] = {}
    for ours, theirs in _COUNTS.items():
        stated = [number for each in shares if (number := read_number(each, theirs)) is not None]
        if stated:
            found[ours] = sum(stated)
    if {"CurrentRunningJobs", "CurrentPendingJobs"} <= found.keys():
        found["CurrentJobs"] = sum(int(str(found[each])) for each in list(_COUNTS)[:2])
    states = {read_first(each, "GLUE2ComputingShareServingState") for each in shares} - {""}
    return found | ({"ServingState": sorted(states)} if states else {})


def list_class(entries: Iterable[LdapEntry], name: str) -> list[LdapEntry]:
    """The entries of a class of GLUE 2."""
    wanted = fold(f"GLUE2{name}")
    return [each for each in entries if wanted in map(fold, each.get("objectclass", ()))]


def read_first(entry: LdapEntry, name: str) -> str:
    """The first value of an attribute; empty if there is none."""
    return next(iter(entry.get(fold(name), ())), "")


def read_number(share: LdapEntry, name: str) -> int | None:
    """A number of a share; None: not stated, or a placeholder."""
    text = read_first(share, f"GLUE2ComputingShare{name}")
    number = int(text) if _DIGITS.fullmatch(text) else None
    return None if number is None or glue.is_placeholder(number) else number
