"""What may be a name, and what is a slip of the pen.

The address of a batch queue.
"""

import re
from dataclasses import dataclass

from requirements.errors import InvalidRequest, Problem
from requirements.values import fold

#: Names of sites, CEs, queues and VOs: they stand in addresses, `Site/CE/Queue`.
NAME = re.compile(r"[A-Za-z0-9._:@+-]{1,128}", re.ASCII)
NAME_ALLOWED = "letters, digits and . _ : @ + - (at most 128)"

_SHORT = 6  # in shorter names one letter makes another word


def is_slip(name: str, known: str) -> bool:
    """Whether `name` is `known` with one letter too many, missing, wrong or exchanged with the next.

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
    """Where a batch queue is: behind a CE of a site."""

    site: str
    ce: str
    queue: str

    def __str__(self) -> str:
        return f"{self.site}/{self.ce}/{self.queue}"

    @property
    def path(self) -> str:
        """Its place in the configuration."""
        return f"Resources/Sites/{self.site}/CEs/{self.ce}/Queues/{self.queue}"

    @classmethod
    def parse(cls, text: str) -> "QueueAddress":
        """The address that is written `Site/CE/Queue`.

        Raises:
            InvalidRequest: It is not three names.
        """
        parts = text.split("/")
        if len(parts) != 3 or not all(NAME.fullmatch(part) for part in parts):
            message = (
                f"{text[:400]!r} is no address of a queue, which is Site/CE/Queue, each of {NAME_ALLOWED}"
            )
            raise InvalidRequest([Problem(path="Queue", message=message)])
        return cls(site=parts[0], ce=parts[1], queue=parts[2])
