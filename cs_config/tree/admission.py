"""What a queue asks of a job before it is handed out there: its `Requirements` and its `Checks`.

These are parameters like any other: a deeper level overrides, `VOs/<vo>` over the plain one. An expression
sees the queue's ad (also with its address) under bare names, `MY.` and `self.`, the job and whose it is
under `other.` and `TARGET.`; a bare name that the queue does not have is the job's.
Source: HTCondor's matchmaking; gLite's CE ads.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from requirements.classad import match_expression
from requirements.classad.match_expression import TwoSided
from requirements.errors import InvalidInput, Problem
from requirements.values import Value, exact, fold, format_value

REQUIREMENTS = "requirements"
RANK = "rank"
CHECKS = "checks"
#: Parameters that are expressions, by folded name.
EXPRESSIONS = frozenset({REQUIREMENTS, RANK})
#: The checks of a queue that does not say which, folded; one that it does not have is none.
DEFAULT_CHECKS = frozenset({"authorizationcheck", "closeoutputsecheck"})
#: What explanations call the requirements of a queue.
OF_QUEUE = "Requirements of the queue"
#: Verdicts that are remembered; beyond that we start anew.
_REMEMBERED = 10_000

#: Values of names of the job, of which nothing else makes a difference.
Projection = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionExpression:
    """One expression that must be true."""

    name: str  #: of the check, or `OF_QUEUE`
    expression: TwoSided


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A part of a condition that is not true of a job."""

    name: str  #: of the condition
    wanted: str  #: the part, as it is written
    has: str  #: what queue and job say of the names in it


class Admission:
    """What one queue asks of the jobs of a VO; remembers what it said."""

    def __init__(self, own: Mapping[str, Value], conditions: tuple[AdmissionExpression, ...]) -> None:
        self._own = own
        self.conditions = conditions
        asked = {name for each in conditions for name in each.expression.other_names(own)}
        #: Folded names of the job that make a difference.
        self.asks = tuple(sorted(map(fold, asked)))
        self._known: dict[Projection, bool] = {}

    @cached_property
    def key(self) -> Hashable:
        """The same for what asks the same of every job."""
        looked_at = sorted({fold(name) for each in self.conditions for name in each.expression.own_names})
        texts = tuple((each.name, each.expression.text) for each in self.conditions)
        return texts, tuple((name, exact(self._own.get(name))) for name in looked_at)

    def admits(self, job: Mapping[str, Value]) -> bool:
        """Whether all is true of a job, given by folded names."""
        projection = self.projection(job)
        if (known := self._known.get(projection)) is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = all(each.expression.is_true(self._own, job) for each in self.conditions)
            self._known[projection] = known
        return known

    def projection(self, job: Mapping[str, Value]) -> Projection:
        """What of a job makes a difference; jobs that agree in it are admitted alike."""
        return tuple(exact(job.get(name)) for name in self.asks)

    def misses(self, job: Mapping[str, Value]) -> tuple[Miss, ...]:
        """Everything that is not true of a job; empty if and only if it is admitted."""
        return tuple(
            Miss(name=each.name, wanted=part.text, has=part.has(self._own, job))
            for each in self.conditions
            for part in each.expression.failing(self._own, job)
        )


def read_expression(value: Value, path: str) -> TwoSided:
    """The expression that a parameter is.

    Raises:
        InvalidInput: It is none, or has what may not be evaluated.
    """
    if isinstance(value, tuple):
        raise InvalidInput([Problem(path=path, message="a list, allowed is a ClassAd expression")])
    return match_expression.parse_match_expression(format_value(value), path, bare_is_either=True)


def read_admission(ad: Mapping[str, Value]) -> Admission | None:
    """What a queue with this ad asks; None: nothing."""
    own = {fold(name): value for name, value in ad.items()}
    conditions = tuple(_conditions(own))
    return Admission(own, conditions) if conditions else None


def _conditions(own: Mapping[str, Value]) -> Iterator[AdmissionExpression]:
    if REQUIREMENTS in own:
        yield AdmissionExpression(name=OF_QUEUE, expression=_parse_known(own[REQUIREMENTS], OF_QUEUE))
    for folded, name in list_checks(own).items():
        if folded in own:
            yield AdmissionExpression(name=name, expression=_parse_known(own[folded], name))


def list_checks(own: Mapping[str, Value]) -> Mapping[str, str]:
    """Folded names of the checks of a queue, given by folded names, as they are spelled."""
    listed = own.get(CHECKS)
    if listed is None:
        return {fold(name): name for name in ("AuthorizationCheck", "CloseOutputSECheck")}
    return {fold(str(name)): str(name) for name in (listed if isinstance(listed, tuple) else (listed,))}


def _parse_known(value: Value, name: str) -> TwoSided:
    """An expression of a configuration that was checked; what is none after all is never true."""
    try:
        return read_expression(value, name)
    except InvalidInput:
        return match_expression.parse_match_expression("false", name)
