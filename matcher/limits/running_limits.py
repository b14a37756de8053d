"""Running limits and matching delays of a place, or of all sites: the jobs that they exclude now.

A limit in `Operations/Defaults` counts the jobs of all VOs. A limit of a VO counts only its own jobs and
replaces the same limit of `Defaults` for them. A limit at the node of a site or CE holds for all VOs, beside
those of the operations.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Row

from cs_config.cache import derived
from cs_config.options import place_limits
from cs_config.options.place_limits import LimitKey, MatchingDelay, RunningLimit
from cs_config.source.sections import model_section
from cs_config.tree.configuration import Configuration
from matcher.limits.job_groups import JobView
from requirements.errors import format_count
from requirements.values import fold
from taskqueue.db import clock
from taskqueue.sites import occupancy, scope_rules, scopes
from taskqueue.sites.occupancy import JobsAndCores
from taskqueue.sites.scope_rules import OF_SITE, BucketKey, BucketLevel, Counting, RuleKind, StoredRule
from taskqueue.task_queues.task_queues import TaskQueue

#: The attribute of floors.
VO = "VO"
#: Attributes whose values are people and their work, of whichever VO.
_PERSONAL = frozenset(map(fold, ("Owner", "OwnerGroup", "JobGroup")))

LimitedJob = Row[*tuple[Any, ...]] | JobView


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRule:
    """A limit or delay with the VOs that it applies to."""

    limit: RunningLimit | MatchingDelay
    vo: str | None  #: None: all VOs
    exempt: frozenset[str]  #: VOs with a limit of their own instead
    is_of_site: bool = False  #: written at the node of the site or CE

    def is_about(self, vo: str) -> bool:
        """Whether it applies to the jobs of this VO."""
        return vo == self.vo if self.vo is not None else vo not in self.exempt

    def counts(self, vo: str) -> bool:
        """Whether jobs of this VO use it up; a common running limit counts also VOs with their own."""
        return self.is_about(vo) or (self.vo is None and isinstance(self.limit, RunningLimit))

    def concerns(self, limited: LimitedJob | TaskQueue) -> bool:
        """Whether the rule is certain to limit this job, or all jobs of this task queue."""
        return self.is_about(limited.vo) and self._is_limited(limited)

    def is_used_by(self, limited: LimitedJob | TaskQueue) -> bool:
        """Whether this job, or all jobs of this task queue, are certain to count once they are taken."""
        return self.counts(limited.vo) and self._is_limited(limited)

    def _is_limited(self, limited: LimitedJob | TaskQueue) -> bool:
        value = find_value(limited, self.limit.attribute)
        return value is not None and self.limits(value)

    def limits(self, value: str) -> bool:
        """Whether this is the limited value; case is ignored, so that spelling cannot evade a limit."""
        return fold(value) == fold(self.limit.value)

    def is_visible(self, vos: Collection[str] | None) -> bool:
        """Whether members of these VOs may see it: it is theirs or common; None: sees everything.

        A common one that names a VO is that VO's; one that names a person or group may be of any VO.
        """
        if vos is None or self.vo is not None:
            return vos is None or self.vo in vos
        if fold(self.limit.attribute) == fold(VO):
            return any(self.limits(vo) for vo in vos)
        return fold(self.limit.attribute) not in _PERSONAL

    @property
    def stored_vo(self) -> str:
        """The VO as it is part of the key of a rule."""
        return OF_SITE if self.is_of_site else self.vo or ""

    @property
    def option(self) -> str:
        """The name of the option, as text for people."""
        name = "RunningLimit" if isinstance(self.limit, RunningLimit) else "MatchingDelay"
        return f"own {name}" if self.is_of_site else name

    @property
    def about(self) -> str:
        """The limited jobs, as text for people."""
        of_vo = f" of the VO {self.vo}" if self.vo is not None else ""
        return f"{self.limit.attribute} {self.limit.value}{of_vo}"


@dataclass(slots=True, kw_only=True)
class RunningLimitState:
    """A running limit with the present number of jobs, and of their cores."""

    rule: PlaceRule
    limit: RunningLimit
    there: int
    cores: int = 0  #: of these jobs
    bucket: "DelayBucket | None" = None  #: of a limit with a ramp
    rule_id: int = 0  #: of the counter; 0: the rows were counted
    opened: bool = True  #: False: a new rule that admits no job yet
    changed: bool = False

    @property
    def counting(self) -> Counting:
        """Its entry in `attempts.counted_by`."""
        return self.rule_id, self.rule.limit.scope

    @property
    def full(self) -> bool:
        """Whether no further job is admitted now, however small."""
        return self.excludes(1)

    def excludes(self, cores: int) -> bool:
        """Whether no further job with so many cores is admitted now."""
        has_no_room = self._has_enough_jobs or _is_above(self.cores + cores, self.limit.cores)
        return not self.opened or has_no_room or self._is_slowed

    @property
    def _has_enough_jobs(self) -> bool:
        return _is_above(self.there + 1, self.limit.most)

    @property
    def _is_slowed(self) -> bool:
        """Whether the next job has to wait for a token of the ramp."""
        is_above_curb = _is_above(self.there + 1, self.limit.curb)
        return self.bucket is not None and is_above_curb and self.bucket.full

    @property
    def why(self) -> str:
        """Reason, as text for people."""
        there = format_count(self.there, "job")
        if self.limit.cores is not None:
            there += f" and {format_count(self.cores, 'core')}"
        has = f"has {there} with {self.rule.about}, its {self.rule.option} is {self.limit.bounds}"
        if not self.opened and not self.limit.is_bound:
            return f"counts its jobs with {self.rule.about} for its floors and takes none until that is done"
        if not self.opened:
            return f"{has}: it takes none until these are counted, within a minute"
        if self.bucket is None or self._has_enough_jobs:
            return has
        wait = f"{self.limit.interval:g} s, the next in {self.bucket.wait} s"
        return f"{has}: from {self.limit.curb} on it takes one every {wait}"

    def matched(self, vo: str, cores: int) -> None:
        """Count a taken job of a VO; that of a VO with a limit of its own takes no token."""
        self.there += 1
        self.cores += cores
        self.changed = True
        is_above_curb = _is_above(self.there, self.limit.curb)
        if self.bucket is not None and self.rule.is_about(vo) and is_above_curb:
            self.bucket.matched(vo, cores)


def _is_above(number: int, most: int | None) -> bool:
    return most is not None and number > most


@dataclass(slots=True, kw_only=True)
class DelayBucket:
    """A matching delay with its token bucket."""

    rule: PlaceRule
    delay: MatchingDelay
    key: BucketKey
    tokens: float
    at: datetime  #: time of this level
    changed: bool = False

    @property
    def full(self) -> bool:
        """Whether no job is admitted before the next token."""
        return self.tokens < 1

    def excludes(self, _cores: int) -> bool:
        """Whether no job is admitted before the next token, whatever its size."""
        return self.full

    @property
    def wait(self) -> int:
        """Seconds until the next token."""
        return max(0, math.ceil((1 - self.tokens) * self.delay.seconds))

    @property
    def why(self) -> str:
        """Reason, as text for people."""
        return (
            f"takes a job with {self.rule.about} every {self.delay.seconds:g} s ({self.rule.option}), "
            f"the next in {self.wait} s"
        )

    def matched(self, _vo: str, _cores: int) -> None:
        """Take a token."""
        self.tokens -= 1
        self.changed = True


PlaceCondition = RunningLimitState | DelayBucket


def keeps_out(condition: PlaceCondition, job: LimitedJob, cores: int) -> bool:
    """Whether a job, which would get so many cores, is excluded now."""
    return condition.excludes(cores) and condition.rule.concerns(job)


#: Folded parts of a name, the site first: equal for every spelling of a `Site`, `Site/CE` or `Site/CE/Queue`.
FoldedAddress = tuple[str, ...]


def _fold_address(name: str) -> FoldedAddress:
    return tuple(map(fold, name.split("/")))


@derived
def tree_spellings(config: Configuration) -> Mapping[FoldedAddress, str]:
    """Every site, CE and queue of the tree, as spelled there."""
    names = {name for each in config.addresses for name in scopes.list_enclosing(str(each))}
    return {_fold_address(name): name for name in names | config.sites}


@derived
def rules_by_scope(config: Configuration) -> Mapping[str, Sequence[PlaceRule]]:
    """All limits and delays by scope, as spelled in the tree."""
    found: defaultdict[str, list[PlaceRule]] = defaultdict(list)
    spelled = tree_spellings(config)
    for rule in _collect_rules(config):
        found[spelled.get(_fold_address(rule.limit.scope), rule.limit.scope)].append(rule)
    return dict(found)


def scopes_counting(config: Configuration, vos: Collection[str]) -> list[str]:
    """The scopes with a rule that counts jobs of one of these VOs."""
    by_scope = rules_by_scope(config).items()
    return [scope for scope, rules in by_scope if any(rule.counts(vo) for rule in rules for vo in vos)]


@derived
def scopes_with_rules(config: Configuration) -> Mapping[FoldedAddress, str]:
    """The scopes of `rules_by_scope` and those enclosing them, by folded address."""
    names = {name for scope in rules_by_scope(config) for name in scopes.list_enclosing(scope)}
    return {_fold_address(name): name for name in names}


def read_conditions(
    conn: Connection, config: Configuration, names: Collection[str], now: datetime
) -> Mapping[str, list[PlaceCondition]]:
    """Current state of the limits and delays of a configuration at these scopes; advisory.

    For explanations and previews, whose configuration need not be the one in force: what is limited in it
    alone is counted from the rows.
    """
    known = rules_by_scope(config)
    concerned = {scope: known[scope] for scope in names}
    rules = list(chain(*concerned.values()))
    buckets = read_buckets(conn, rules, now)
    stored = _read_stored(conn, rules)
    return {
        scope: [
            *_read_running(conn, scope, these, buckets, stored),
            *(buckets[rule] for rule in these if isinstance(rule.limit, MatchingDelay)),
        ]
        for scope, these in concerned.items()
    }


def read_buckets(
    conn: Connection, rules: Sequence[PlaceRule], now: datetime
) -> Mapping[PlaceRule, DelayBucket]:
    """Current state of the delays and ramps among these rules; exact while their scopes are locked."""
    delays = {rule: delay for rule in rules if (delay := find_delay(rule)) is not None}
    if not delays:
        return {}
    levels = scope_rules.read_levels(conn, {fold(delay.scope) for delay in delays.values()})
    at = clock.read_time(conn, now)
    return {rule: _build_bucket(rule, delay, levels, at) for rule, delay in delays.items()}


def find_delay(rule: PlaceRule) -> MatchingDelay | None:
    """The delay or ramp of a rule; None: it bounds only the number of jobs."""
    return rule.limit if isinstance(rule.limit, MatchingDelay) else rule.limit.ramp


def find_value(limited: LimitedJob | TaskQueue, attribute: str) -> str | None:
    """The value of a job, or the one common to all jobs of a task queue; None: they may differ."""
    column = place_limits.ATTRIBUTES[attribute]
    if not isinstance(limited, TaskQueue):
        return getattr(limited, column) or ""
    required = limited.requirement_class
    if column == "job_type":
        return min(required.job_types) if len(required.job_types) == 1 else None
    if column == "submit_pool":
        return required.submit_pool or ""
    return getattr(limited, column, None)


def _collect_rules(config: Configuration) -> Iterator[PlaceRule]:
    common = frozenset(_scheduling_rules(config.default_operations.job_scheduling))
    effective = {vo: _scheduling_rules(each.job_scheduling) for vo, each in config.vo_operations.items()}
    stated = _list_stated(config)
    # A limit that a VO states is its own also where it equals the common one.
    own = {
        vo: frozenset(each for each in limits if each not in common or _limit_key(each) in stated[vo])
        for vo, limits in effective.items()
    }
    for limit in common:
        exempt = (vo for vo, limits in effective.items() if limit not in limits or limit in own[vo])
        yield PlaceRule(limit=limit, vo=None, exempt=frozenset(exempt))
    for vo, limits in own.items():
        for limit in limits:
            yield PlaceRule(limit=limit, vo=vo, exempt=frozenset())
    for limit in _list_own(config):
        yield PlaceRule(limit=limit, vo=None, exempt=frozenset(), is_of_site=True)


def _list_own(config: Configuration) -> Iterator[RunningLimit | MatchingDelay]:
    """The limits that sites and CEs have themselves: that of a VO and its floor at a site are one.

    Where a floor is a part of all jobs at a site, the jobs of every VO are counted there.
    """
    floors = {
        (fold(each.scope), fold(each.value)): each
        for each in config.limits
        if isinstance(each, RunningLimit) and each.floor is not None
    }
    of_parts = {each.scope for each in floors.values() if each.floor and each.floor.percent is not None}
    for scope in of_parts:
        for vo in config.vos:
            plain = RunningLimit(scope=scope, attribute=VO, value=vo)
            floors.setdefault((fold(scope), fold(vo)), plain)
    for each in config.limits:
        if isinstance(each, RunningLimit):
            if each.floor is not None:
                continue
            if each.attribute == VO and (floor := floors.pop((fold(each.scope), fold(each.value)), None)):
                yield replace(each, floor=floor.floor)
                continue
        yield each
    yield from floors.values()


def _limit_key(limit: RunningLimit | MatchingDelay) -> tuple[type, LimitKey]:
    return type(limit), (limit.scope, limit.attribute, limit.value)


def _list_stated(config: Configuration) -> Mapping[str, Collection[tuple[type, LimitKey]]]:
    """The limits in each VO's own section, without the defaults."""
    kinds = {"RunningLimit": RunningLimit, "MatchingDelay": MatchingDelay}
    return {
        fold(vo): frozenset(
            (kind, key)
            for name, kind in kinds.items()
            for key in place_limits.list_keys(model_section(section.section("JobScheduling").section(name)))
        )
        for vo, section in config.root.section("Operations").sections()
    }


def _scheduling_rules(scheduling: Any) -> tuple[RunningLimit | MatchingDelay, ...]:
    return *scheduling.running_limit, *scheduling.matching_delay


def is_open(stored: StoredRule, limit: RunningLimit) -> bool:
    """Whether a stored limit admits jobs: all that it bounds is counted."""
    return stored.opened and (limit.cores is None or stored.cores is not None)


def _read_stored(conn: Connection, rules: Iterable[PlaceRule]) -> Mapping[tuple[str, ...], StoredRule]:
    """The stored running limits at the scopes of these rules, by `ScopeRule.key`."""
    names = {fold(each.limit.scope) for each in rules if isinstance(each.limit, RunningLimit)}
    stored = scope_rules.read_rules(conn, names) if names else ()
    return {each.key: each for each in stored if each.kind is RuleKind.RUNNING and each.known}


def _read_running(
    conn: Connection,
    scope: str,
    these: Sequence[PlaceRule],
    buckets: Mapping[PlaceRule, DelayBucket],
    stored: Mapping[tuple[str, ...], StoredRule],
) -> Iterator[RunningLimitState]:
    rows: dict[str, Mapping[tuple[str, str], JobsAndCores]] = {}
    for rule in these:
        limit = rule.limit
        if isinstance(limit, RunningLimit):
            known = stored.get(_build_key(rule, RuleKind.RUNNING))
            if known is not None and known.opened and known.cores is not None:
                found = JobsAndCores(known.n, known.cores)
            else:
                if limit.attribute not in rows:
                    rows[limit.attribute] = occupancy.count_by_value(conn, scope, limit.attribute)
                counts = rows[limit.attribute].items()
                counted = (n for (vo, value), n in counts if rule.counts(vo) and rule.limits(value))
                found = sum(counted, JobsAndCores())
            yield RunningLimitState(
                rule=rule,
                limit=limit,
                there=found.jobs,
                cores=found.cores,
                bucket=buckets.get(rule),
                opened=known is None or is_open(known, limit),
            )


def _build_key(rule: PlaceRule, kind: RuleKind) -> BucketKey:
    """The `ScopeRule.key` of a rule."""
    return fold(rule.limit.scope), kind, rule.limit.attribute, fold(rule.limit.value), rule.stored_vo


def _build_bucket(
    rule: PlaceRule, delay: MatchingDelay, levels: Mapping[BucketKey, BucketLevel], now: datetime
) -> DelayBucket:
    kind = RuleKind.RUNNING if isinstance(rule.limit, RunningLimit) else RuleKind.DELAY
    key = _build_key(rule, kind)
    return DelayBucket(
        rule=rule, delay=delay, key=key, tokens=_count_tokens(delay, levels.get(key), now), at=now
    )


def _count_tokens(delay: MatchingDelay, level: BucketLevel | None, now: datetime) -> float:
    if level is None or delay.seconds == 0:
        return delay.burst
    passed = max(0.0, (now - level.at).total_seconds())
    return min(float(delay.burst), level.tokens + passed / delay.seconds)
