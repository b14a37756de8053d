"""`NodeFacts` of a request: a pilot's measurements by node attribute.

A fact counts only where the queue declares a node attribute of that name: a pilot cannot override the
queue's configuration. Other names are ignored, also those whose values the site advertises.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Final

from requirements.errors import InvalidInput, Problem
from requirements.nodes.node_attributes import NodeAttributes, Option
from requirements.values import as_short_value, fold

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


def cache_key(facts: Facts) -> bytes:
    """Cache key, equal for facts that no requirement distinguishes; True is not 1, and case counts.

    A digest: facts may have many characters, and a cache many results for the same ones.
    """
    exact = sorted((fold(name), _exact(value)) for name, value in facts.items())
    return sha256(repr(exact).encode(errors="surrogatepass")).digest() if exact else b""


def _exact(value: Option) -> tuple[str, ...]:
    if isinstance(value, tuple):
        return ("list", *(part for item in value for part in _exact(item)))
    return type(value).__name__, str(value)
