"""The values that a rule of retry gives a description, for `changes.change_body`."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from cs_config.options import keywords
from cs_config.options.options import VoOptions
from cs_config.options.retry_rules import MEMORY, RetryRule, ValueChange, parse_rule
from optimizers.description import changes
from requirements.errors import InvalidJob, Problem
from requirements.values import as_number, fold, normal_number

_MEMORIES: Final = ("MinRAM", "MaxRAM", "MinRAMPerCore")
_BANNED: Final = "BannedSites"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """What a rule may need of the attempt that failed."""

    site: str = ""
    ram_mb: int | None = None  #: that the job was given, or more that it used; None: not known


_ANY_RUN: Final = FailedRun(ram_mb=1)


def find_values(
    rule: RetryRule, body: Mapping[str, object], options: VoOptions, run: FailedRun
) -> dict[str, object]:
    """The new values by name, of the JSON of a stored description; InvalidJob if a factor has no old one."""
    values: dict[str, object] = {}
    problems: list[Problem] = []
    stated = {**options.job_description.list_defaults(body), **body}
    for change in rule.values:
        found = dict(_change_value(change, stated, run))
        if not found:
            message = f"{change.name} is not a number in the description, so that nothing can be multiplied"
            problems.append(Problem(path=change.name, message=message))
        values |= found
    if problems:
        raise InvalidJob(problems)
    if rule.is_elsewhere and run.site:
        banned = stated.get(_BANNED)
        values[_BANNED] = [*dict.fromkeys([*(banned if isinstance(banned, list) else ()), run.site])]
    return values


def find_unfit_rules(
    body: Mapping[str, object], rules: Sequence[str], options: VoOptions
) -> Iterator[Problem]:
    """The problems of rules whose changes the description cannot have, whatever its failures are like."""
    for text in rules:
        try:
            values = find_values(parse_rule(text), body, options, _ANY_RUN)
            for name, value in values.items():  # one by one: no other expression is parsed for each of them
                changes.change_body(body, {name: value}, options)
        except InvalidJob as error:
            yield from (replace(each, path=f"Retry/{each.path}") for each in error.problems)


def _change_value(
    change: ValueChange, stated: Mapping[str, object], run: FailedRun
) -> Iterator[tuple[str, object]]:
    if change.factor is None:
        yield change.name, change.value
        return
    if (old := _find_number(change.name, stated)) is not None:
        yield change.name, _multiply(old, change.factor)
    elif fold(change.name) == fold(MEMORY):
        numbers = ((name, _find_number(name, stated)) for name in _MEMORIES)
        found: dict[str, float | None] = {name: old for name, old in numbers if old} or {"MinRAM": run.ram_mb}
        yield from ((name, _multiply(old, change.factor)) for name, old in found.items() if old)


def _multiply(old: float, factor: float) -> int | float:
    """Rounded up to a whole number where the old one is whole; what is infinite is refused as too large."""
    new = max(-sys.float_info.max, min(round(old * factor, 6), sys.float_info.max))
    return ceil(new) if normal_number(old) == int(old) else new


def _find_number(name: str, stated: Mapping[str, object]) -> float | None:
    """The number that a keyword, or a part of the Requirements, has."""
    keyword = keywords.find_keyword(name)
    if keyword is not None:
        return _as_float(stated.get(keyword.name, keywords.DEFAULTS.get(keyword.name)))
    requirements = stated.get("Requirements")
    if isinstance(requirements, str):
        parts = [(each.name, each.value) for each in changes.read_comparisons(requirements)]
    else:
        parts = [*requirements.items()] if isinstance(requirements, Mapping) else []
    return next((_as_float(value) for part, value in parts if fold(part) == fold(name)), None)


def _as_float(value: object) -> float | None:
    number = as_number(value) if isinstance(value, str) else value
    return number if isinstance(number, int | float) and not isinstance(number, bool) else None
