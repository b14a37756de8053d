"""Throttles and limits that a change sets so that nothing more would be matched at once."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from cs_config.configuration import Configuration
from cs_config.proposals import Proposal
from matcher import limits, standings
from matcher.limits import Rule
from taskqueue import batches, scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bite:
    """A place that would be closed."""

    scope: str  #: `Site`, `Site/CE` or `Site/CE/Queue`
    text: str  #: why, for a person


def of(conn: Connection, proposal: Proposal, *, vos: Collection[str] | None, now: datetime) -> Iterator[Bite]:
    """The places that are open now and would be closed, as far as these VOs (None: all) may know."""
    yield from _throttles(conn, proposal, now)
    yield from _limits(conn, proposal, vos, now)


def _throttles(conn: Connection, proposal: Proposal, now: datetime) -> Iterator[Bite]:
    before, after = proposal.before.throttles, proposal.after.throttles
    changed = [scope for scope, throttle in after.items() if before.get(scope) != throttle]
    was = _closed(conn, proposal.before, [scope for scope in changed if scope in before], now)
    for scope, why in _closed(conn, proposal.after, changed, now).items():
        if scope not in was:
            yield Bite(scope=scope, text=f"throttled ({why})")


def _closed(
    conn: Connection, config: Configuration, names: Collection[str], now: datetime
) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for some in batches.of(names):
        read = scopes.read(conn, some)
        for scope, standing in standings.of(conn, config, read.values(), now).items():
            room = standing.room()
            if room.jobs is not None and room.jobs <= 0:
                found[scope] = room.why or "no room"
    return found


def _limits(
    conn: Connection, proposal: Proposal, vos: Collection[str] | None, now: datetime
) -> Iterator[Bite]:
    known = {_key(scope, rule) for scope, rules in limits.rules(proposal.before).items() for rule in rules}
    changed = [
        scope
        for scope, rules in limits.rules(proposal.after).items()
        if any(_key(scope, rule) not in known for rule in rules)
    ]
    for scope, conditions in limits.conditions(conn, proposal.after, changed, now).items():
        for each in conditions:
            if each.full and _key(scope, each.rule) not in known and each.rule.may_be_told(vos):
                yield Bite(scope=scope, text=each.why)


def _key(scope: str, rule: Rule) -> tuple[object, ...]:
    return scope, rule.vo, rule.limit
