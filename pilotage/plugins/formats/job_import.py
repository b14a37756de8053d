"""Job descriptions from files of other systems: tables of what each keyword becomes, and what is left out."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cs_config.options import bounds
from requirements.errors import InvalidJob, Problem

#: How editors of Windows begin a file.
BYTE_ORDER_MARK: Final = "\ufeff"
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
    reason: str = ""  #: why it is left out; empty: it has no effect that would be missed, and is named only


@dataclass(frozen=True, slots=True)
class PartlyRead:
    """What a `ValueReader` returns if a part of the text has no counterpart."""

    value: object
    left_out: Sequence[tuple[str, str]]  #: each part, and why


#: Keywords without effect here: what they ask for happens anyway, or has no meaning here.
IMPLIED: Final = Rule()


def leave_out(reason: str) -> Rule:
    """A keyword that has no counterpart."""
    return Rule(reason=reason)


def imply(*values: str, otherwise: str) -> Rule:
    """A keyword of which only these values, in any case of letters, are what happens anyway."""

    def read(text: str) -> object:
        if text.lower() not in values:
            raise ValueError(otherwise)
        return text

    return Rule(read=read)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedJobs:
    """Descriptions that were read from a file of another system."""

    descriptions: list[dict[str, object]]
    left_out: list[str] = field(default_factory=list)  #: `keyword = value: reason`


def apply_rules(
    rules: Mapping[str, Rule],
    stated: Mapping[str, str],
    left_out: list[str],
    *,
    written: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, object]]:
    """Attributes with their values; what is left out is added to `left_out`, once for each keyword.

    Of several keywords for one attribute the first counts. Those without effect have one line together.
    `written`: keywords as the file has them, where it differs.
    """
    read: dict[str, tuple[str, object]] = {}
    without_effect: list[str] = []
    for keyword, text in stated.items():
        rule = rules.get(keyword, _UNKNOWN)
        name = (written or {}).get(keyword, keyword)
        value, reason = _read_value(rule, name, text, left_out)
        if rule.attribute and not reason:
            first, before = read.setdefault(rule.attribute, (name, value))
            if first == name:
                yield rule.attribute, value
            elif before != value:
                reason = f"{first} states {rule.attribute}, too: {before}"
        elif not reason:
            without_effect.append(_name_stated(name, text))
        if reason:
            note_left_out(left_out, _name_stated(name, text), reason)
    if without_effect:
        note_left_out(left_out, ", ".join(without_effect), WITHOUT_EFFECT)


def _name_stated(name: str, text: str) -> str:
    return f"{name} = {text}" if text else name


def _read_value(rule: Rule, name: str, text: str, left_out: list[str]) -> tuple[object, str]:
    """The value that a text stands for, and why it has none; what is read in part is added to `left_out`."""
    if rule.reason:
        return None, rule.reason
    try:
        value = rule.read(text)
    except ValueError as error:
        return None, str(error)
    if not isinstance(value, PartlyRead):
        return value, ""
    for part, why in value.left_out:
        note_left_out(left_out, f"{name} = {part}", why)
    return value.value, ""


def note_left_out(left_out: list[str], what: str, reason: str) -> None:
    """Add a line to the report, once."""
    line = f"{what:.200}: {reason}"
    if line not in left_out:
        left_out.append(line)


_UNKNOWN: Final = leave_out("is not known here")
#: The reason of what is left out without a change of the job.
WITHOUT_EFFECT: Final = "without effect here: it happens anyway, or means nothing"


def read_text(file: Path) -> str:
    """The text of a file, with a byte order mark that it may begin with; raises InvalidJob."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise refuse(str(file), f"cannot be read: {error.strerror}") from None
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        at, problem = error.start, f"byte 0x{content[error.start]:02x} is not UTF-8, which the file has to be"
        if error.reason == "unexpected end of data":
            problem = "ends within a character: the file was cut short"
    else:
        at, problem = content.find(b"\0"), "byte 0x00 is in no text, which the file has to be"
        if at < 0:
            return text
    line = content.count(b"\n", 0, at) + 1
    raise refuse(f"{file}:{line}", problem)


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
