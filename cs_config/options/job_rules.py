"""Grammar that the rules of jobs have in common, those for failures (`Retry`) and for long waits (`Relax`).

A rule is one line: when it applies, a colon, and changes with commas between, most of which give a
description other values.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cs_config.options import bounds
from requirements.quantities import VERSIONS
from requirements.values import as_number, fold, format_value

#: Changes of values, for messages.
VALUE_CHANGES: Final = "Name x 1.5, Name = value, without Name, Name without value"
#: What `Memory` in a rule means where a job has no such value in its Requirements.
MEMORY: Final = "Memory"
DELAY: Final = re.compile(r"after\s+(\d{1,10})\s*(s|min|h)", re.IGNORECASE)

#: Characters of a text with several rules, of which some may be blanks.
_LONGEST: Final = 2 * bounds.JOB_RULES * bounds.JOB_RULE
_BLANKS: Final = re.compile(r"\s+")
_SEPARATOR: Final = re.compile(r"[;\n]")
_SECONDS: Final[Mapping[str, int]] = {"s": 1, "min": 60, "h": 3600}
_NAME: Final = r"([A-Za-z]\w*)"
_SCALED: Final = re.compile(rf"{_NAME}\s*(?:\s[xX]|[*×])\s*(\d+(?:\.\d+)?)")
_ASSIGNED: Final = re.compile(rf"{_NAME}\s*=\s*(\S.*)")
_DROPPED: Final = re.compile(rf"without\s+{_NAME}", re.IGNORECASE)
_REDUCED: Final = re.compile(rf"{_NAME}\s+without\s+(\S.*)", re.IGNORECASE)


class JobRuleError(ValueError):
    """A text that is no rule; the message has the text, and what is allowed."""


class ChangeKind(StrEnum):
    """What a change does to a value."""

    SCALE = "x"  #: the old number times another
    SET = "="  #: another value
    DROP = "without"  #: none
    REMOVE = "without value"  #: one less in a list


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueChange:
    """A change of one value of a description."""

    name: str
    kind: ChangeKind
    value: str | int | float = ""  #: factor, new value, or member of the list; unused if the value is dropped


def split_rules(raw: object, example: str) -> tuple[str, ...]:
    """The texts of rules, with single blanks; JobRuleError, also for more than a job may have.

    They are members of a list, parts of a text between semicolons, or items of a record.
    """
    texts = _split(raw, example)
    if len(texts) > bounds.JOB_RULES:  # before any is parsed
        raise JobRuleError(f"{len(texts)} rules are too many, allowed are {bounds.JOB_RULES}")
    return texts


def _split(raw: object, example: str) -> tuple[str, ...]:
    if isinstance(raw, Mapping):
        texts = [f"{when}: {changes}" for when, changes in raw.items()]
    elif isinstance(raw, list | tuple):
        texts = [each for part in raw for each in _split(part, example)]
    elif isinstance(raw, str):
        if len(raw) > _LONGEST:  # before it is split
            raise JobRuleError(f"{raw[:20]!r}… has {len(raw)} characters, allowed are {_LONGEST}")
        texts = _SEPARATOR.split(raw)
    else:
        raise JobRuleError(f"{raw!r:.100} is no text, such as {example!r}")
    return tuple(dict.fromkeys(text for each in texts if (text := _BLANKS.sub(" ", each).strip())))


def check_changes(number: int) -> None:
    """Refuse more changed values than all rules of a job may have; JobRuleError."""
    if number > bounds.JOB_RULE_CHANGES:
        raise JobRuleError(f"{number} changed values are too many, allowed are {bounds.JOB_RULE_CHANGES}")


def split_rule(text: str, allowed: str) -> tuple[str, list[str]]:
    """When a rule applies, and the texts of its changes; JobRuleError."""
    if len(text) > bounds.JOB_RULE:
        raise JobRuleError(f"{text[:20]!r}… has {len(text)} characters, allowed are {bounds.JOB_RULE}")
    when, colon, changes = text.partition(":")
    if not colon or not when.strip() or not changes.strip():
        raise JobRuleError(f"{text!r}, allowed is '{allowed}")
    return when.strip(), [each.strip() for each in changes.split(",")]


def read_seconds(found: re.Match[str]) -> int:
    """The seconds of a match of `DELAY`; JobRuleError."""
    seconds = int(found[1]) * _SECONDS[fold(found[2])]
    if seconds > bounds.JOB_RULE_DELAY:
        raise JobRuleError(f"{found[0]!r} is too long, allowed are {bounds.JOB_RULE_DELAY // 3600} h")
    return seconds


def parse_value_change(text: str) -> ValueChange | None:
    """A change of a value; None: the text is none. JobRuleError."""
    if found := _SCALED.fullmatch(text):
        factor = float(found[2])
        if not 0 < factor <= bounds.JOB_RULE_FACTOR:
            most = format_value(bounds.JOB_RULE_FACTOR)
            raise JobRuleError(f"{text!r}: allowed are factors up to {most}")
        if factor == 1:
            raise JobRuleError(f"{text!r} changes nothing")
        return ValueChange(name=found[1], kind=ChangeKind.SCALE, value=factor)
    if found := _ASSIGNED.fullmatch(text):
        value = found[2].strip("\"'")
        is_version = fold(found[1]) in VERSIONS  # as a number 12.10 would be 12.1
        return ValueChange(
            name=found[1], kind=ChangeKind.SET, value=value if is_version else as_number(value)
        )
    if found := _DROPPED.fullmatch(text):
        return ValueChange(name=found[1], kind=ChangeKind.DROP)
    if found := _REDUCED.fullmatch(text):
        return ValueChange(name=found[1], kind=ChangeKind.REMOVE, value=found[2].strip("\"'"))
    return None
