"""How deep the ClassAd library descends into a tree: too deep, and it fails, or ends the process."""

from requirements.source import Source
from requirements.syntax import ELVIS, UNARY, Attribute, Chain, Node, Unary, binding, children

#: Levels of an evaluation before the library fails: measured, and held by a test. A sum of some
#: hundred thousand terms overruns its stack as soon as it is read.
MAX_HEIGHT = 401


def check_height(node: Node, source: Source) -> None:
    """Refuse a tree into which the library cannot descend.

    Raises:
        InvalidInput: It is too high.
    """
    if height(node) > MAX_HEIGHT:
        message = "too many operations inside each other; parentheses around parts of it, or member(), help"
        raise source.fault(node.start, message)


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
