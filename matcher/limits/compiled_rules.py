"""Rules of a configuration as rows of scopes, and back: claims read the rows, not their own configuration."""

import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from threading import RLock

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from cs_config.cache import derived
from cs_config.options.place_limits import MatchingDelay, RunningLimit
from cs_config.tree.configuration import Configuration
from cs_config.tree.throttle import Throttle
from matcher.limits import running_limits
from matcher.limits.running_limits import PlaceRule
from requirements.values import fold
from taskqueue.db import database
from taskqueue.sites import rule_counters, scope_rules, scopes
from taskqueue.sites.rule_counters import RunningClaim
from taskqueue.sites.scope_rules import RuleKind, ScopeRule, StoredRule

#: Milliseconds to wait for a locked scope: claims for other places wait as well.
_LOCK_WAIT = 50
#: Seconds until the rules are compared again without a new configuration: the process that stored a rule may
#: have ended before it opened it.
_AGAIN = 10.0
#: Seconds for counting in one call, since claims for other places wait meanwhile.
_AT_A_TIME = 0.1
log = logging.getLogger(__name__)


@derived
def list_rules(config: Configuration) -> Mapping[str, tuple[ScopeRule, ...]]:
    """The rules of a configuration by folded scope, as they are stored."""
    found: defaultdict[str, list[ScopeRule]] = defaultdict(list)
    for spelled, rules in running_limits.rules_by_scope(config).items():
        found[fold(spelled)] += (_compile(fold(spelled), rule) for rule in rules)
    for spelled, throttle in config.throttles.items():
        definition = throttle.model_dump_json(by_alias=True)
        rule = ScopeRule(scope=fold(spelled), kind=RuleKind.THROTTLE, definition=definition)
        found[rule.scope].append(rule)
    # Of two spellings of one value the last one holds, as in the configuration.
    return {scope: tuple({rule.key: rule for rule in found[scope]}.values()) for scope in sorted(found)}


def read_place_rule(rule: StoredRule) -> PlaceRule:
    """The limit or delay that a row stands for."""
    return _parse_place_rule(rule.scope, rule.kind, rule.attribute, rule.vo, rule.definition)


@lru_cache(maxsize=10_000)
def read_throttle(definition: str) -> Throttle:
    """The throttle that a row stands for."""
    return Throttle.model_validate_json(definition, by_alias=True, by_name=True)


def counts(rule: StoredRule, vo: str, value: str) -> bool:
    """Whether a running limit counts jobs of the VO with this value."""
    place_rule = read_place_rule(rule)
    return place_rule.counts(vo) and place_rule.limits(value)


def may_count(rule: StoredRule, vos: Collection[str]) -> bool:
    """Whether a rule may count jobs of one of these VOs, as far as this release can read it."""
    if not rule.known or rule.kind is RuleKind.THROTTLE:
        return True
    return any(map(read_place_rule(rule).counts, vos))


def _compile(scope: str, rule: PlaceRule) -> ScopeRule:
    limit = rule.limit
    numbers: dict[str, object] = (
        {"most": limit.most, "curb": limit.curb, "interval": limit.interval}
        if isinstance(limit, RunningLimit)
        else {"seconds": limit.seconds, "burst": limit.burst}
    )
    definition = {"value": limit.value, "exempt": sorted(rule.exempt), **numbers}
    return ScopeRule(
        scope=scope,
        kind=RuleKind.RUNNING if isinstance(limit, RunningLimit) else RuleKind.DELAY,
        attribute=limit.attribute,
        value=fold(limit.value),
        vo=rule.stored_vo,
        definition=json.dumps(definition, sort_keys=True),
    )


@lru_cache(maxsize=10_000)
def _parse_place_rule(scope: str, kind: RuleKind, attribute: str, vo: str, definition: str) -> PlaceRule:
    stored = json.loads(definition)
    value = stored["value"]
    limit = (
        RunningLimit(
            scope=scope,
            attribute=attribute,
            value=value,
            most=stored["most"],
            curb=stored["curb"],
            interval=stored["interval"],
        )
        if kind is RuleKind.RUNNING
        else MatchingDelay(
            scope=scope,
            attribute=attribute,
            value=value,
            seconds=stored["seconds"],
            burst=stored["burst"],
        )
    )
    is_of_site = vo == scope_rules.OF_SITE
    return PlaceRule(
        limit=limit,
        vo=None if is_of_site else vo or None,
        exempt=frozenset(stored["exempt"]),
        is_of_site=is_of_site,
    )


class RuleFollower:
    """Keeps the rows up to date with the configuration of one process.

    The rows follow the latest version that any process has. Only scopes whose rules changed are written, each
    in a transaction of its own; one that is locked is tried again at the next call.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = RLock()  # claims, and listings for directors in other threads
        self._followed: Configuration | None = None
        self._until = 0.0  # when to compare again, monotonic clock
        self._counting: dict[int, Iterator[None]] = {}  # rules whose counting goes on at the next call
        self._new: frozenset[int] = frozenset()  # closed rules that `_unaware` was read for
        self._unaware: frozenset[RunningClaim] = frozenset()  # claims that may not have seen them

    def follow(self, config: Configuration) -> bool:
        """Store the rules of this configuration and open new ones; False: not all yet, call again.

        Without a change the database is read every few seconds only.
        """
        if time.monotonic() < self._until and (config is self._followed or self._followed is None):
            return self._followed is not None
        with self._lock:
            return self._follow(config)

    def _follow(self, config: Configuration) -> bool:
        began = time.monotonic()
        version = config.version, config.expiries
        with database.reading(self._engine) as conn:
            current = scope_rules.read_version(conn)
            stored = scope_rules.list_rules(conn)
        wanted = list_rules(config)
        if current <= version:
            outdated = scope_rules.list_outdated(
                stored, (rule for rules in wanted.values() for rule in rules)
            )
            if current < version or outdated:
                outdated = self._store(wanted, version)
        else:
            outdated = set()
        opened = self.open_new(seconds=_AT_A_TIME)
        self._followed = config if opened and not outdated else None
        # Where many rules are left, claims for other places get as much time as these.
        now = time.monotonic()
        self._until = now + (_AGAIN if self._followed else now - began)
        return self._followed is not None

    def open_new(self, *, seconds: float = math.inf) -> bool:
        """Open the closed rules that all claims can see by now; False: not all of them yet."""
        with self._lock:
            return self._open_new(seconds)

    def _open_new(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        with database.reading(self._engine) as conn:
            closed = [rule for rule in scope_rules.list_rules(conn) if not rule.opened and rule.known]
            if not closed:
                return True
            ids = frozenset(rule.rule_id for rule in closed)
            running = rule_counters.read_claims(conn)
        # Rules that another process stored in between are opened after the next look.
        self._unaware = running if ids - self._new else self._unaware & running
        self._new = ids
        if self._unaware:
            return False
        self._counting = {each: steps for each, steps in self._counting.items() if each in ids}
        locked = set[str]()
        is_done = True
        for number, rule in enumerate(closed):
            if number and time.monotonic() > until:
                return False
            if rule.scope in locked or not self._open(rule, until):
                locked.add(rule.scope)
                is_done = False
        return is_done

    def _open(self, rule: StoredRule, until: float) -> bool:
        steps = self._counting.pop(rule.rule_id, None) or rule_counters.open_rule(self._engine, rule, counts)
        try:
            for _ in steps:
                if time.monotonic() > until:
                    self._counting[rule.rule_id] = steps
                    return False
        except OperationalError as error:
            log.warning("%s: a new rule could not be counted yet: %s", rule.scope, error)
            return False
        return True

    def _store(self, wanted: Mapping[str, Collection[ScopeRule]], version: tuple[int, int]) -> set[str]:
        """Store the rules of a version; the scopes that could not be locked."""
        with database.writing(self._engine) as conn:
            scope_rules.raise_version(conn, version)
        # Read again: from here on no older version is stored.
        with database.reading(self._engine) as conn:
            stored = scope_rules.list_rules(conn)
        every = (rule for rules in wanted.values() for rule in rules)
        return {
            scope
            for scope in sorted(scope_rules.list_outdated(stored, every))
            if not self._store_scope(scope, wanted.get(scope, ()), version)
        }

    def _store_scope(self, scope: str, wanted: Collection[ScopeRule], version: tuple[int, int]) -> bool:
        try:
            with database.writing(self._engine) as conn:
                scopes.limit_wait(conn, milliseconds=_LOCK_WAIT)
                scopes.lock_scopes(conn, [scope])
                if scope_rules.read_version(conn, share=True) <= version:
                    scope_rules.replace_rules(conn, scope, wanted)
        except OperationalError as error:
            log.warning("%s: its rules could not be stored yet: %s", scope, error)
            return False
        return True
