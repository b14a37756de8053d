"""Rules of a configuration as rows of scopes, and back: claims read the rows, not their own configuration."""

import json
import logging
import math
import time
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
from taskqueue.sites import rule_opening, scope_rules, scopes
from taskqueue.sites.rule_opening import RunningClaim
from taskqueue.sites.scope_rules import RuleKind, ScopeRule, StoredRule

#: Milliseconds to wait for a locked scope: claims for other places wait as well.
_LOCK_WAIT = 50
#: Seconds for counting in one call, since claims for other places wait meanwhile.
_AT_A_TIME = 0.1
log = logging.getLogger(__name__)


@derived
def list_rules(config: Configuration) -> Mapping[str, tuple[ScopeRule, ...]]:
    """The rules of a configuration by scope, as they are stored."""
    found: dict[str, tuple[ScopeRule, ...]] = {}
    by_scope = running_limits.rules_by_scope(config)
    for scope in sorted({*by_scope, *config.throttles}):
        rules = [_compile(scope, rule) for rule in by_scope.get(scope, ())]
        if (throttle := config.throttles.get(scope)) is not None:
            definition = throttle.model_dump_json(by_alias=True)
            rules.append(ScopeRule(scope=scope, kind=RuleKind.THROTTLE, definition=definition))
        # Of two spellings of one value the last one holds, as in the configuration.
        found[scope] = tuple({rule.key: rule for rule in rules}.values())
    return found


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


def _compile(scope: str, rule: PlaceRule) -> ScopeRule:
    limit = rule.limit
    numbers: dict[str, object] = (
        {"most": limit.most}
        if isinstance(limit, RunningLimit)
        else {"seconds": limit.seconds, "burst": limit.burst}
    )
    definition = {"value": limit.value, "exempt": sorted(rule.exempt), **numbers}
    return ScopeRule(
        scope=scope,
        kind=RuleKind.RUNNING if isinstance(limit, RunningLimit) else RuleKind.DELAY,
        attribute=limit.attribute,
        value=fold(limit.value),
        vo=rule.vo or "",
        definition=json.dumps(definition, sort_keys=True),
    )


@lru_cache(maxsize=10_000)
def _parse_place_rule(scope: str, kind: RuleKind, attribute: str, vo: str, definition: str) -> PlaceRule:
    stored = json.loads(definition)
    value = stored["value"]
    limit = (
        RunningLimit(scope=scope, attribute=attribute, value=value, most=stored["most"])
        if kind is RuleKind.RUNNING
        else MatchingDelay(
            scope=scope,
            attribute=attribute,
            value=value,
            seconds=stored["seconds"],
            burst=stored["burst"],
        )
    )
    return PlaceRule(limit=limit, vo=vo or None, exempt=frozenset(stored["exempt"]))


class RuleFollower:
    """Keeps the rows up to date with the configuration of one process.

    The rows follow the latest version that any process has. Only scopes whose rules changed are written, each
    in a transaction of its own; one that is locked is tried again at the next call.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = RLock()  # claims, and listings for directors in other threads
        self._followed: Configuration | None = None
        self._counting: dict[int, Iterator[None]] = {}  # rules whose counting goes on at the next call
        self._new: frozenset[int] = frozenset()  # closed rules that `_unaware` was read for
        self._unaware: frozenset[RunningClaim] = frozenset()  # claims that may not have seen them

    def follow(self, config: Configuration) -> bool:
        """Store the rules of this configuration and open new ones; False: not all yet, call again.

        Without a change nothing is asked from the database.
        """
        if config is self._followed:
            return True
        with self._lock:
            return self._follow(config)

    def _follow(self, config: Configuration) -> bool:
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
        if opened and not outdated:
            self._followed = config
        return self._followed is config

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
            running = rule_opening.read_claims(conn)
        # Rules that another process stored in between are opened after the next look.
        self._unaware = running if ids - self._new else self._unaware & running
        self._new = ids
        if self._unaware:
            return False
        self._counting = {each: steps for each, steps in self._counting.items() if each in ids}
        left = [rule for rule in closed if not self._open(rule, until)]
        return not left

    def _open(self, rule: StoredRule, until: float) -> bool:
        steps = self._counting.pop(rule.rule_id, None) or rule_opening.open_rule(self._engine, rule, counts)
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
