"""Admission rules of a queue: its `Requirements` and its `Checks` on jobs.

They are parameters like any other: a deeper level overrides, `VOs/<vo>` overrides the plain value. In an
expression, bare names, `MY.` and `self.` refer to the queue's ad (including its address); `other.` and
`TARGET.` refer to the job and its owner; a bare name that the queue does not have refers to the job.

Source: HTCondor's matchmaking; gLite's CE ads.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from cs_config.cache import Cache
from cs_config.tree.inheritance import as_tuple
from requirements.classad import match_expression
from requirements.classad.match_expression import TwoSided
from requirements.errors import InvalidInput, Problem
from requirements.record import Reason, ReasonKind
from requirements.values import Value, exact, fold, format_value

REQUIREMENTS = "requirements"
RANK = "rank"
CHECKS = "checks"
#: Parameters that are expressions, by folded name.
EXPRESSIONS = frozenset({REQUIREMENTS, RANK})
#: Checks of a queue without `Checks`, folded; a missing one is ignored.
DEFAULT_CHECKS = frozenset({"authorizationcheck", "closeoutputsecheck"})
#: Parameters by which a site decides on access.
ACCESS = DEFAULT_CHECKS | {"vo", REQUIREMENTS, CHECKS}
#: Name of a queue's requirements in explanations.
OF_QUEUE = "Requirements of the queue"
#: Largest number of cached results.
_CACHE_SIZE = 10_000

#: Values of the job's attributes that affect the result.
Projection = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionExpression:
    """One expression that must be true."""

    name: str  #: of the check, or `OF_QUEUE`
    expression: TwoSided


class Admission:
    """The admission rules of one queue for the jobs of a VO, with a cache of results."""

    def __init__(self, own: Mapping[str, Value], conditions: tuple[AdmissionExpression, ...]) -> None:
        self._own = own
        self.conditions = conditions
        names = {name for each in conditions for name in each.expression.other_names(own)}
        #: Folded names of the job's attributes that affect the result.
        self.asks = tuple(sorted(map(fold, names)))
        self._cache: Cache[Projection, bool] = Cache(_CACHE_SIZE)

    @cached_property
    def key(self) -> Hashable:
        """Cache key, equal for queues with equal rules."""
        looked_at = sorted({fold(name) for each in self.conditions for name in each.expression.own_names})
        texts = tuple((each.name, each.expression.text) for each in self.conditions)
        return texts, tuple((name, exact(self._own.get(name))) for name in looked_at)

    def admits(self, job: Mapping[str, Value]) -> bool:
        """Whether a job, given by folded names, fulfils all conditions."""
        return self._cache.get(
            self.projection(job),
            lambda: all(each.expression.is_true(self._own, job) for each in self.conditions),
        )

    def projection(self, job: Mapping[str, Value]) -> Projection:
        """The job's values that affect the result; jobs with equal values have equal results."""
        return tuple(exact(job.get(name)) for name in self.asks)

    def failing(self, job: Mapping[str, Value]) -> tuple[Reason, ...]:
        """All unfulfilled parts, with the values of their names; empty if and only if the job is admitted."""
        found = ((each, part) for each in self.conditions for part in each.expression.failing(self._own, job))
        kind = ReasonKind.EXPRESSION
        return tuple(
            Reason(requirement=each.name, wanted=part.text, has=part.has(self._own, job) or None, kind=kind)
            for each, part in found
        )


def read_expression(value: Value, path: str) -> TwoSided:
    """Parse the expression of a parameter; InvalidInput if it is none, or may not be evaluated."""
    if isinstance(value, tuple):
        raise InvalidInput([Problem(path=path, message="a list, allowed is a ClassAd expression")])
    return match_expression.parse_match_expression(format_value(value), path, bare_is_either=True)


def read_admission(ad: Mapping[str, Value]) -> Admission | None:
    """The admission rules of a queue with this ad; None if it has none."""
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
    """The checks of a queue (given by folded names): folded name to spelling."""
    listed = own.get(CHECKS)
    if listed is None:
        return {fold(name): name for name in ("AuthorizationCheck", "CloseOutputSECheck")}
    return {fold(str(name)): str(name) for name in as_tuple(listed)}


def _parse_known(value: Value, name: str) -> TwoSided:
    """Parse an expression that was validated before; if it is invalid after all, it is never true."""
    try:
        return read_expression(value, name)
    except InvalidInput:
        return match_expression.parse_match_expression("false", name)
