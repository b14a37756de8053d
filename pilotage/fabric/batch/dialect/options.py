"""Options of a submission that may be given only once, but are set by a slot and by the flags of its jobs.

Both are passed on, and of two amounts the larger, so that flags never reduce a slot.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

#: How two values of an option become one: the larger amount; Slurm's features, `a&b`; its items, `gpu:2,ssd`.
Merge = Literal["larger", "features", "items"]


class JoinedOption(BaseModel):
    """An option whose several arguments are joined into one, such as `-l` for PBS."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    option: str = Field(min_length=1)
    between: str = Field(default=",", min_length=1)
    #: Names whose values add up, with what stands between them; of amounts the larger holds, else the last.
    parts: dict[str, str] = Field(default_factory=dict)
    unless: str | None = None  #: nothing is joined where this word is among the others


_AMOUNT = re.compile(r"(\d+)(\D*)", re.ASCII)


def larger(before: str, after: str) -> str:
    """Of two amounts in one unit the larger; of others the one that is stated last."""
    one, two = _AMOUNT.fullmatch(before), _AMOUNT.fullmatch(after)
    if one is None or two is None or one[2] != two[2]:
        return after
    return before if int(one[1]) > int(two[1]) else after


def join_option(words: Sequence[str], joined: JoinedOption) -> list[str]:
    """The words with the option once, after all others.

    Of `-l nodes=1:ppn=4 -l mem=2gb -l nodes=1:ssd` comes `-l nodes=1:ppn=4:ssd,mem=2gb` where the parts of
    `nodes` add up.
    """
    if joined.unless in words:
        return list(words)
    rest, arguments = _take_options(words, joined.option)
    values: dict[str, str] = {}
    for item in (item for argument in arguments for item in argument.split(joined.between)):
        name, sign, value = item.partition("=")
        if name in values:
            before, between = values[name].removeprefix("="), joined.parts.get(name)
            value = larger(before, value) if between is None else _add_parts(before, value, between)
        values[name] = sign + value
    if not values:
        return rest
    return [*rest, joined.option, joined.between.join(name + value for name, value in values.items())]


def _take_options(words: Sequence[str], option: str) -> tuple[list[str], list[str]]:
    rest: list[str] = []
    arguments: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == option:
            arguments += [next(remaining, "")]
        else:
            rest.append(word)
    return rest, arguments


def _add_parts(before: str, value: str, between: str) -> str:
    parts = before.split(between)
    return between.join([*parts, *(part for part in value.split(between) if part not in parts)])


def merge_options(words: Iterable[str], merged: Mapping[str, Merge]) -> list[str]:
    """The words; of `--option=value` given several times one, at the first place, with all values."""
    found: dict[str, str] = {}
    for number, word in enumerate(words):
        option, sign, value = word.partition("=")
        if not sign or option not in merged:
            found[f"{number}"] = word
        elif option in found:
            before = found[option].removeprefix(f"{option}=")
            found[option] = f"{option}={_MERGE[merged[option]](before, value)}"
        else:
            found[option] = word
    return list(found.values())


def _all_features(before: str, after: str) -> str:
    return before if before == after else f"{_in_brackets(before)}&{_in_brackets(after)}"


def _in_brackets(expression: str) -> str:
    return f"({expression})" if "|" in expression and "(" not in expression else expression


def _all_items(before: str, after: str) -> str:
    counts: dict[str, str] = {}
    for item in f"{before},{after}".split(","):
        name, _, count = item.rpartition(":")
        if not count.isdecimal():
            name, count = item, "1"
        counts[name] = larger(counts.get(name, count), count)
    return ",".join(f"{name}:{count}" for name, count in counts.items())


_MERGE: Mapping[Merge, Callable[[str, str], str]] = {
    "larger": larger,
    "features": _all_features,
    "items": _all_items,
}
