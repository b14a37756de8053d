"""Amounts that are asked for twice: by the slot of a pilot, and by flags for the jobs it is sent for."""

import re

_AMOUNT = re.compile(r"(\d+)(\D*)", re.ASCII)


def larger(before: str, after: str) -> str:
    """Of two amounts in one unit the larger, so that flags never take from a slot; else what is said last."""
    one, two = _AMOUNT.fullmatch(before), _AMOUNT.fullmatch(after)
    if one is None or two is None or one[2] != two[2]:
        return after
    return before if int(one[1]) > int(two[1]) else after
