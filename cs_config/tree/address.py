"""The address of a batch queue, allowed names, and detection of misspelled names."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_core import CoreSchema, core_schema

from requirements.errors import InvalidRequest, Problem
from requirements.values import fold

#: Names of sites, CEs, queues and VOs: parts of addresses, `Site/CE/Queue`.
NAME = re.compile(r"[A-Za-z0-9._:@+-]{1,128}", re.ASCII)
NAME_ALLOWED = "letters, digits and . _ : @ + - (at most 128)"

#: The section of the sites.
SITES = ("Resources", "Sites")
#: Kinds of nodes by the length of their paths.
NODES = {3: "Site", 5: "CE", 7: "Queue"}


def node_depth(names: Sequence[str]) -> int:
    """How many names of a path are those of its site, CE or queue (see `NODES`); 0: it is in none."""
    if tuple(names[:2]) != SITES or len(names) < 3:
        return 0
    depth = 3
    for section in ("CEs", "Queues"):
        if len(names) < depth + 2 or names[depth] != section:
            break
        depth += 2
    return depth


_SHORT = 6  # in shorter names one different letter usually makes another word


def is_slip(name: str, known: str) -> bool:
    """Whether `name` is `known` with one letter added, missing, wrong or swapped with the next.

    In short names only a plural counts: `Tags`, but not `Tar`.
    """
    seen, right = fold(name), fold(known)
    if seen == right:
        return False
    if len(right) < _SHORT:
        return len(right) > 2 and seen in (right + "s", right.removesuffix("s"))
    return _one_step(seen, right)


def _one_step(seen: str, right: str) -> bool:
    start = 0
    while start < min(len(seen), len(right)) and seen[start] == right[start]:
        start += 1
    rest, wanted = seen[start:], right[start:]
    return (
        rest[1:] == wanted  # one too many
        or rest == wanted[1:]  # one missing
        or rest[1:] == wanted[1:]  # one wrong
        or (rest[1::-1] == wanted[:2] and rest[2:] == wanted[2:])  # two exchanged
    )


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class QueueAddress:
    """The address of a batch queue: site, CE and queue."""

    site: str
    ce: str
    queue: str

    def __str__(self) -> str:
        return f"{self.site}/{self.ce}/{self.queue}"

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> CoreSchema:
        """Make pydantic read an address from its text, and write it as that."""
        return core_schema.no_info_plain_validator_function(
            lambda found: found if isinstance(found, cls) else cls.parse(str(found)),
            serialization=core_schema.to_string_ser_schema(),
        )

    @property
    def path(self) -> str:
        """The path in the configuration."""
        return f"Resources/Sites/{self.site}/CEs/{self.ce}/Queues/{self.queue}"

    @classmethod
    def parse(cls, text: str) -> "QueueAddress":
        """Parse `Site/CE/Queue`, or raise InvalidRequest."""
        parts = text.split("/")
        if len(parts) != 3 or not all(NAME.fullmatch(part) for part in parts):
            message = (
                f"{text[:400]!r} is not an address of a queue, which is Site/CE/Queue, each of {NAME_ALLOWED}"
            )
            raise InvalidRequest([Problem(path="Queue", message=message)])
        return cls(site=parts[0], ce=parts[1], queue=parts[2])
