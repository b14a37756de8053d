"""Normal form of expressions: one tree for the usual ways to write the same requirement.

The normal form is `true` exactly where the original is, on every resource for which no part of the original
is Error. Three things need care:

- A number counts as true or false in `&&`, but is not `true` by itself: `X && X` is `true && X`, not `X`.
- A text in `||` is Error unless an operand before it is true. So operands that may be a text stay after those
  that are certainly true, false or undefined, in the order written; only directly in the outermost `&&`
  the order is free, since false and Error are both not true.
- `c ? a : b` is undefined where `c` is, but `(c && a) || (!c && b)` may be false there. It is converted
  only in positive position: where only `&&` and `||` are around it.

Constant folding: parts of expressions that do not depend on the resource, evaluated by the library.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import classad2

from requirements.classad.restrictions import MAX_TERMS, resource_name
from requirements.classad.syntax_tree import (
    AND,
    COMPARISONS,
    ELVIS,
    LOGICAL_OPERATORS,
    MIRRORED,
    OR,
    PRECEDENCE,
    Attribute,
    Call,
    Chain,
    Conditional,
    ListOf,
    Literal,
    Node,
    Special,
    Subscript,
    Unary,
    attribute_key,
    children,
    flatten,
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


#: Size limit of a conditional converted to `&&` and `||`, which repeats its condition.
MAX_PUT_OUT = 200

_TRUE = Literal(value=True)
_SAME_NEGATED = {"==": "!=", "!=": "==", "=?=": "=!=", "=!=": "=?="}
_ORDER_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_LOGICAL_FUNCTIONS = frozenset(
    {
        *("isundefined", "iserror", "isstring", "isinteger", "isreal", "isboolean", "islist"),
        *("member", "identicalmember", "regexp", "regexpmember", "stringlistmember", "stringlistimember"),
        *("versiongt", "versionge", "versionlt", "versionle", "versioneq"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """How the context of a part uses its value."""

    outermost: bool  #: only `&&` around it: false, undefined and Error are equivalent
    positive: bool  #: only `&&` and `||` around it: false and undefined are equivalent
    truth_only: bool  #: a number counts as true or false


_WHOLE = _Place(outermost=True, positive=True, truth_only=False)
_VALUE = _Place(outermost=False, positive=False, truth_only=False)
_TRUTH = _Place(outermost=False, positive=False, truth_only=True)


def normal_form(node: Node) -> Node:
    """Return the normal form of a tree that passed `restrictions.check`.

    A part whose normal form would be too large is left as written.
    """
    return _Normal().normalize(node, _WHOLE)


@dataclass(slots=True)
class _Normal:
    """One normalization, with the texts by which operands are ordered."""

    _texts: dict[int, tuple[Node, str]] = field(
        default_factory=dict
    )  #: by id of the node, which must be kept alive

    def normalize(self, node: Node, place: _Place) -> Node:
        match node := _as_operator(node):
            case Attribute():
                name = resource_name(node)
                return node if name is None else replace(node, names=(attribute_key(name),))
            case Chain(level=level) if level in LOGICAL_OPERATORS:
                return self._connected(node, place)
            case Chain():
                return self._operation(node)
            case Unary(operator="!", operand=operand):
                return self._negated(self.normalize(operand, _TRUTH), place)
            case Conditional():
                return self._conditional(node, place)
            case _:
                return self._plain(node)

    def _plain(self, node: Node) -> Node:
        """Normalize a part that uses the values of its operands, not only their truth."""
        match node:
            case Unary(operand=operand):
                return fold_constants(replace(node, operand=self.normalize(operand, _VALUE)))
            case Call(name=name, arguments=arguments):
                return replace(node, name=name.lower(), arguments=self._values(arguments))
            case ListOf(items=items):
                return replace(node, items=self._values(items))
            case Subscript(of=of, index=index):
                return replace(node, of=self.normalize(of, _VALUE), index=self.normalize(index, _VALUE))
            case _:
                return node

    def _values(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(self.normalize(node, _VALUE) for node in nodes)

    def _connected(self, node: Chain, place: _Place) -> Node:
        """Normalize `&&` or `||`: flat, sorted, without duplicate and neutral operands."""
        inner = replace(place, truth_only=True, outermost=place.outermost and node.level == AND)
        operands = [self.normalize(child, inner) for child in children(node)]
        flat = [part for operand in operands for part in flatten(operand, node.level)]
        return self._joined(flat if len(flat) <= MAX_TERMS else operands, node.level, place)

    def _joined(self, operands: list[Node], level: int, place: _Place) -> Node:
        neutral = level == AND
        if any(truth(operand) is (not neutral) for operand in operands):
            return literal(not neutral)
        distinct = {self._text(each): each for each in operands if truth(each) is None}
        free = place.outermost and level == AND
        texts = sorted(text for text, each in distinct.items() if free or _is_logical(each))
        texts += [text for text, each in distinct.items() if not (free or _is_logical(each))]
        if not texts:
            return literal(neutral)
        if len(texts) == 1:
            return _as_truth(distinct[texts[0]], place)
        return _chain(level, [distinct[text] for text in texts])

    def _operation(self, node: Chain) -> Node:
        first = self.normalize(node.first, _VALUE)
        rest = tuple((operator, self.normalize(operand, _VALUE)) for operator, operand in node.rest)
        # A first operand without parentheses is parsed as part of the chain.
        if isinstance(first, Chain) and first.level == node.level:
            rest = (*first.rest, *rest)
            first = first.first
        value = fold_constants(replace(node, first=first, rest=rest))
        if not isinstance(value, Chain) or len(rest) > 1:
            return value
        return self._turned(_compare_integers(value))

    def _turned(self, node: Chain) -> Chain:
        """Put the attribute of a comparison on the left; equal kinds are sorted."""
        left, (operator, right) = node.first, node.rest[0]
        if node.level not in COMPARISONS or (isinstance(right, Chain) and right.level == node.level):
            return node
        ranks = [_rank(left), _rank(right)]
        if ranks[0] < ranks[1] or (ranks[0] == ranks[1] and self._text(left) <= self._text(right)):
            return node
        return replace(node, first=right, rest=((MIRRORED.get(operator, operator), left),))

    def _negated(self, operand: Node, place: _Place) -> Node:
        value = truth(operand)
        if value is not None:
            return literal(not value)
        match operand:
            case Literal(value=Special.UNDEFINED):
                return operand
            case Unary(operator="!", operand=inner):
                return _as_truth(inner, place)
            case Chain(level=level, first=left, rest=rest) if len(rest) == 1:
                operator, right = rest[0]
                negation = _SAME_NEGATED.get(operator)
                if _is_no_nan(left) and _is_no_nan(right):
                    negation = negation or _ORDER_NEGATED.get(operator)
                if negation:
                    return Chain(level=level, first=left, rest=((negation, right),))
        return _not(operand)

    def _conditional(self, node: Conditional, place: _Place) -> Node:
        condition = self.normalize(node.condition, _TRUTH)
        chosen = truth(condition)
        if chosen is not None:
            return self.normalize(node.then if chosen else node.otherwise, place)
        then, otherwise = self._values((node.then, node.otherwise))
        if place.positive and _is_logical(then) and _is_logical(otherwise) and _put_out_fits(node):
            chosen_then = _chain(AND, [node.condition, node.then])
            chosen_otherwise = _chain(AND, [_not(node.condition), node.otherwise])
            return self._connected(_chain(OR, [chosen_then, chosen_otherwise]), place)
        return replace(node, condition=condition, then=then, otherwise=otherwise)

    def _text(self, node: Node) -> str:
        known = self._texts.get(id(node))
        if known is None:
            known = node, render(node, self._cached_text)
            self._texts[id(node)] = known
        return known[1]

    def _cached_text(self, node: Node) -> str | None:
        known = self._texts.get(id(node))
        return None if known is None else known[1]


def _as_operator(node: Node) -> Node:
    """Write a function as the operator that means the same."""
    match node:
        case Call(name=name, arguments=(condition, then, otherwise)) if name.lower() == "ifthenelse":
            return Conditional(condition=condition, then=then, otherwise=otherwise)
        case Call(name=name, arguments=(operand,)) if name.lower() == "isundefined":
            right = Literal(value=Special.UNDEFINED)
            return Chain(level=PRECEDENCE["=?="], first=operand, rest=(("=?=", right),))
        case _:
            return node


def _compare_integers(node: Chain) -> Chain:
    """Write the real numbers of a comparison as integers, where they are; `=?=` distinguishes the two."""
    operator, right = node.rest[0]
    if node.level not in COMPARISONS or operator in {"=?=", "=!="}:
        return node
    return replace(node, first=as_integer(node.first), rest=((operator, as_integer(right)),))


def _chain(level: int, operands: list[Node]) -> Chain:
    rest = tuple((LOGICAL_OPERATORS[level], operand) for operand in operands[1:])
    return Chain(level=level, first=operands[0], rest=rest)


def _not(node: Node) -> Unary:
    return Unary(operator="!", operand=node)


def _as_truth(node: Node, place: _Place) -> Node:
    """Convert a number to the truth value that `&&`, `||` or `!` gave it before."""
    if place.truth_only or _is_logical(node):
        return node
    return _chain(AND, [_TRUE, node])


def _is_logical(node: Node) -> bool:
    """Whether a part is certainly true, false or undefined, unless it is Error."""
    match node:
        case Literal(value=value):
            return isinstance(value, bool) or value is Special.UNDEFINED
        case Chain(level=level):
            if level == ELVIS:
                return all(_is_logical(child) for child in children(node))
            return level in LOGICAL_OPERATORS or level in COMPARISONS
        case Unary(operator=operator):
            return operator == "!"
        case Conditional(then=then, otherwise=otherwise):
            return _is_logical(then) and _is_logical(otherwise)
        case Call(name=name):
            return name.lower() in _LOGICAL_FUNCTIONS
        case _:
            return False


def _rank(node: Node) -> int:
    return 0 if isinstance(node, Attribute) else 2 if is_constant(node) else 1


def _is_no_nan(node: Node) -> bool:
    """Whether `!(a < b)` is `a >= b`: not for the NaN of `real("nan")`, which no resource has."""
    return isinstance(node, Attribute) or is_constant(node)


def _put_out_fits(node: Conditional) -> bool:
    return all(count < MAX_PUT_OUT for count, _ in enumerate(_put_out(node)))


def _put_out(node: Node) -> Iterator[Node]:
    """Yield the parts with conditionals converted, each as often as it would occur."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        yield part
        waiting.extend(children(part))
        if isinstance(part, Conditional):
            waiting.append(part.condition)
