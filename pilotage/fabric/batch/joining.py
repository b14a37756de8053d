"""Arguments of one option put into one, for commands that take only the last of them.

What the slot of a pilot asks for, and what flags for its jobs do, may be said of the same thing: then the
batch system is told both, and of two amounts the larger, so that flags never take from a slot.
"""

import re
from collections.abc import Sequence

from pilotage.fabric.batch.dialect.dialect import Joined

_AMOUNT = re.compile(r"(\d+)(\D*)", re.ASCII)


def larger(before: str, after: str) -> str:
    """Of two amounts in one unit the larger; of others the one that is said last."""
    one, two = _AMOUNT.fullmatch(before), _AMOUNT.fullmatch(after)
    if one is None or two is None or one[2] != two[2]:
        return after
    return before if int(one[1]) > int(two[1]) else after


def join(words: Sequence[str], joined: Joined) -> list[str]:
    """The words with the option once, at the place of its last argument.

    Of `-l nodes=1:ppn=4 -l mem=2gb -l nodes=1:ssd` comes `-l nodes=1:ppn=4:ssd,mem=2gb` where the parts of
    `nodes` add up.
    """
    rest, arguments = _taken(words, joined.option)
    values: dict[str, str] = {}
    for item in (item for argument in arguments for item in argument.split(joined.between)):
        name, sign, value = item.partition("=")
        if name in values:
            before, between = values[name].removeprefix("="), joined.parts.get(name)
            value = larger(before, value) if between is None else _added(before, value, between)
        values[name] = sign + value
    if not values:
        return rest
    return [*rest, joined.option, joined.between.join(name + value for name, value in values.items())]


def _taken(words: Sequence[str], option: str) -> tuple[list[str], list[str]]:
    rest: list[str] = []
    arguments: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == option:
            arguments += [next(remaining, "")]
        else:
            rest.append(word)
    return rest, arguments


def _added(before: str, value: str, between: str) -> str:
    parts = before.split(between)
    return between.join([*parts, *(part for part in value.split(between) if part not in parts)])
