"""What may be a name, and what is a slip of the pen."""

import re

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
