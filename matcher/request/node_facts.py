"""`NodeFacts` of a request: a pilot's measurements by node attribute, and their check against pools.

A fact counts only where the queue declares a node attribute of that name: a pilot cannot override the
queue's configuration. Other names are ignored, also those whose values the site advertises. Requirements are
checked on the queue's values and the facts together; pilots on equal nodes send equal facts, so results are
cached until the configuration changes.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Final

from sqlalchemy import Connection

from cs_config.cache import Cache
from cs_config.classes.queue_classes import find_class
from cs_config.options.operations import options_for
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from requirements import canonical, evaluator
from requirements.canonical import Requirements
from requirements.errors import InvalidInput, Problem
from requirements.nodes import node_attributes
from requirements.nodes.node_attributes import NodeAttributes, Option
from requirements.record import Declarations
from requirements.values import Value, as_short_value, fold
from taskqueue.pools import pools

#: Facts per request.
_MOST: Final = 200
#: Values per request; each item of a list counts.
_MOST_VALUES: Final = 1000
#: Characters of a name.
_LONGEST_NAME: Final = 100
#: Characters of all names and values together; the flags of a processor have 2,000.
_LARGEST: Final = 16_384

#: By name; None: the node has nothing of that name.
Facts = Mapping[str, Option]


def read_facts(raw: object, path: str) -> tuple[Facts, list[Problem]]:
    """The facts of a request (JSON), and all problems with them; `path` is the keyword in the request."""
    if not isinstance(raw, Mapping):
        seen = type(raw).__name__
        return {}, [Problem(path=path, message=f"is {seen}, allowed is a record: name to value")]
    problems = [*_name_problems(raw, path), *_number_problems(raw, path)]
    facts: dict[str, Option] = {}
    for name, value in raw.items() if not problems else ():
        try:
            facts[name] = None if value is None else as_short_value(value, f"{path}/{name}")
        except InvalidInput as error:
            problems += error.problems
    if (size := sum(len(name) + _size(value) for name, value in facts.items())) > _LARGEST:
        message = f"{size} characters, allowed are {_LARGEST} in all names and values together"
        problems.append(Problem(path=path, message=message))
    return facts, problems


def _name_problems(raw: Mapping[object, object], path: str) -> Iterator[Problem]:
    if len(raw) > _MOST:
        yield Problem(path=path, message=f"{len(raw)} facts, allowed are {_MOST}")
        return
    spelled: dict[str, str] = {}
    for name in map(str, raw):
        if not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
            allowed = f"1 to {_LONGEST_NAME} printable characters"
            yield Problem(
                path=path, message=f"{name[:40]!r} is not a valid name of a fact, allowed are {allowed}"
            )
        elif (other := spelled.setdefault(fold(name), name)) != name:
            yield Problem(path=f"{path}/{name}", message=f"named twice, the other time as {other}")


def _number_problems(raw: Mapping[object, object], path: str) -> Iterator[Problem]:
    """Checked before parsing: the limit of characters does not bound the number of empty texts."""
    number = sum(len(value) if isinstance(value, list) else 1 for value in raw.values())
    if number > _MOST_VALUES:
        message = f"{number} values, allowed are {_MOST_VALUES} in all facts together"
        yield Problem(path=path, message=message)


def _size(value: Option) -> int:
    return sum(map(_size, value)) if isinstance(value, tuple) else len(str(value))


def keep_declared(facts: Facts, nodes: NodeAttributes) -> Facts:
    """The facts that the queue declares as attributes of its nodes."""
    return {name: fact for name, fact in facts.items() if name in nodes}


def list_unstated(nodes: NodeAttributes, facts: Facts) -> NodeAttributes:
    """The attributes without a fact: unknown, not absent, since the pilot may be unable to measure them."""
    stated = {fold(name) for name in facts}
    return NodeAttributes(declared=tuple(each for each in nodes.declared if fold(each[0]) not in stated))


def cache_key(facts: Facts) -> Hashable:
    """Cache key, equal for facts that no requirement distinguishes; True is not 1, and case counts."""
    return tuple(sorted((fold(name), _exact(value)) for name, value in facts.items()))


def _exact(value: Option) -> tuple[str, ...]:
    if isinstance(value, tuple):
        return ("list", *(part for item in value for part in _exact(item)))
    return type(value).__name__, str(value)


#: Cached results.
_CACHED = 100_000


class NodeStanding(IntEnum):
    """Whether a node fulfils requirements, as far as its attributes are stated."""

    REFUSED = 0
    OPEN = 1  #: unstated attributes decide
    FULFILLED = 2  #: whatever the unstated attributes are


class NodeChecks:
    """Cached checks of requirements at nodes, for one version of the configuration."""

    def __init__(self) -> None:
        self._results: Cache[tuple[str, str, Hashable], NodeStanding] = Cache(_CACHED)
        self._names: Cache[str, frozenset[str]] = Cache(_CACHED)

    def find(
        self,
        conn: Connection,
        config: Configuration,
        address: QueueAddress,
        pool_ids: Mapping[str, Collection[str]],
        facts: Facts,
        *,
        least: NodeStanding = NodeStanding.FULFILLED,
    ) -> frozenset[str]:
        """The pools (given by VO) whose requirements stand so at a node of the queue with these facts."""
        found: set[str] = set()
        for vo, ids in pool_ids.items():
            if (here := find_class(config, vo, address)) is not None:
                declarations = options_for(config, vo).job_description.declarations
                declared = keep_declared(facts, here.nodes)
                key = here.digest, cache_key(declared)
                known = {each: self._results.find((each, *key), config.version) for each in ids}
                new = [each for each in known if known[each] is None]
                for each, text in pools.read_originals(conn, new).items():
                    standing = decide(parse_stored(text), here.values, here.nodes, declared, declarations)
                    known[each] = self._results.store((each, *key), standing, config.version)
                found.update(each for each, it in known.items() if it is not None and it >= least)
        return frozenset(found)

    def list_advertised(
        self,
        conn: Connection,
        config: Configuration,
        address: QueueAddress,
        pool_ids: Mapping[str, Collection[str]],
    ) -> frozenset[str]:
        """The advertised attributes of the queue that these pools (given by VO) require; folded names."""
        found: set[str] = set()
        for vo, ids in pool_ids.items():
            if not (advertised := config.node_attributes(address, vo).advertised):
                continue
            declarations = options_for(config, vo).job_description.declarations
            known = {each: self._names.find(each, config.version) for each in ids}
            new = [each for each in known if known[each] is None]
            for each, text in pools.read_originals(conn, new).items():
                names = frozenset(map(fold, evaluator.parameters(parse_stored(text), declarations)))
                known[each] = self._names.store(each, names, config.version)
            found.update(*(advertised & names for names in known.values() if names))
        return frozenset(found)


@lru_cache(maxsize=20_000)
def parse_stored(text: str) -> Requirements:
    """Parse stored requirements of a pool; see `canonical.from_json`."""
    return canonical.from_json(text)


def decide(
    requirements: Requirements,
    values: Mapping[str, Value],
    nodes: NodeAttributes,
    facts: Facts,
    declarations: Declarations,
) -> NodeStanding:
    """Whether a node with these facts, at a queue with these values, fulfils requirements."""
    has = {name: fact for name, fact in facts.items() if fact is not None}
    resource = node_attributes.merge_facts(values, nodes, has)
    open_ = list_unstated(nodes, facts)
    if not open_:
        fulfilled = evaluator.eligible(requirements, resource, declarations)
        return NodeStanding.FULFILLED if fulfilled else NodeStanding.REFUSED
    standing = evaluator.decide_at_queue(requirements, resource, declarations, open_)
    if standing.eligible:
        return NodeStanding.FULFILLED if standing.residue is None else NodeStanding.OPEN
    return NodeStanding.REFUSED
