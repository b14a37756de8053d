"""Options of a submission that may be given only once, but are set by a slot and by the flags of its jobs.

Both are passed on, and of two amounts the larger, so that flags never reduce a slot.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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


_AMOUNT = re.compile(r"(\d+)([kmgtp]?)(i?b)?", re.ASCII | re.IGNORECASE)
#: Source: sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, each after days and a dash.
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})", re.ASCII)
_SIZES = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
#: Batch systems take a size without a unit as megabytes.
_NO_UNIT = 2


def larger(before: str, after: str) -> str:
    """Of two sizes or times the larger, whatever their units; of others the one that is stated last."""
    for measure in (_size, _seconds):
        one, two = measure(before), measure(after)
        if one is not None and two is not None:
            return before if one > two else after
    return after


def _size(text: str) -> int | None:
    """Bytes; None: it is no size."""
    found = _AMOUNT.fullmatch(text)
    return None if found is None else int(found[1]) << 10 * _SIZES.get(found[2].lower(), _NO_UNIT)


def _seconds(text: str) -> int | None:
    """Seconds of a time; None: it is none."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    parts = [int(part) for part in found["parts"].split(":")]
    # With days, and with three parts, hours come first; else minutes.
    units = (3600, 60, 1) if found["days"] or len(parts) == len((3600, 60, 1)) else (60, 1)
    total = sum(part * unit for part, unit in zip(parts, units, strict=False))
    return int(found["days"] or 0) * 86_400 + total


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


def merge_options(
    words: Iterable[str], merged: Mapping[str, Merge], short: Mapping[str, str] | None = None
) -> list[str]:
    """The words; of an option given several times one, at the first place, with all values.

    Args:
        words: An option may be `--time=60`, `--time 60`, `-t 60` or `-t60`.
        merged: How two values of an option become one, by its long name.
        short: Long names of those options by their short ones.
    """
    found: dict[str, str] = {}
    for number, word in enumerate(_spell_out(words, merged, short or {})):
        option, sign, value = word.partition("=")
        if not sign or option not in merged:
            found[f"{number}"] = word
        elif option in found:
            before = found[option].removeprefix(f"{option}=")
            found[option] = f"{option}={_MERGE[merged[option]](before, value)}"
        else:
            found[option] = word
    return list(found.values())


def _spell_out(words: Iterable[str], merged: Collection[str], short: Mapping[str, str]) -> Iterator[str]:
    """The words, with the options to be merged as `--option=value`."""
    remaining = iter(words)
    for word in remaining:
        if word in merged or word in short:
            yield f"{short.get(word, word)}={next(remaining, '')}"
        elif (name := word[:2]) in short:
            yield f"{short[name]}={word[2:].removeprefix('=')}"
        else:
            yield word


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
