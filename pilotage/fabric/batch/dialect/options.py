"""Options of a submission that may be given only once, but are set by a slot and by the flags of its jobs.

Both values are passed on, and of two amounts the larger, so that flags never reduce a slot. What flags state
in other words, which cannot be compared, takes the place of what is requested.
"""

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

from pydantic import Field

from pilotage.fabric.file_section import FileSection

#: How two values of an option become one: the larger amount; Slurm's features, `a&b`; its items, `gpu:2,ssd`;
#: Grid Engine's parallel environment and its number of slots, which are two words; LSF's sizes, whose unit a
#: cluster chooses where none is written, its times, `hours:minutes`, its GPUs, `num=2:gmodel=A100`, and its
#: resource requirements, `select[ssd] rusage[mem=8GB]`.
Merge = Literal["larger", "limit", "features", "items", "slots", "sizes", "hours", "parts", "requirements"]


class JoinedOption(FileSection):
    """An option whose several arguments are joined into one, such as `-l` for PBS."""

    option: str = Field(min_length=1)
    between: str = Field(default=",", min_length=1)
    #: Names whose values have parts, with what stands between them: of the same amounts in two values the
    #: larger holds, and other parts add up. Of names without parts the larger amount holds, else the last.
    parts: dict[str, str] = Field(default_factory=dict)
    unless: str | None = None  #: nothing is joined where this word is among the others


_AMOUNT = re.compile(r"(\d+)([kmgtp]?)(i?b)?", re.ASCII | re.IGNORECASE)
#: Source: sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, each after days and a dash.
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})", re.ASCII)
_SIZES = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
#: Batch systems take a size without a unit as megabytes.
_NO_UNIT = 2


def larger(before: str, after: str, *, unit: int = 60) -> str:
    """The larger of two sizes or times, whatever their units; of other values the one that is stated last.

    A number alone is a time of so many seconds (`unit`): Slurm's are minutes.
    """
    for measure in (_size, partial(_seconds, unit=unit)):
        one, two = measure(before), measure(after)
        if one is not None and two is not None:
            return before if one > two else after
    return after


def _size(text: str) -> int | None:
    """Bytes; None: it is no size."""
    found = _AMOUNT.fullmatch(text)
    return None if found is None else int(found[1]) << 10 * _SIZES.get(found[2].lower(), _NO_UNIT)


def _seconds(text: str, *, unit: int = 60) -> int | None:
    """Seconds of a time; None: it is none."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    parts = [int(part) for part in found["parts"].split(":")]
    # With days, and with three parts, hours come first; else minutes.
    units: tuple[int, ...] = (3600, 60, 1) if found["days"] or len(parts) == len((3600, 60, 1)) else (60, 1)
    if len(parts) == 1 and not found["days"]:
        units = (unit,)
    total = sum(part * each for part, each in zip(parts, units, strict=False))
    return int(found["days"] or 0) * 86_400 + total


def join_option(words: Sequence[str], joined: JoinedOption) -> list[str]:
    """The words with the option once, after all others.

    Of `-l nodes=1:ppn=4 -l mem=2gb -l nodes=1:ppn=2:ssd` comes `-l nodes=1:ppn=4:ssd,mem=2gb` where `nodes`
    has parts.
    """
    if joined.unless in words:
        return list(words)
    rest, arguments = _take_options(words, joined.option)
    values: dict[str, str] = {}
    for item in (item for argument in arguments for item in argument.split(joined.between)):
        name, sign, value = item.partition("=")
        if name in values:
            before, between = values[name].removeprefix("="), joined.parts.get(name)
            value = larger(before, value, unit=1) if between is None else _add_parts(before, value, between)
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
        elif word.startswith(option) and "=" in word:  # -lmem=2gb
            arguments += [word.removeprefix(option)]
        else:
            rest.append(word)
    return rest, arguments


def _add_parts(before: str, value: str, between: str) -> str:
    """All parts of two values, each amount once: `1:ppn=4` and `2:ppn=1:ssd` are `2:ppn=4:ssd`.

    Several groups of nodes (`1:ppn=4+2:ppn=8`) stand alone; a node or property that is named first needs no
    number.
    """
    if groups := [each for each in (value, before) if "+" in each]:
        return groups[0]
    values = [each.split(between) for each in (before, value)]
    found = {parts[0]: "" for parts in values if "=" not in parts[0] and not parts[0].isdecimal()}
    is_named = bool(found)
    for part in itertools.chain.from_iterable(values):
        name, sign, amount = part.rpartition("=")
        if not sign and not part.isdecimal():
            found[part] = ""
        elif sign or not is_named:  # a number alone: how many
            name += sign
            found[name] = larger(found.get(name, amount), amount)
    return between.join(name + amount for name, amount in found.items())


def merge_options(
    words: Iterable[str], merged: Mapping[str, Merge], short: Mapping[str, str] | None = None
) -> list[str]:
    """The words; of an option given several times one, at the first place, with all values.

    Args:
        words: An option may be `--time=60`, `--time 60`, `-t 60`, `-t60` or the beginning of its
            long name, where no other of `merged` has it, such as `--tim=60`. With one dash it is `-n 4`
            only, of slots `-pe smp 4`.
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
    return [word for name, each in found.items() for word in _split_words(name, each, merged)]


def _split_words(option: str, word: str, merged: Mapping[str, Merge]) -> Sequence[str]:
    """The words of an option: three of `-pe=smp 4`, two of `-n=4`, else the one."""
    if option not in merged or option.startswith("--"):
        return [word]
    value = word.removeprefix(f"{option}=")
    return [option, *(value.split(" ", 1) if merged[option] == "slots" else [value])]


def _spell_out(words: Iterable[str], merged: Mapping[str, Merge], short: Mapping[str, str]) -> Iterator[str]:
    """The words, with the options to be merged as `--option=value`."""
    remaining = iter(words)
    for word in remaining:
        name, sign, value = word.partition("=")
        if merged.get(word) == "slots":
            yield f"{word}={next(remaining, '')} {next(remaining, '')}"
        elif option := _find_option(name, merged, short):
            yield f"{option}={value if sign else next(remaining, '')}"
        elif (name := word[:2]) in short:
            yield f"{short[name]}={word[2:]}"
        else:
            yield word


def _find_option(name: str, merged: Collection[str], short: Mapping[str, str]) -> str | None:
    """The long name of an option to be merged, of which `name` may be an abbreviation."""
    if name in merged:
        return name
    is_long = name.startswith("--") and len(name) > 2
    meant = [option for option in merged if is_long and option.startswith(name)]
    return meant[0] if len(meant) == 1 else short.get(name)


def _all_features(before: str, after: str) -> str:
    return before if before == after else f"{_in_brackets(before)}&{_in_brackets(after)}"


def _in_brackets(expression: str) -> str:
    return f"({expression})" if "|" in expression and "(" not in expression else expression


def _all_items(before: str, after: str) -> str:
    """Each item once, and nothing of any kind where kinds are stated: Slurm refuses `gpu:2,gpu:a100:1`.

    One kind takes the larger number.
    """
    counts: dict[str, str] = {}
    for item in f"{before},{after}".split(","):
        name, _, count = item.rpartition(":")
        if not count.isdecimal():
            name, count = item, "1"
        counts[name] = larger(counts.get(name, count), count)
    for name in list(counts):
        if kinds := [each for each in counts if each.startswith(f"{name}:")]:
            of_any_kind = counts.pop(name)
            if len(kinds) == 1:
                counts[kinds[0]] = larger(counts[kinds[0]], of_any_kind)
    return ",".join(f"{name}:{count}" for name, count in counts.items())


def _higher_limit(before: str, value: str) -> str:
    """The larger amount; 0, which lifts the limit, is above all others."""
    lifted = (each for each in (before, value) if 0 in (_size(each), _seconds(each)))
    return next(lifted, larger(before, value))


def _more_slots(before: str, value: str) -> str:
    """The environment that is stated last, with the larger number; a range, as `4-8`, that is stated last."""
    environment, _, number = value.rpartition(" ")
    return f"{environment} {larger(before.rpartition(' ')[2], number)}"


def _larger_size(before: str, value: str) -> str:
    """The larger size; the one that is stated last, where only one has a unit."""
    sizes = [_AMOUNT.fullmatch(each) for each in (before, value)]
    have_units = {bool(each[2]) for each in sizes if each is not None}
    return larger(before, value) if len(have_units) == 1 else value


def _longer_limit(before: str, value: str) -> str:
    """The longer of two times, as `90` and `1:30`; one with a host holds alone. Source: bsub(1), -W."""
    minutes = [_HOURS.fullmatch(each) for each in (before, value)]
    if None in minutes:
        return value
    one, two = (60 * int(each[1] or 0) + int(each[2]) for each in minutes if each is not None)
    return before if one > two else value


def _all_parts(before: str, value: str) -> str:
    """All parts, of the same amounts the larger; a dash stands for the usual values of the cluster."""
    if "-" in (before, value):
        return before if value == "-" else value
    return _add_parts(before, value, ":")


_HOURS = re.compile(r"(?:(\d+):)?(\d+)", re.ASCII)
_SECTION = re.compile(r"(select|order|rusage|span|same|cu|affinity)\[([^\[\]]*)\]")
_USAGE = re.compile(r"\w+=[\w.]+(?:[:,]\w+=[\w.]+)*", re.ASCII)


def _all_requirements(before: str, value: str) -> str:
    """One requirement with each section once, as clusters take it whose `bsub` takes `-R` once only.

    Both selections and all usages hold, of the same usage the larger; spans and the like are those that are
    stated last. What has other requirements for parts of the slots, or alternatives, in braces, holds alone.
    Source: IBM, bsub -R, *Usage string*: LSF joins several -R, and a resource may be there once.
    """
    if "{" in before + value:
        return value if "{" in value else before
    sections = dict(_read_sections(before))
    for name, text in _read_sections(value):
        sections[name] = (
            _JOIN_SECTION.get(name, _take_last)(sections[name], text) if name in sections else text
        )
    return " ".join(f"{name}[{sections[name]}]" for name in _SECTIONS if name in sections)


def _read_sections(text: str) -> Iterator[tuple[str, str]]:
    """The sections of a requirement by name; what stands in none is the selection."""
    if selection := _SECTION.sub("", text).strip():
        yield "select", selection
    for found in _SECTION.finditer(text):
        yield found[1], found[2].strip()


def _take_last(_before: str, text: str) -> str:
    return text


def _both_selections(before: str, text: str) -> str:
    return text if before == text else f"({before}) && ({text})"


def _all_keys(before: str, text: str) -> str:
    return ":".join(dict.fromkeys([*before.split(":"), *text.split(":")]))


def _all_usages(before: str, text: str) -> str:
    """All usages; one with a duration, phases or alternatives stands as it is, beside others than its own."""
    plain = [bool(_USAGE.fullmatch(each)) and "duration=" not in each for each in (before, text)]
    if plain == [False, False]:
        return text
    if all(plain):
        usages = dict(each.split("=") for each in re.split("[:,]", before))
        for name, _, amount in (each.partition("=") for each in re.split("[:,]", text)):
            usages[name] = _larger_size(usages.get(name, amount), amount)
        return ":".join(f"{name}={amount}" for name, amount in usages.items())
    ours, other = (before, text) if plain[0] else (text, before)
    named = set(re.findall(r"(\w+)=", other))
    kept = [each for each in re.split("[:,]", ours) if each.partition("=")[0] not in named]
    return ", ".join([*([":".join(kept)] if kept else []), other])


_SECTIONS = ("select", "order", "rusage", "span", "same", "cu", "affinity")
_JOIN_SECTION: Mapping[str, Callable[[str, str], str]] = {
    "select": _both_selections,
    "order": _all_keys,
    "rusage": _all_usages,
    "same": _all_keys,
}


_MERGE: Mapping[Merge, Callable[[str, str], str]] = {
    "larger": larger,
    "limit": _higher_limit,
    "features": _all_features,
    "items": _all_items,
    "slots": _more_slots,
    "sizes": _larger_size,
    "hours": _longer_limit,
    "parts": _all_parts,
    "requirements": _all_requirements,
}
