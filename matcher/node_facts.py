"""`NodeFacts` of a request: what a pilot measured at its node, by the names of node attributes.

A fact says something only where the queue declares the name as an attribute of its nodes: no pilot
overrules what its queue is configured with. Names that nobody declares do no harm.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import Final

from requirements.errors import InvalidInput
from requirements.nodes import NodeAttributes, Option
from requirements.problem import Problem
from requirements.values import as_value, fold

#: Facts in one request.
_MOST: Final = 200
#: Values in all of them, those of lists counted one by one.
_MOST_VALUES: Final = 1000
#: Characters of a name.
_LONGEST_NAME: Final = 100
#: Characters of all names and values together; the flags of a processor have 2,000.
_LARGEST: Final = 16_384

#: By name; None: the node has nothing of that name.
Facts = Mapping[str, Option]


def read(raw: object, path: str) -> tuple[Facts, list[Problem]]:
    """The facts that a request states, and everything that is wrong with them.

    Args:
        raw: Name to value, as read from JSON.
        path: What the request calls it.
    """
    if not isinstance(raw, Mapping):
        seen = type(raw).__name__
        return {}, [Problem(path=path, message=f"is {seen}, allowed is a record: name to value")]
    problems = [*_name_problems(raw, path), *_number_problems(raw, path)]
    facts: dict[str, Option] = {}
    for name, value in raw.items() if not problems else ():
        try:
            facts[name] = None if value is None else as_value(value, f"{path}/{name}")
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
            yield Problem(path=path, message=f"{name[:40]!r} is no name of a fact, allowed are {allowed}")
        elif (other := spelled.setdefault(fold(name), name)) != name:
            yield Problem(path=f"{path}/{name}", message=f"named twice, the other time as {other}")


def _number_problems(raw: Mapping[object, object], path: str) -> Iterator[Problem]:
    """Asked before any value is looked at: empty texts have no characters, however many there are."""
    number = sum(len(value) if isinstance(value, list) else 1 for value in raw.values())
    if number > _MOST_VALUES:
        message = f"{number} values, allowed are {_MOST_VALUES} in all facts together"
        yield Problem(path=path, message=message)


def _size(value: Option) -> int:
    return sum(map(_size, value)) if isinstance(value, tuple) else len(str(value))


def that_count(facts: Facts, nodes: NodeAttributes) -> Facts:
    """Those that the queue declares as attributes of its nodes."""
    return {name: fact for name, fact in facts.items() if name in nodes}


def not_stated(nodes: NodeAttributes, facts: Facts) -> NodeAttributes:
    """What the node leaves unknown: not absent, it may not have been able to measure it."""
    stated = {fold(name) for name in facts}
    return NodeAttributes(declared=tuple(each for each in nodes.declared if fold(each[0]) not in stated))


def key(facts: Facts) -> Hashable:
    """The same for facts that no requirement can tell apart; True is not 1, and text keeps its case."""
    return tuple(sorted((fold(name), _exact(value)) for name, value in facts.items()))


def _exact(value: Option) -> tuple[str, ...]:
    if isinstance(value, tuple):
        return ("list", *(part for item in value for part in _exact(item)))
    return type(value).__name__, str(value)
