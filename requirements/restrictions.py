"""What an expression of a user may contain: pure functions, attributes of the resource, sane sizes."""

from collections.abc import Iterator

from requirements import functions, overflow, regexps
from requirements.errors import InvalidInput
from requirements.height import check_height
from requirements.source import Source
from requirements.syntax import AND, OR, Ad, Attribute, Call, Chain, Node, Selection, children

#: Characters of an expression.
MAX_SIZE = 20_000
#: Operands of one `&&` or `||`; the library fails at more.
MAX_TERMS = 399
#: Calls of regular expressions in one expression: each is matched at every evaluation.
MAX_PATTERNS = 20

#: The two spellings of the resource as a scope.
_RESOURCE = frozenset({"other", "target"})
#: The two spellings of the side that states the expression.
_OWN = frozenset({"my", "self"})
#: What an expression cannot ask: the job, whose values are put in before (`own_attributes`), and the clock.
_FORBIDDEN = frozenset({*_OWN, "parent", "root", "toplevel", "currenttime", *_RESOURCE})


def resource_name(attribute: Attribute) -> str | None:
    """The parameter of the resource that `other.X`, `TARGET.X` or `X` is; None if it is none."""
    names = attribute.names
    if len(names) == 2 and names[0].lower() in _RESOURCE:
        names = names[1:]
    if len(names) != 1 or attribute.absolute or names[0].lower() in _FORBIDDEN:
        return None
    return names[0]


def own_name(attribute: Attribute) -> str | None:
    """The name that `MY.X` or `self.X` is on the side that states it; None if it is none."""
    names = attribute.names
    is_own = len(names) == 2 and names[0].lower() in _OWN and not attribute.absolute
    return names[1] if is_own else None


def is_other(attribute: Attribute) -> bool:
    """Whether it is `other.X` or `TARGET.X`."""
    names = attribute.names
    return len(names) == 2 and names[0].lower() in _RESOURCE and not attribute.absolute


def check(node: Node, source: Source) -> None:
    """Refuse what a user's expression must not contain.

    Raises:
        InvalidInput: With every such part, each with its place.
    """
    problems = [
        problem
        for part in parts_of(node)
        if (fault := _fault(part))
        for problem in source.fault(part.start, *fault).problems
    ]
    for part in parts_of(node):
        for where, message in overflow.faults(part):
            problems += source.fault(where.start, message).problems
    if problems:
        raise InvalidInput(problems)
    if len([part for part in parts_of(node) if regexps.is_regexp(part)]) > MAX_PATTERNS:
        raise source.fault(node.start, f"more than {MAX_PATTERNS} regular expressions; a|b is one")
    check_height(node, source)


def parts_of(node: Node) -> Iterator[Node]:
    """The node and everything below it, from left to right."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        yield part
        waiting.extend(reversed(children(part)))


def _fault(part: Node) -> tuple[str, str | None] | None:
    """What is wrong with one part by itself, and what was probably meant."""
    match part:
        case Attribute() if resource_name(part) is None:
            shown = "." * part.absolute + ".".join(part.names)
            return f"{shown[:60]} is no attribute of the resource, allowed is other.<Name>", None
        case Ad() | Selection():
            return "a record is not allowed here", None
        case Chain(level=level, rest=rest) if level in (AND, OR) and len(rest) >= MAX_TERMS:
            return f"{len(rest) + 1} terms in a row, allowed are {MAX_TERMS}; member() takes any number", None
        case Call():
            return functions.fault(part)
        case _:
            return None
