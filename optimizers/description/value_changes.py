"""The values that changes of rules give a description, for `changes.change_body`."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from cs_config.options import keywords
from cs_config.options.job_rules import MEMORY, ChangeKind, ValueChange
from cs_config.options.options import VoOptions
from optimizers.description import changes
from optimizers.description import document as documents
from requirements.errors import Problem
from requirements.values import as_number, fold, normal_number

_MEMORIES: Final = ("MinRAM", "MaxRAM", "MinRAMPerCore")


@dataclass(slots=True, kw_only=True)
class StatedValues:
    """The values of a stored description, and those that earlier changes gave it."""

    body: Mapping[str, object]  #: JSON
    options: VoOptions
    ram_mb: int | None = None  #: what `Memory` is a multiple of in a job that states none
    changed: dict[str, object] = field(default_factory=dict)  #: by name, None: taken away

    def change(self, change: ValueChange) -> Problem | None:
        """Change a value; the problem if a job keeps it, or the description has no fitting old one."""
        if why := keywords.KEPT_BY_JOB.get(fold(change.name)):
            return Problem(path=change.name, message=f"is not changed: {why}")
        match change.kind:
            case ChangeKind.SET:
                found: dict[str, object] = {change.name: change.value}
                lacks = ""
            case ChangeKind.SCALE:
                found = dict(self._scale(change.name, float(change.value)))
                lacks = "is not a number in the description, so that nothing can be multiplied"
            case ChangeKind.DROP:
                found = {} if self._find_stated(change.name) is None else {change.name: None}
                lacks = "is not in the description, so that nothing is taken away"
            case ChangeKind.REMOVE:
                found = dict(self._remove(change))
                lacks = f"has no value {change.value} in the description, so that nothing is taken away"
        self.changed |= found
        return None if found else Problem(path=change.name, message=f"{change.name} {lacks}")

    def _scale(self, name: str, factor: float) -> Iterator[tuple[str, object]]:
        if (old := self._find_number(name)) is not None:
            yield name, _multiply(old, factor)
        elif fold(name) == fold(MEMORY):
            stated = {each: self._find_number(each) for each in _MEMORIES}
            found = stated if any(stated.values()) else self._find_given()
            yield from ((each, _multiply(old, factor)) for each, old in found.items() if old)

    def _find_given(self) -> Mapping[str, float | None]:
        """The memory that a job without a request was given, by keyword: the limit of its document."""
        limits = {
            keyword: _as_float(documents.read_field(self.body, documents.place_limit(part)))
            for part, keyword in documents.MEMORY.items()
        }
        return limits if self.ram_mb and any(limits.values()) else {"MinRAM": self.ram_mb}

    def _remove(self, change: ValueChange) -> Iterator[tuple[str, object]]:
        old = self._find_stated(change.name)
        members = old if isinstance(old, list) else [old]
        left = [each for each in members if fold(f"{each}") != fold(f"{change.value}")]
        if len(left) < len(members):
            yield change.name, left or None

    def _find_number(self, name: str) -> float | None:
        """The number that a keyword, also by default, or a part of the Requirements has."""
        keyword = keywords.find_keyword(name)
        if keyword is None or fold(name) in map(fold, self.changed):
            return _as_float(self._find_stated(name))
        if (of_document := self._find_in_document(name)) is not None:
            return _as_float(of_document)
        of_memory = documents.MEMORY.values()
        if keyword.name in of_memory and all(self._find_stated(each) is None for each in of_memory):
            defaults = self.options.job_description.filled_in  # they count together
        else:
            defaults = self.options.job_description.list_defaults(self.body)
        stated = {**defaults, **self.body}
        return _as_float(stated.get(keyword.name, keywords.DEFAULTS.get(keyword.name)))

    def _find_stated(self, name: str) -> object:
        """The value of a keyword that is stated, or of a part of the Requirements; None: there is none."""
        keyword = keywords.find_keyword(name)
        spelled = name if keyword is None else keyword.name
        for values in (self.changed, self.body):
            for each, value in values.items():
                if fold(each) in (fold(name), fold(spelled)):
                    return value
        if (of_document := self._find_in_document(name)) is not None:
            return of_document
        requirements = self.body.get("Requirements")
        if isinstance(requirements, str):
            parts = [(each.name, each.value) for each in changes.read_comparisons(requirements)]
        else:
            parts = [*requirements.items()] if isinstance(requirements, Mapping) else []
        return next((value for part, value in parts if fold(part) == fold(name)), None)

    def _find_in_document(self, name: str) -> object:
        """The value of a keyword in the document of the description; None: it has none there."""
        keyword = keywords.find_keyword(name)
        return None if keyword is None else documents.read_stated(self.body, keyword.name)


def _multiply(old: float, factor: float) -> int | float:
    """Rounded up to a whole number where the old one is whole; what is infinite is refused as too large."""
    new = max(-sys.float_info.max, min(round(old * factor, 6), sys.float_info.max))
    return ceil(new) if normal_number(old) == int(old) else new


def _as_float(value: object) -> float | None:
    number = as_number(value) if isinstance(value, str) else value
    return number if isinstance(number, int | float) and not isinstance(number, bool) else None
