"""Constant folding: parts of expressions that do not depend on the resource, evaluated by the library."""

import math

import classad2

from requirements.classad.syntax_tree import (
    PRECEDENCE,
    Call,
    Chain,
    ListOf,
    Literal,
    Node,
    Special,
    Unary,
    render,
)
from requirements.values import MAX_INTEGER, normal_number

#: Operators that are folded; shifts and bit operators are of no use in requirements.
_FOLDED = frozenset({"==", "!=", "=?=", "=!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%"})
_EXACT = frozenset({"+", "-", "*"})
_HALF = 1 << 32


def literal(value: float | Special, /) -> Node:
    """Create the node of a value as the parser would: a sign is an operator."""
    if isinstance(value, int | float) and math.copysign(1, value) < 0:
        return Unary(operator="-", operand=Literal(value=-value))
    return Literal(value=value)


def is_constant(node: Node) -> bool:
    """Whether a part is a literal, perhaps with a minus."""
    match node:
        case Unary(operator="-", operand=Literal(value=int() | float() as value)):
            return not isinstance(value, bool)
        case _:
            return isinstance(node, Literal)


def as_integer(node: Node) -> Node:
    """Return the integer that equals a real constant; any other part as it is."""
    negative = isinstance(node, Unary) and is_constant(node)
    plain = node.operand if negative and isinstance(node, Unary) else node
    if not isinstance(plain, Literal) or not isinstance(plain.value, float):
        return node
    value = normal_number(plain.value)
    return node if isinstance(value, float) else literal(-value if negative else value)


def truth(node: Node) -> bool | None:
    """Truth of a constant in `&&`, `||` and `!`; None if it is neither true nor false."""
    if isinstance(node, Literal) and isinstance(node.value, int | float):
        return bool(node.value)
    if isinstance(node, Unary) and is_constant(node) and isinstance(node.operand, Literal):
        return bool(node.operand.value)
    return None


def fold_constants(node: Chain | Unary) -> Node:
    """Return the value of an operation on constants; the operation itself where the value is uncertain."""
    if isinstance(node, Unary):
        return (_value(node) if is_constant(node.operand) else None) or node
    # Step by step: the library continues silently after an overflow.
    first = node.first
    for operator, operand in node.rest:
        step = _value(Chain(level=node.level, first=first, rest=((operator, operand),)))
        if step is None:
            return node
        first = step
    return first


def _value(operation: Chain | Unary) -> Node | None:
    operands = (
        [operation.operand]
        if isinstance(operation, Unary)
        else [operation.first, *(operand for _, operand in operation.rest)]
    )
    if not all(is_constant(each) and _is_plain(each) for each in operands):
        return None
    if isinstance(operation, Chain) and any(operator not in _FOLDED for operator, _ in operation.rest):
        return None
    if isinstance(operation, Unary) and operation.operator == "~":
        return None
    text = render(operation)
    value = classad2.ExprTree(text).eval(classad2.ClassAd())
    if value is classad2.Value.Undefined:
        return literal(Special.UNDEFINED)
    if value is classad2.Value.Error or not isinstance(value, bool | int | float):
        return None
    if not math.isfinite(value) or (type(value) is int and abs(value) > MAX_INTEGER):
        return None
    return literal(value) if _is_exact(operation, value) else None


def _is_plain(node: Node) -> bool:
    """Exclude Error, which is not folded, and text beyond ASCII, whose comparison depends on the machine."""
    if not isinstance(node, Literal):
        return True
    return node.value is not Special.ERROR and (not isinstance(node.value, str) or node.value.isascii())


def _is_exact(operation: Chain | Unary, value: object) -> bool:
    """Whether no integer has overflowed."""
    if isinstance(operation, Unary) or type(value) is not int:
        return True
    ((operator, right),) = operation.rest
    numbers = [_integer(operation.first), _integer(right)]
    if operator not in _EXACT or None in numbers:
        return True
    left_number, right_number = (number or 0 for number in numbers)
    exact = {
        "+": left_number + right_number,
        "-": left_number - right_number,
        "*": left_number * right_number,
    }
    return exact[operator] == value


def _integer(node: Node) -> int | None:
    if isinstance(node, Unary) and isinstance(node.operand, Literal) and isinstance(node.operand.value, int):
        return -node.operand.value
    return node.value if isinstance(node, Literal) and isinstance(node.value, int) else None


def literal_from(value: object) -> Node | None:
    """Create the node of a value computed by the library; None: it cannot be written."""
    if value is classad2.Value.Undefined:
        return literal(Special.UNDEFINED)
    if value is classad2.Value.Error:
        return literal(Special.ERROR)
    if isinstance(value, list):
        items = [literal_from(item) for item in value]
        plain = tuple(item for item in items if item is not None)
        return ListOf(items=plain) if len(plain) == len(items) else None
    if isinstance(value, str):
        return Literal(value=value)
    if isinstance(value, float) and not math.isfinite(value):
        return Call(name="real", arguments=(Literal(value=str(value)),))  # infinity and NaN have no literal
    if type(value) is int and abs(value) > MAX_INTEGER:
        # Too large for a literal: a sum of two.
        high, low = divmod(value, _HALF)
        product = Chain(level=PRECEDENCE["*"], first=literal(high), rest=(("*", literal(_HALF)),))
        return Chain(level=PRECEDENCE["+"], first=product, rest=(("+", literal(low)),))
    return literal(value) if isinstance(value, int | float) else None
