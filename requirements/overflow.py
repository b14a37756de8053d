"""Operations on constants that the library computes wrongly and silently: beyond 64 bits it wraps around."""

from collections.abc import Iterator

from requirements.syntax import Call, Chain, Literal, Node, Unary

#: The integers of the library.
_LEAST, _MOST = -(2**63), 2**63 - 1
_SHIFTS = frozenset({"<<", ">>", ">>>"})
_TO_INTEGER = frozenset({"int", "floor", "ceiling", "round"})
_EXACT = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def faults(part: Node) -> Iterator[tuple[Node, str]]:
    """What of one part, by itself, would become another number, with what is wrong with it."""
    match part:
        case Call(name=name, arguments=(argument,)) if name.lower() in _TO_INTEGER:
            value = _number(_of_text(argument))
            if value is not None and not _LEAST <= value <= _MOST:
                yield part, f"{name} of {value:g} is out of range, integers reach to {_MOST}"
        case Chain():
            yield from _of_chain(part)


def _of_chain(chain: Chain) -> Iterator[tuple[Node, str]]:
    for operator, operand in chain.rest:
        bits = _number(operand)
        if operator in _SHIFTS and isinstance(bits, int) and not 0 <= bits <= 63:
            yield operand, f"a shift by {bits:g} is out of range, allowed are 0 to 63"
    if any(not _LEAST <= total <= _MOST for total in _totals(chain)):
        yield chain, f"the result is out of range, integers reach to {_MOST}; write one number as 1.0 or 1e3"


def _totals(chain: Chain) -> Iterator[int]:
    """The exact results, step by step, as far as all operands are integers written out."""
    total = _number(chain.first)
    for operator, operand in chain.rest:
        number = _number(operand)
        if operator not in _EXACT or not (isinstance(total, int) and isinstance(number, int)):
            return
        total = _EXACT[operator](total, number)
        yield total


def _of_text(node: Node) -> Node:
    """A text that is a number as that number."""
    if not isinstance(node, Literal) or not isinstance(node.value, str):
        return node
    try:
        return Literal(value=float(node.value), start=node.start, end=node.end)
    except ValueError:
        return node


def _number(node: Node) -> float | None:
    """The number that a constant is."""
    match node:
        case Unary(operator="-" | "+" as sign, operand=operand):
            value = _number(operand)
            return value if value is None or sign == "+" else -value
        case Literal(value=bool()):
            return None
        case Literal(value=int() | float() as value):
            return value
        case _:
            return None
