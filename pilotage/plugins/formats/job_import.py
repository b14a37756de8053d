"""Job descriptions from files of other systems: tables of what each keyword becomes, and what is left out."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cs_config.options import bounds
from requirements.errors import InvalidJob, Problem

#: A value of a description, from its text; ValueError: it cannot be read, with the reason.
ValueReader = Callable[[str], object]

_JOB_ID: Final = re.compile(r"%j")
_FILLED: Final = re.compile(r"%(?:[jsn]|\(\w+\)s)")
_BYTES: Final = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of a keyword."""

    attribute: str = ""  #: of our descriptions; empty: it is left out
    read: ValueReader = str
    reason: str = ""  #: why it is left out; empty: it has no effect that would be missed


@dataclass(frozen=True, slots=True)
class PartlyRead:
    """What a `ValueReader` returns if a part of the text has no counterpart."""

    value: object
    left_out: Sequence[tuple[str, str]]  #: each part, and why


#: Keywords without effect here: what they ask for happens anyway.
IMPLIED: Final = Rule()


def leave_out(reason: str) -> Rule:
    """A keyword that has no counterpart."""
    return Rule(reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedJobs:
    """Descriptions that were read from a file of another system."""

    descriptions: list[dict[str, object]]
    left_out: list[str] = field(default_factory=list)  #: `keyword = value: reason`


def apply_rules(
    rules: Mapping[str, Rule], stated: Mapping[str, str], left_out: list[str]
) -> Iterator[tuple[str, object]]:
    """Attributes with their values; what is left out is added to `left_out`, once for each keyword.

    Of several keywords for one attribute the first counts.
    """
    read: dict[str, tuple[str, object]] = {}
    for keyword, text in stated.items():
        rule = rules.get(keyword, _UNKNOWN)
        reason = rule.reason
        if rule.attribute:
            try:
                value = rule.read(text)
            except ValueError as error:
                reason = str(error)
            else:
                if isinstance(value, PartlyRead):
                    for part, why in value.left_out:
                        note_left_out(left_out, f"{keyword} = {part}", why)
                    value = value.value
                first, before = read.setdefault(rule.attribute, (keyword, value))
                if first == keyword:
                    yield rule.attribute, value
                elif before != value:
                    reason = f"{first} states {rule.attribute}, too: {before}"
        if reason:
            note_left_out(left_out, f"{keyword} = {text}" if text else keyword, reason)


def note_left_out(left_out: list[str], what: str, reason: str) -> None:
    """Add a line to the report, once."""
    line = f"{what:.200}: {reason}"
    if line not in left_out:
        left_out.append(line)


_UNKNOWN: Final = leave_out("is not known here")


def check_size(text: str, name: str) -> None:
    """Refuse a text that is longer than any description; raises InvalidJob."""
    if len(text) > bounds.DESCRIBED:
        raise refuse(name, f"has {len(text):,} characters, allowed are {bounds.DESCRIBED:,}")


def check_literal(text: str, what: str, where: str, *, has_parameters: bool) -> None:
    """Refuse a text with what a description fills: the id of the job, and values of its parameters."""
    if found := (_FILLED if has_parameters else _JOB_ID).search(text):
        raise refuse(where, f"{what}: {found[0]} is filled for each job here: let your program make it")


def check_jobs(jobs: int, where: str) -> None:
    """Refuse more jobs than a description may have; raises InvalidJob."""
    if jobs > bounds.PARAMETRIC_JOBS:
        raise refuse(where, f"has {jobs:,} jobs, allowed are {bounds.PARAMETRIC_JOBS:,}")


def refuse(where: str, problem: str) -> InvalidJob:
    """The error of a file that cannot be read."""
    return InvalidJob([Problem(path=where, message=problem)])


def read_count(text: str) -> int:
    """A whole number."""
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError("is no whole number")
    return int(text)


def read_memory(text: str) -> int:
    """MB, rounded up; the unit is MB where none is stated."""
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,3})?)\s*([kmgt]?)i?b?", text.strip().lower())
    if found is None:
        raise ValueError("is no number with a unit")
    return math.ceil(float(found[1]) * _BYTES[found[2] or "m"])
