"""What an expression of a user may contain: pure functions, attributes of the resource, sane sizes."""

from collections.abc import Iterator

from requirements import functions
from requirements.errors import InvalidInput
from requirements.source import Source
from requirements.syntax import (
    AND,
    ELVIS,
    OR,
    UNARY,
    Ad,
    Attribute,
    Call,
    Chain,
    Node,
    Selection,
    Unary,
    binding,
    children,
)

#: Characters of an expression.
MAX_SIZE = 20_000
#: Operands of one `&&` or `||`; the library fails at more.
MAX_TERMS = 399
#: Levels that the library descends in an evaluation before it fails: measured, and held by a test.
MAX_HEIGHT = 401

#: The two spellings of the resource as a scope.
_RESOURCE = frozenset({"other", "target"})
#: What an expression cannot ask: the job, which shares its pool with others, and the clock.
_FORBIDDEN = frozenset({"my", "self", "parent", "root", "toplevel", "currenttime", *_RESOURCE})


def resource_name(attribute: Attribute) -> str | None:
    """The parameter of the resource that `other.X`, `TARGET.X` or `X` is; None if it is none."""
    names = attribute.names
    if len(names) == 2 and names[0].lower() in _RESOURCE:
        names = names[1:]
    if len(names) != 1 or attribute.absolute or names[0].lower() in _FORBIDDEN:
        return None
    return names[0]


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
    if not problems and height(node) > MAX_HEIGHT:
        message = (
            "too many operations inside each other; parentheses around parts of long sums, or member(), help"
        )
        problems = list(source.fault(node.start, message).problems)
    if problems:
        raise InvalidInput(problems)


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


def height(node: Node) -> int:
    """The levels that the library descends to evaluate the tree: in a chain, one for each operand."""
    match node:
        case Attribute():
            return 2
        case Chain(first=first, rest=rest, level=level):
            count = len(rest)
            right = (_operand_height(each, level + 1) + count - place for place, (_, each) in enumerate(rest))
            highest = max(_operand_height(first, level) + count, *right)
            return highest + count if level == ELVIS else highest
        case Unary(operand=operand):
            return 1 + _operand_height(operand, UNARY)
        case _:
            return 1 + max((_operand_height(child, 1) for child in children(node)), default=0)


def _operand_height(node: Node, lowest: int) -> int:
    """With the parenthesis, a level of its own, that an operand needs which binds less close."""
    return height(node) + (binding(node) < lowest)
