"""Throttles as pure arithmetic: the room that a policy leaves by counters, limits and matches.

`CurMatches` is the policy's start value plus the reserved matches, which the advertisement does not contain;
`JobsMatchedSinceLastAdvertisement` is the reserved ones alone. An expression that cannot be evaluated closes
its own throttle and nothing else. Source: SAM-Grid's job matching policies and resource brokering.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cs_config.tree.throttle import LIMITS, Policy, Throttle
from requirements.classad import match_expression
from requirements.classad.match_expression import TwoSided
from requirements.errors import InvalidInput
from requirements.values import Value, as_value, fold, lookup, normal_number


def read_expression(text: Value) -> TwoSided:
    """Advertised texts were checked before they were stored; any other invalid text counts as false."""
    try:
        return match_expression.parse_match_expression(
            str(text).lower() if isinstance(text, bool) else str(text)
        )
    except InvalidInput:
        return match_expression.parse_match_expression("false")


def are_true(expressions: Sequence[TwoSided], own: Mapping[str, Value], job: Mapping[str, Value]) -> bool:
    """Whether all are true of a job; false where a value cannot be compared."""
    try:
        return all(each.is_true(own, job) for each in expressions)
    except InvalidInput:
        return False


def list_refusing(expressions: Sequence[TwoSided], own: Mapping[str, Value], job: Mapping[str, Value]) -> str:
    """The conditions that are not true of a job, with the values of both sides."""
    failing = (part for each in expressions for part in _list_failing(each, own, job))
    return "; ".join(_format_condition(part, own, job) for part in failing)


def list_closing(expressions: Sequence[TwoSided], own: Mapping[str, Value]) -> str:
    """The false conditions that read only the site, so that no job can make the whole true."""
    parts = (part for each in expressions for part in each.parts or (each,) if not part.asks_other)
    # A bare number may count as true beside another condition.
    false = (
        part for part in parts if _list_failing(part, own, {}) and type(part.value(own)) not in (int, float)
    )
    return "; ".join(_format_condition(part, own, {}) for part in false)


def _list_failing(
    expression: TwoSided, own: Mapping[str, Value], job: Mapping[str, Value]
) -> tuple[TwoSided, ...]:
    """The failing parts; empty where a value cannot be compared."""
    try:
        return expression.failing(own, job)
    except InvalidInput:
        return ()


def _format_condition(part: TwoSided, own: Mapping[str, Value], job: Mapping[str, Value]) -> str:
    values = f": {part.has(own, job)}" if part.compiled.names else ""
    return f"{part.text} is not true{values}"


JOBS = "CurrentJobs"
SUBMITTING = "CurrentSubmittingJobs"
GATHERING = "CurrentGatheringOutputJobs"
PENDING = "CurrentPendingJobs"
#: Counters advertised by sites.
COUNTERS = (JOBS, SUBMITTING, GATHERING, PENDING)
CUR_MATCHES = "CurMatches"
SINCE = "JobsMatchedSinceLastAdvertisement"
REQUIREMENTS = "Requirements"

#: Bounds of each policy, all of which must hold: the sum of these counters and the reserved matches must stay
#: below this limit.
BOUNDS: Mapping[Policy, tuple[tuple[tuple[str, ...], str], ...]] = {
    Policy.LEVEL0: (((SUBMITTING,), "MaxSubmittingJobs"),),
    Policy.LEVEL1: (((SUBMITTING, GATHERING), "MaxSubmittingAndOutputGatheringJobs"),),
    Policy.LEVEL2: (((JOBS,), "MaxJobs"), ((SUBMITTING, GATHERING), "MaxSubmittingAndOutputGatheringJobs")),
    Policy.BROKERING: (((JOBS,), "MaxJobs"), ((SUBMITTING,), "MaxSubmittingJobs")),
    Policy.PENDING: (((PENDING,), "MaxPendingJobs"),),
    Policy.SIMPLE: (((JOBS,), "MaxJobs"),),
    Policy.EXPRESSION: (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleRoom:
    """How many jobs may still be matched."""

    jobs: int | None  #: None: unlimited
    why: str | None = None  #: reason for no room


OPEN = ThrottleRoom(jobs=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One bound of a policy with its current values."""

    counters: tuple[str, ...]  #: summed
    reported: float | None  #: advertised sum; None: not advertised
    reserved: int  #: matches counted in addition
    limit_name: str
    limit: float | None  #: None: not set


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleState:
    """A throttle with the state of its scope at one moment."""

    throttle: Throttle
    advertised: Mapping[str, Value] = field(default_factory=dict)
    reserved: int = 0  #: matches that the advertised counters do not contain

    @property
    def start(self) -> float | None:
        """The start value of CurMatches; None: its counters were not advertised."""
        if self.throttle.policy is Policy.EXPRESSION:
            return self._advertised_start()
        counters, _ = BOUNDS[self.throttle.policy][0]
        return self._sum(counters)

    @property
    def cur_matches(self) -> float | None:
        """Start value plus reserved matches; None: unknown, or too large for an expression."""
        start = self.start
        found = None if start is None else start + self.reserved
        return found if found is not None and match_expression.is_reckonable(found) else None

    @property
    def limits(self) -> Mapping[str, float]:
        """Limits set by configuration or advertisement; the smaller one counts."""
        found: dict[str, float] = {}
        for name, option in LIMITS.items():
            stated = getattr(self.throttle, option), _number(lookup(self.advertised, name))
            if values := [value for value in stated if value is not None]:
                found[name] = normal_number(min(values))
        return found

    @property
    def counters(self) -> Mapping[str, float]:
        """Advertised counters, CurMatches and the matches since the advertisement."""
        found = {name: _number(lookup(self.advertised, name)) for name in COUNTERS}
        found |= {SINCE: self.reserved, CUR_MATCHES: self.cur_matches}
        return {name: normal_number(value) for name, value in found.items() if value is not None}

    @property
    def gauges(self) -> tuple[Gauge, ...]:
        """The bounds that must all hold; an expression has none."""
        limits = self.limits
        reserved = 0 if self.throttle.policy is Policy.SIMPLE else self.reserved
        return tuple(
            Gauge(
                counters=counters,
                reported=self._sum(counters),
                reserved=reserved,
                limit_name=name,
                limit=limits.get(name),
            )
            for counters, name in BOUNDS[self.throttle.policy]
        )

    def room(self) -> ThrottleRoom:
        """How many jobs the counters leave room for.

        An expression that reads the job is not evaluated here; see `admits`.
        """
        if self.throttle.policy is Policy.EXPRESSION:
            return self._room_by_expression()
        rooms = [self._within(counters, limit) for counters, limit in BOUNDS[self.throttle.policy]]
        return min(rooms, key=lambda room: float("inf") if room.jobs is None else room.jobs)

    @property
    def depends_on_job(self) -> bool:
        """Whether an expression reads the job."""
        return any(each.asks_other for each in self._expressions())

    @property
    def asks(self) -> frozenset[str]:
        """The folded names of job attributes that an expression reads."""
        own = self.attributes()
        return frozenset(fold(name) for each in self._expressions() for name in each.other_names(own))

    @property
    def reads(self) -> frozenset[str]:
        """The folded names of advertised attributes that decide here."""
        policy = self.throttle.policy
        if policy is not Policy.EXPRESSION:
            names = {name for counters, limit in BOUNDS[policy] for name in (*counters, limit)}
            return frozenset(map(fold, names))
        start = lookup(self.advertised, CUR_MATCHES)
        started = [read_expression(start)] if isinstance(start, str) else []
        inside = {name for each in (*self._expressions(), *started) for name in each.own_names}
        fixed = (REQUIREMENTS, CUR_MATCHES, JOBS, *LIMITS)
        return frozenset(map(fold, (*fixed, *inside)))

    def admits(self, job: Mapping[str, Value]) -> bool:
        """Whether the expression is true of this job; policies without one admit any."""
        if self.throttle.policy is not Policy.EXPRESSION:
            return True
        return are_true(self._expressions(), self.attributes(), job)

    def refuses(self, job: Mapping[str, Value]) -> str | None:
        """The conditions that are not true of this job, with the values of both sides; None: admitted."""
        if self.admits(job):
            return None
        return list_refusing(self._expressions(), self.attributes(), job) or f"{REQUIREMENTS} is not true"

    def attributes(self) -> Mapping[str, Value]:
        """The site's own attributes in an expression."""
        cur_matches = self.cur_matches
        counted = {} if cur_matches is None else {CUR_MATCHES: cur_matches}
        fixed = {*map(str.lower, (CUR_MATCHES, SINCE, *self.limits))}
        others = {name: value for name, value in self.advertised.items() if name.lower() not in fixed}
        return {**others, **self.limits, **counted, SINCE: self.reserved}

    def _within(self, counters: tuple[str, ...], limit_name: str) -> ThrottleRoom:
        limit, used = self.limits.get(limit_name), self._sum(counters)
        if limit is None:
            return ThrottleRoom(jobs=0, why=f"limit not set: {limit_name}")
        if used is None:
            return ThrottleRoom(jobs=0, why=f"not advertised: {' or '.join(counters)}")
        if self.throttle.policy is Policy.SIMPLE:
            return (
                OPEN
                if used < limit
                else ThrottleRoom(jobs=0, why=f"{counters[0]} {used:g} ≥ {limit_name} {limit:g}")
            )
        # the number of jobs that fit below the limit: rounded up
        free = -int(-(limit - used - self.reserved) // 1)
        if free > 0:
            return ThrottleRoom(jobs=free)
        shown = " + ".join((*counters, SINCE))
        return ThrottleRoom(jobs=0, why=f"{shown} = {used + self.reserved:g} ≥ {limit_name} {limit:g}")

    def _room_by_expression(self) -> ThrottleRoom:
        expressions = self._expressions()
        if not expressions:
            return ThrottleRoom(jobs=0, why=f"limit not set: {REQUIREMENTS}")
        own = self.attributes()
        depends_on_job = self.depends_on_job
        if not depends_on_job and are_true(expressions, own, {}):
            return ThrottleRoom(jobs=1)  # one at a time: the expression is evaluated again after each match
        if closed := list_closing(expressions, own):
            return ThrottleRoom(jobs=0, why=closed)
        return OPEN if depends_on_job else ThrottleRoom(jobs=0, why=f"{REQUIREMENTS} is not true")

    def _expressions(self) -> list[TwoSided]:
        if self.throttle.policy is not Policy.EXPRESSION:
            return []
        texts = (self.throttle.requirements, lookup(self.advertised, REQUIREMENTS))
        return [read_expression(text) for text in texts if text is not None]

    def _advertised_start(self) -> float | None:
        stated = lookup(self.advertised, CUR_MATCHES)
        if isinstance(stated, str):
            try:
                return match_expression.number(stated, self.advertised, CUR_MATCHES)
            except InvalidInput:
                return None
        return _number(stated) if stated is not None else self._sum((JOBS,))

    def _sum(self, counters: tuple[str, ...]) -> float | None:
        values = [_number(lookup(self.advertised, name)) for name in counters]
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None


def check_start(advertised: Mapping[str, Value]) -> None:
    """Refuse an advertised CurMatches that is not finite, or beyond the exact integers."""
    stated = lookup(advertised, CUR_MATCHES)
    if isinstance(stated, str):
        value = match_expression.parse_match_expression(stated, CUR_MATCHES).value(advertised)
        if type(value) in (int, float):
            as_value(value, CUR_MATCHES)


def _number(value: Value | None) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
