"""Extract from a residue a necessary condition on single attributes, in a form that batch systems support.

Parts that cannot be expressed are left out, which makes the condition weaker, never stronger.

Source: gLite's forwarding, which took every comparison as a condition, under `!`, `||` and `?:` too.

A condition is a list of alternatives, each a list of statements about single attributes that must all hold.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from requirements.canonical import Requirements
from requirements.classad import evaluation
from requirements.classad.parser import read_expression
from requirements.classad.restrictions import resource_name, resource_names
from requirements.classad.syntax_tree import (
    AND,
    ELVIS,
    MIRRORED,
    OR,
    Attribute,
    Call,
    Chain,
    Conditional,
    ListOf,
    Literal,
    Node,
    SourceText,
    Special,
    Unary,
    children,
)
from requirements.nodes import partial_evaluation
from requirements.nodes.node_attributes import NodeAttributes, Option
from requirements.nodes.partial_evaluation import EvaluationBudget, TruthValue
from requirements.record import Declarations, MatchRule, Record, ValueKind, compared_parameter, mismatch
from requirements.values import Scalar, Value, as_number, fold, key, normal

#: Alternatives of one condition; more are replaced by the statements they have in common.
MAX_ALTERNATIVES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLeast:
    """The node's number is at least `value`; true counts as 1, of several numbers one is enough."""

    name: str  #: folded
    value: float
    strict: bool = False  #: greater, not equal


@dataclass(frozen=True, slots=True, kw_only=True)
class AtMost:
    """The node's number is at most `value`."""

    name: str  #: folded
    value: float
    strict: bool = False  #: less, not equal


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf:
    """The node has one of these values, perhaps among others; true means anything that counts as true."""

    name: str  #: folded
    options: tuple[Option, ...]
    listed: bool = False  #: the options are from the queue's list, so the node has exactly one
    among: bool = False  #: the node's value is a list


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacks:
    """The node has the attribute, but not this value."""

    name: str  #: folded
    value: str | float
    among: bool = False  #: the node's value may be a list, or of another type


Statement = AtLeast | AtMost | OneOf | Lacks
Alternative = tuple[Statement, ...]
Condition = tuple[Alternative, ...]

ALWAYS: Condition = ((),)
NEVER: Condition = ()


def some(
    attribute: str, options: Sequence[Option], *, listed: bool = False, among: bool = False
) -> Condition:
    """Return the condition that a node has one of the options; `NEVER` without any."""
    statement = OneOf(name=attribute, options=tuple(options), listed=listed, among=among)
    return ((statement,),) if options else NEVER


def any_of(conditions: Iterable[Condition]) -> Condition:
    """Return the disjunction of conditions; of too many alternatives, what they have in common."""
    alternatives = _merged(_distinct(alternative for each in conditions for alternative in each))
    if () in alternatives:
        return ALWAYS
    return (common(alternatives),) if len(alternatives) > MAX_ALTERNATIVES else tuple(alternatives)


def _distinct(alternatives: Iterable[Alternative]) -> list[Alternative]:
    """Drop repeated alternatives; that a node has 1 is another one than that it has true."""
    return list({repr(each): each for each in alternatives}.values())


def _merged(alternatives: list[Alternative]) -> list[Alternative]:
    """Merge alternatives about one attribute each: `X == 1 || X == 2`."""
    single: dict[str, OneOf] = {}
    others: list[Alternative] = []
    for each in alternatives:
        if len(each) == 1 and isinstance(each[0], OneOf):
            seen = single.get(each[0].name)
            single[each[0].name] = _united(seen, each[0]) if seen else each[0]
        else:
            others.append(each)
    return [(each,) for each in single.values()] + others


def all_of(conditions: Iterable[Condition]) -> Condition:
    """Return the conjunction of conditions, weakened if it has too many alternatives."""
    whole = ALWAYS
    for each in conditions:
        left, right = sorted((whole, each), key=len)
        if len(left) * len(right) > MAX_ALTERNATIVES:
            right = (common(right),)
        both = (joined for one in left for two in right if (joined := _together(one, two)) is not None)
        whole = tuple(_distinct(both))
    return whole


def _together(one: Alternative, two: Alternative) -> Alternative | None:
    """Return the conjunction of two alternatives; None: they exclude each other."""
    joined_by_key: dict[tuple[object, ...], Statement] = {}
    for each in (*one, *two):
        place = _place(each)
        stronger = _stronger(joined_by_key[place], each) if place in joined_by_key else each
        if stronger is None:
            return None
        joined_by_key[place] = stronger
    return tuple(joined_by_key.values())


def _place(statement: Statement) -> tuple[object, ...]:
    """Return the key under which statements are merged into one."""
    if isinstance(statement, Lacks):
        return Lacks, statement.name, key(statement.value), statement.among
    if isinstance(statement, OneOf) and not statement.listed:
        # On a node with several values, two statements may be true of different values.
        return OneOf, statement.name, frozenset(map(repr, statement.options))
    return type(statement), statement.name


def _stronger(one: Statement, two: Statement) -> Statement | None:
    match one, two:
        case AtLeast(), AtLeast():
            return max(one, two, key=lambda each: (each.value, each.strict))
        case AtMost(), AtMost():
            return min(one, two, key=lambda each: (each.value, not each.strict))
        case OneOf(listed=True), OneOf():
            in_both = {repr(each) for each in two.options}
            options = tuple(each for each in one.options if repr(each) in in_both)
            return replace(one, options=options) if options else None
    return one


def _united(one: OneOf, two: OneOf) -> OneOf:
    options = {repr(each): each for each in (*one.options, *two.options)}
    return replace(
        one, options=tuple(options.values()), listed=one.listed and two.listed, among=one.among or two.among
    )


def common(alternatives: Sequence[Alternative]) -> Alternative:
    """Return the strongest statements that all alternatives have in common, by attribute."""
    weakest: dict[tuple[type[Statement], str], Statement] = {
        (type(each), each.name): each for each in reversed(alternatives[0])
    }
    for alternative in alternatives[1:]:
        for place, seen in list(weakest.items()):
            others = [each for each in alternative if (type(each), each.name) == place]
            weaker = _weaker(seen, others[0]) if others else None
            if weaker is None:
                del weakest[place]
            else:
                weakest[place] = weaker
    return tuple(weakest.values())


def _weaker(one: Statement, two: Statement) -> Statement | None:
    match one, two:
        case AtLeast(), AtLeast():
            return min(one, two, key=lambda each: (each.value, each.strict))
        case AtMost(), AtMost():
            return max(one, two, key=lambda each: (each.value, not each.strict))
        case OneOf(), OneOf():
            return _united(one, two)
    return one if one == two else None


def necessary_condition(
    requirements: Requirements, nodes: NodeAttributes, declarations: Declarations
) -> Condition:
    """Return a condition that every node fulfilling a residue fulfils; names not in `nodes` are ignored."""
    if isinstance(requirements, Record):
        return all_of(
            _entry_condition(name, wanted, nodes, declarations) for name, wanted in requirements.values
        )
    node = read_expression(SourceText(text=requirements.text, path="Requirements"))
    return _Reader(nodes=nodes).may_be(node, truth=True)


def _entry_condition(
    name: str, wanted: Value, nodes: NodeAttributes, declarations: Declarations
) -> Condition:
    declaration = declarations.get(name)
    parameter = compared_parameter(name, declaration)
    if parameter not in nodes:
        return ALWAYS
    attribute, options = fold(parameter), nodes.options(parameter)
    if options is not None:
        fits = [each for each in options if mismatch(wanted, each, declaration) is None]
        return some(attribute, fits, listed=True)
    if declaration and declaration.kind is ValueKind.NUMBER:
        wanted = tuple(map(as_number, wanted)) if isinstance(wanted, tuple) else as_number(wanted)
    wanted = normal(wanted)
    is_list = declaration is not None and declaration.kind is ValueKind.LIST
    if not isinstance(wanted, tuple | str | bool) and not is_list:
        return ((AtLeast(name=attribute, value=wanted),),)
    items = wanted if isinstance(wanted, tuple) else (wanted,)
    if declaration and declaration.match is MatchRule.ALL:
        return all_of(some(attribute, [item]) for item in items)
    return some(attribute, items)


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Derives from one expression what must hold for a part to count as true, or as false."""

    nodes: NodeAttributes
    effort: EvaluationBudget = field(default_factory=EvaluationBudget)
    #: Cache by id of a part and truth: nested conditionals would be evaluated repeatedly.
    _read: dict[tuple[int, bool], Condition] = field(default_factory=dict)

    def may_be(self, node: Node, *, truth: bool) -> Condition:
        known = self._read.get((id(node), truth))
        if known is None:
            known = self._read[id(node), truth] = self._may_be(node, truth=truth)
        return known

    def _may_be(self, node: Node, *, truth: bool) -> Condition:
        names = self._names(node)
        if names is not None and (len(names) < 2 or not _is_logical(node)):
            tried = self._try_all(node, names, truth=truth)
            if tried is not None:
                return tried
        match node:
            case Chain(level=level) if level in (AND, OR):
                joined = all_of if (level == AND) is truth else any_of
                return joined(self.may_be(each, truth=truth) for each in children(node))
            case Chain(level=level) if level == ELVIS:
                return any_of(self.may_be(each, truth=truth) for each in children(node))
            case Unary(operator="!", operand=operand):
                return self.may_be(operand, truth=not truth)
            case Conditional():
                return self._chosen(node.condition, node.then, node.otherwise, truth=truth)
            case Call(name=name, arguments=arguments) if name.lower() == "ifthenelse":
                return self._chosen(*arguments, truth=truth)
            case _:
                return self._statement(node, truth=truth)

    def _chosen(self, chooser: Node, then: Node, otherwise: Node, *, truth: bool) -> Condition:
        return any_of(
            all_of((self.may_be(chooser, truth=which), self.may_be(arm, truth=truth)))
            for which, arm in ((True, then), (False, otherwise))
        )

    def _names(self, node: Node) -> list[str] | None:
        """Return the attributes of a part; None: one of them does not differ between nodes."""
        names = resource_names(node)
        return list(names) if all(name in self.nodes for name in names) else None

    def _try_all(self, node: Node, names: list[str], *, truth: bool) -> Condition | None:
        """Evaluate a part for all values that nodes may have; None: unknown, or too many."""
        options = {name: known for name in names if (known := self.nodes.options(name)) is not None}
        limit = math.inf if len(names) < 2 else MAX_ALTERNATIVES
        count = math.prod(map(len, options.values()))
        if len(options) < len(names) or count > limit:
            return None
        work = evaluation.largest_work(node, {}, options)
        if names and not self.effort.spend(node, names=len(names), combinations=count, work=work):
            return None
        wanted = TruthValue.TRUE if truth else TruthValue.FALSE
        values = evaluation.compile_node(node).values({}, options)
        combinations = product(*options.values())
        found = [
            combination
            for combination, value in zip(combinations, values, strict=True)
            if partial_evaluation.as_truth(partial_evaluation.outcome_of_value(value)) is wanted
        ]
        if not names or len(found) == count:
            return ALWAYS if found else NEVER
        if len(names) == 1:
            return some(fold(names[0]), [each for (each,) in found], listed=True)
        return any_of(
            all_of(
                some(fold(name), [each], listed=True) for name, each in zip(names, combination, strict=True)
            )
            for combination in found
        )

    def _statement(self, node: Node, *, truth: bool) -> Condition:
        match node:
            case Attribute():
                return self._about(node, lambda name: some(name, [truth]))
            case Chain(first=first, rest=((operator, second),)) if operator in _READ:
                if isinstance(first, Attribute):
                    return self._comparison(first, operator, second, truth=truth)
                if isinstance(second, Attribute):
                    return self._comparison(second, MIRRORED.get(operator, operator), first, truth=truth)
            case Call(name=name, arguments=(first, second)) if name.lower() in _MEMBER:
                return self._member(first, second, truth=truth)
        return ALWAYS

    def _comparison(self, attribute: Attribute, operator: str, other: Node, *, truth: bool) -> Condition:
        value = _scalar(other)
        if value is None:
            return ALWAYS
        stated = operator if truth else _NEGATED[operator]
        return self._about(attribute, lambda name: _READ[stated](name, value))

    def _member(self, first: Node, second: Node, *, truth: bool) -> Condition:
        if isinstance(second, Attribute):
            attribute, values = second, [_scalar(first)]
        elif isinstance(first, Attribute) and isinstance(second, ListOf):
            attribute, values = first, [_scalar(each) for each in second.items]
        else:
            return ALWAYS
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return ALWAYS
        if truth:
            return self._about(attribute, lambda name: some(name, known, among=attribute is second))
        return self._about(attribute, lambda name: all_of(_not_among(name, each) for each in known))

    def _about(self, attribute: Attribute, build: Callable[[str], Condition]) -> Condition:
        name = resource_name(attribute)
        return build(fold(name)) if name and name in self.nodes else ALWAYS


def _bound(kind: type[AtLeast | AtMost], name: str, value: Scalar, *, strict: bool) -> Condition:
    return ALWAYS if isinstance(value, str | bool) else ((kind(name=name, value=value, strict=strict),),)


def _differs(name: str, value: Scalar) -> Condition:
    """Return the condition of `X != value`; none for true: 2 differs from true, but counts as true."""
    if isinstance(value, bool):
        return ALWAYS if value else some(name, [True])
    return ((Lacks(name=name, value=value),),)


def _not_among(name: str, value: Scalar) -> Condition:
    return ALWAYS if isinstance(value, bool) else ((Lacks(name=name, value=value, among=True),),)


_READ: dict[str, Callable[[str, Scalar], Condition]] = {
    ">=": lambda name, value: _bound(AtLeast, name, value, strict=False),
    ">": lambda name, value: _bound(AtLeast, name, value, strict=True),
    "<=": lambda name, value: _bound(AtMost, name, value, strict=False),
    "<": lambda name, value: _bound(AtMost, name, value, strict=True),
    "==": lambda name, value: some(name, [value]),
    "!=": _differs,
    "=?=": lambda name, value: some(name, [value]),
    # Also true of a node without the attribute, which no batch system can express.
    "=!=": lambda name, value: ALWAYS,  # noqa: ARG005  # one signature for all
}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "==", "=?=": "=!=", "=!=": "=?="}
_MEMBER = frozenset({"member", "identicalmember"})
_LOGICAL_LEVELS = (AND, OR, ELVIS)


def _is_logical(node: Node) -> bool:
    """Whether a part is decomposed rather than evaluated as a whole."""
    if isinstance(node, Call):
        return node.name.lower() == "ifthenelse"
    if isinstance(node, Unary):
        return node.operator == "!"
    return isinstance(node, Conditional) or (isinstance(node, Chain) and node.level in _LOGICAL_LEVELS)


def _scalar(node: Node) -> Scalar | None:
    """Return the value of a literal; None: another part, or undefined."""
    if isinstance(node, Unary) and node.operator == "-" and isinstance(node.operand, Literal):
        value = node.operand.value
        return -value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if isinstance(node, Literal) and not isinstance(node.value, Special):
        return node.value
    return None
