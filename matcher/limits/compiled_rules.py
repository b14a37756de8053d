"""Rules of a configuration as rows of scopes, and back: claims read the rows, not their own configuration."""

import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from threading import RLock

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from cs_config.cache import derived
from cs_config.options.place_limits import Floor, MatchingDelay, RunningLimit
from cs_config.tree.configuration import Configuration
from cs_config.tree.throttle import Throttle
from matcher.limits import running_limits
from matcher.limits.running_limits import PlaceRule
from requirements.values import fold
from taskqueue.db import database
from taskqueue.sites import rule_counters, scope_rules, scopes
from taskqueue.sites.rule_counters import UnawareTransaction
from taskqueue.sites.scope_rules import RuleKind, ScopeRule, StoredRule

#: Milliseconds to wait for a locked scope: claims for other places wait as well.
_LOCK_WAIT = 50
#: Seconds until the rules are compared again without a new configuration: the process that stored a rule may
#: have ended before it counted it.
_AGAIN = 10.0
#: Seconds for counting rules in one call, since claims for other places wait meanwhile.
_AT_A_TIME = 0.1
#: Scopes whose rules are stored, or counted, by one transaction.
_TOGETHER = 50
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
    floor = None
    if isinstance(limit, RunningLimit):
        floor = limit.floor
        numbers |= {} if limit.cores is None else {"cores": limit.cores}
        numbers |= {} if floor is None else {"floor": {"cores": floor.cores, "percent": floor.percent}}
    definition = {"value": limit.value, "exempt": sorted(rule.exempt), **numbers}
    return ScopeRule(
        scope=scope,
        kind=RuleKind.RUNNING if isinstance(limit, RunningLimit) else RuleKind.DELAY,
        attribute=limit.attribute,
        value=fold(limit.value),
        vo=rule.stored_vo,
        definition=json.dumps(definition, sort_keys=True),
        format=_find_format(limit),
    )


def _find_format(limit: RunningLimit | MatchingDelay) -> int:
    if isinstance(limit, RunningLimit):
        if limit.floor is not None or not limit.is_bound:
            return scope_rules.FORMAT_OF_FLOORS
        if limit.cores is not None:
            return scope_rules.FORMAT_OF_CORES
    return scope_rules.FORMAT


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
            cores=stored.get("cores"),
            curb=stored["curb"],
            interval=stored["interval"],
            floor=Floor(**stored["floor"]) if "floor" in stored else None,
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

    The rows follow the latest version that any process has. Only scopes whose rules changed are written, some
    in one transaction; one that is locked is tried again at the next call.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = RLock()  # claims, and listings for directors in other threads
        self._followed: Configuration | None = None
        self._until = 0.0  # when to compare again, monotonic clock
        self._new: frozenset[int] = frozenset()  # uncounted rules that `_unaware` was read for
        self._unaware: frozenset[UnawareTransaction] = frozenset()  # which may not have seen them

    def follow(self, config: Configuration) -> bool:
        """Store the rules of this configuration and count new ones; False: not all yet, call again.

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
        wanted, is_stored = list_rules(config), True
        if current <= version:
            outdated = scope_rules.list_outdated(
                stored, (rule for rules in wanted.values() for rule in rules)
            )
            if current < version or outdated:
                is_stored = self._store(wanted, version, outdated)
        counted = self.count_new(seconds=_AT_A_TIME)
        self._followed = config if counted and is_stored else None
        # Where many rules are left, claims for other places get as much time as these.
        now = time.monotonic()
        self._until = now + (_AGAIN if self._followed else now - began)
        return self._followed is not None

    def count_new(self, *, seconds: float = math.inf) -> bool:
        """Count the new rules that all transactions can see by now; False: not all of them yet."""
        with self._lock:
            return self._count_new(time.monotonic() + seconds)

    def _count_new(self, until: float) -> bool:
        taken_over = self._take_over_closed()
        with database.reading(self._engine) as conn:
            new = {rule.rule_id: rule for rule in scope_rules.list_uncounted(conn)}
            if not new:
                return taken_over
            running = rule_counters.read_unaware(conn)
        # Rules that another process stored in between are counted after the next look.
        self._unaware = running if new.keys() - self._new else self._unaware & running
        self._new = frozenset(new)
        if self._unaware:
            return False
        names = sorted({rule.scope for rule in new.values()})
        for start in range(0, len(names), _TOGETHER):
            some = set(names[start : start + _TOGETHER])
            self._count([rule for rule in new.values() if rule.scope in some])
            if time.monotonic() > until:
                break
        with database.reading(self._engine) as conn:
            return taken_over and not scope_rules.list_uncounted(conn)

    def _count(self, new: Sequence[StoredRule]) -> None:
        """Count new rules, in one transaction if none of their scopes is locked."""
        names = {rule.scope for rule in new}
        try:
            with database.writing(self._engine) as conn:
                scopes.limit_wait(conn, milliseconds=_LOCK_WAIT)
                scopes.lock_scopes(conn, names)
                # Another process may have counted some meanwhile.
                left = {rule.rule_id for rule in scope_rules.list_uncounted(conn)}
                rule_counters.count_rules(conn, [rule for rule in new if rule.rule_id in left], counts)
        except OperationalError as error:
            if len(names) > 1:
                for name in sorted(names):
                    self._count([rule for rule in new if rule.scope == name])
            else:
                log.warning("%s: new rules could not be counted yet: %s", new[0].scope, error)

    def _take_over_closed(self) -> bool:
        """Let the rules that processes of 1.0 have stored be counted as any other; False: some are locked.

        Not needed once no process of 1.0 runs.
        """
        with database.reading(self._engine) as conn:
            closed = scope_rules.list_closed(conn)
        for rule in closed:
            try:
                with database.writing(self._engine) as conn:
                    scopes.limit_wait(conn, milliseconds=_LOCK_WAIT)
                    scopes.lock_scopes(conn, [rule.scope])
                    scope_rules.take_over(conn, rule)
            except OperationalError as error:
                log.warning("%s: a rule could not be taken over yet: %s", rule.scope, error)
                return False
        return True

    def _store(
        self,
        wanted: Mapping[str, Collection[ScopeRule]],
        version: tuple[int, int],
        outdated: Collection[str],
    ) -> bool:
        """Store the rules of a version; False: some are left, since scopes are locked.

        All in one call: a claim at a scope whose new rules are not stored would not apply them.
        """

        def store_some(scopes_of_batch: Collection[str]) -> Collection[str]:
            return self._store_scopes({scope: wanted.get(scope, ()) for scope in scopes_of_batch}, version)

        # With the version: a process with an older one, which stores none itself then, has to find them.
        store_some(sorted(outdated)[:_TOGETHER])
        # Compared again: from here on no older version is stored.
        with database.reading(self._engine) as conn:
            if scope_rules.read_version(conn) < version:
                return False
            stored = scope_rules.list_rules(conn)
        every = (rule for rules in wanted.values() for rule in rules)
        left = scope_rules.list_outdated(stored, every)
        ordered = sorted(left)
        for start in range(0, len(ordered), _TOGETHER):
            left.difference_update(store_some(ordered[start : start + _TOGETHER]))
        return not left

    def _store_scopes(
        self, wanted: Mapping[str, Collection[ScopeRule]], version: tuple[int, int]
    ) -> Collection[str]:
        """Store the rules of scopes, in one transaction if none of them is locked; the stored scopes."""
        try:
            with database.writing(self._engine) as conn:
                scopes.limit_wait(conn, milliseconds=_LOCK_WAIT)
                scopes.lock_scopes(conn, wanted)
                if scope_rules.raise_version(conn, version):
                    scope_rules.replace_rules(conn, wanted)
        except OperationalError as error:
            if len(wanted) > 1:
                alone = ({scope: rules} for scope, rules in wanted.items())
                return {scope for each in alone for scope in self._store_scopes(each, version)}
            where = next(iter(wanted), f"version {version[0]}")
            log.warning("%s: its rules could not be stored yet: %s", where, error)
            return ()
        return wanted.keys()
