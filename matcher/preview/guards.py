"""Conditions on an outlook, such as `stuck_jobs=0`, that must hold for a change to be made."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matcher.preview.outlook import Outlook
from requirements.errors import InvalidRequest, PilotageError, Problem, did_you_mean

_COMPARISONS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "=": operator.eq,
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_GUARD: Final = re.compile(r"\s*(\w+)\s*(<=|>=|==|=|<|>)\s*(\d{1,15})\s*", re.ASCII)
#: Names allowed in a guard: the totals of an outlook.
NAMES: Final = tuple(Outlook().totals)


class GuardFailed(PilotageError):
    """A guard does not hold for the proposed change; nothing was changed."""

    code = "guard_failed"

    def __init__(self, failed: Sequence[str], totals: Mapping[str, int]) -> None:
        super().__init__("; ".join(failed))
        self.totals = totals

    @property
    def details(self) -> Mapping[str, object]:
        """The totals of the outlook."""
        return {"totals": dict(self.totals)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One condition on a total."""

    text: str
    name: str
    comparison: str
    number: int

    def holds(self, totals: Mapping[str, int]) -> bool:
        """Whether it is true of an outlook's totals."""
        return _COMPARISONS[self.comparison](totals[self.name], self.number)


def read_guards(texts: Iterable[str]) -> tuple[Guard, ...]:
    """Parse guards."""
    found = [_read(text) for text in texts]
    if problems := [each for each in found if isinstance(each, Problem)]:
        raise InvalidRequest(problems)
    return tuple(each for each in found if isinstance(each, Guard))


def _read(text: str) -> Guard | Problem:
    match = _GUARD.fullmatch(text)
    if match is None:
        message = "is not a guard: expected a name, a comparison and a number, such as stuck_jobs=0"
        return Problem(path=f"guard {text!r:.100}", message=message)
    name, comparison, number = match.groups()
    if name not in NAMES:
        message = f"{name} is unknown, allowed are {', '.join(NAMES)}"
        return Problem(path="guard", message=message, suggestion=did_you_mean(name, NAMES))
    return Guard(text=text.strip(), name=name, comparison=comparison, number=int(number))


def list_failing(guards: Iterable[Guard], outlook: Outlook) -> list[str]:
    """The guards that do not hold, each with the actual total."""
    totals = outlook.totals
    return [f"guard {g.text}: there would be {totals[g.name]}" for g in guards if not g.holds(totals)]


def check_guards(guards: Iterable[Guard], outlook: Outlook) -> None:
    """Check all guards; `GuardFailed` names each that does not hold, with the actual total."""
    if failed := list_failing(guards, outlook):
        raise GuardFailed(failed, outlook.totals)
