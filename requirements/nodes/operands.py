"""The operands of the outermost `&&` of an expression, and what each depends on at the nodes of a queue.

An unknown attribute is understood where it is compared with a value that does not depend on the node, or is
used as a truth value. A smallest part that uses one in any other way (functions, arithmetic, another
attribute) may have any outcome: it is replaced by a variable of its own.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from requirements.classad import evaluation, work
from requirements.classad.evaluation import Program
from requirements.classad.parser import read_expression
from requirements.classad.restrictions import resource_name, resource_names
from requirements.classad.syntax_tree import (
    AND,
    COMPARISONS,
    ELVIS,
    OR,
    Attribute,
    Call,
    Chain,
    Conditional,
    Literal,
    Node,
    SourceText,
    Special,
    Unary,
    attribute_key,
    render,
)
from requirements.classad.work import Work
from requirements.errors import InvalidInput
from requirements.kept import keep
from requirements.nodes.representatives import Comparisons
from requirements.values import Scalar, Value

_EXACT = frozenset({"=?=", "=!=", "identicalmember"})
_ORDER = frozenset({"<", "<=", ">", ">="})
_MEMBER = frozenset({"member", "identicalmember"})
_ZERO = Literal(value=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPart:
    """A part whose outcome is a variable."""

    name: str  #: of the attribute in its place
    attribute: str | None = None  #: of `member(item, attribute)`, by `attribute_key`
    item: "Comparison | None" = None

    def find_item(self, resource: Mapping[str, Value]) -> Scalar | None:
        """Return the item at a queue; None: it is no single value, or the part is another one."""
        values = [] if self.item is None else self.item.values(resource)
        return values[0] if len(values) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOperand:
    """An operand that depends on attributes of the nodes."""

    program: Program  #: with its text as written, and attributes in place of the open parts
    work: Work
    names: tuple[str, ...]  #: attributes of the nodes, as written
    open_parts: tuple[OpenPart, ...]
    #: Of several variables, for those that only parts of their own depend on, all of these parts.
    own_parts: Mapping[str, tuple[Node, ...]]

    def compile_own_parts(self, name: str) -> list[Program]:
        """Return the programs of the parts that only one variable has."""
        return [_share(evaluation.compile_node(part), self.program) for part in self.own_parts.get(name, ())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What an unknown attribute is compared with."""

    operator: str
    literal: Scalar | Special | None = None
    program: Program | None = None  #: in place of a literal: what depends on the queue only
    work: Work | None = None  #: of the program

    @classmethod
    def read(cls, other: Node, operator: str) -> "Comparison":
        """Read what is compared."""
        if isinstance(other, Literal):
            return cls(operator=operator, literal=other.value)
        return cls(operator=operator, program=evaluation.compile_node(other), work=work.count_work(other))

    def values(self, resource: Mapping[str, Value]) -> list[Scalar]:
        """Return the plain values at a queue."""
        found = self.literal if self.program is None else self.program.value(resource)
        # Undefined and Error are integers to Python.
        items = found if isinstance(found, list) else [found]
        return [each for each in items if isinstance(each, str | int | float) and not isinstance(each, Enum)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOperands:
    """The operands of an expression, at queues with these attributes of nodes."""

    of_queue: tuple[Program, ...]  #: those that the queue decides
    of_nodes: tuple[NodeOperand, ...]
    comparisons: Mapping[str, tuple[Comparison, ...]]  #: by `attribute_key` of the unknown attribute

    def list_computed(self) -> Iterator[tuple[Program, Work]]:
        """Yield what is computed at a queue before the operands are evaluated."""
        items = (part.item for each in self.of_nodes for part in each.open_parts if part.item)
        for each in itertools.chain(items, *self.comparisons.values()):
            if each.program is not None and each.work is not None:
                yield each.program, each.work

    def compared(self, name: str, resource: Mapping[str, Value]) -> Comparisons:
        """Return the literals that an unknown attribute is compared with at a queue."""
        found = Comparisons([])
        for each in self.comparisons.get(attribute_key(name), ()):
            found.literals += each.values(resource)
            found.is_exact |= each.operator in _EXACT
            found.is_ordered |= each.operator in _ORDER
        return found


#: Bytes of what was read, for each character and for each name, at most.
_OF_CHARACTER: Final = 100
_OF_NAME: Final = 200


def _measure(_: object, text: str, *names: frozenset[str]) -> int:
    return _OF_CHARACTER * len(text) + _OF_NAME * sum(map(len, names))


@keep(64, _measure)
def read_operands(text: str, listed: frozenset[str], unknown: frozenset[str]) -> ReadOperands | None:
    """Read an expression; None: it can no longer be parsed. Names of attributes are by `attribute_key`."""
    source = SourceText(text=text, path="Requirements")
    try:
        whole, node = evaluation.read(source), read_expression(source)
    except InvalidInput:
        return None
    reader = _Reader(listed=listed, unknown=unknown, prefix=_free_prefix(resource_names(node)))
    programs = whole.parts or (whole,)
    of_queue, of_nodes = [], []
    for program, operand in zip(programs, evaluation.conjuncts(node), strict=True):
        if reader.depends_on(operand, listed | unknown):
            of_nodes.append(reader.read_operand(program, operand, is_whole=not whole.parts))
        else:
            of_queue.append(program)
    return ReadOperands(
        of_queue=tuple(of_queue),
        of_nodes=tuple(of_nodes),
        comparisons={name: tuple(found) for name, found in reader.comparisons.items()},
    )


def _free_prefix(names: Mapping[str, str]) -> str:
    prefix = "part_"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix


@dataclass(slots=True, kw_only=True)
class _Reader:
    listed: frozenset[str]
    unknown: frozenset[str]
    prefix: str
    comparisons: dict[str, list[Comparison]] = field(default_factory=dict)
    open_parts: dict[str, OpenPart] = field(default_factory=dict)  #: of all operands, by their text
    parts: list[Node] = field(default_factory=list)  #: what `&&`, `||`, `!` and `?:` of an operand combine
    _names: dict[int, frozenset[str]] = field(default_factory=dict)  #: by id of a part

    def depends_on(self, node: Node, names: frozenset[str]) -> bool:
        known = self._names.get(id(node))
        if known is None:
            known = self._names[id(node)] = frozenset(resource_names(node))
        return not names.isdisjoint(known)

    def read_operand(self, program: Program, node: Node, *, is_whole: bool) -> NodeOperand:
        self.parts = []
        new = self._read(node)
        parts = {each.name: each for each in self.open_parts.values()}
        names = resource_names(new)
        if any(name in parts for name in names):
            operand = new if is_whole else Chain(level=AND, first=Literal(value=True), rest=(("&&", new),))
            new_program = _share(evaluation.compile_node(operand), program)
            program = replace(new_program, text=program.text, limits=program.limits)
        return NodeOperand(
            program=program,
            work=work.count_work(new),
            names=tuple(spelled for name, spelled in names.items() if name in self.listed | self.unknown),
            open_parts=tuple(parts[name] for name in names if name in parts),
            own_parts=self._find_own_parts(
                [name for name in names if name in self.listed | self.unknown | parts.keys()]
            ),
        )

    def _find_own_parts(self, names: Sequence[str]) -> Mapping[str, tuple[Node, ...]]:
        found: dict[str, tuple[Node, ...]] = {}
        used = [(part, frozenset(resource_names(part)).intersection(names)) for part in self.parts]
        for name in names if len(names) > 1 else ():
            own = [part for part, others in used if name in others]
            if all(len(others) == 1 for _, others in used if name in others):
                found[name] = tuple(own)
        return found

    def _read(self, node: Node) -> Node:
        """Return a part whose truth counts, with what is not understood replaced."""
        if not self.depends_on(node, self.listed | self.unknown):
            return node
        match node:
            case Chain(level=level, first=first, rest=rest) if level in (AND, OR, ELVIS):
                operands = tuple((operator, self._read(operand)) for operator, operand in rest)
                return replace(node, first=self._read(first), rest=operands)
            case Unary(operator="!", operand=operand):
                return replace(node, operand=self._read(operand))
            case Conditional(condition=condition, then=then, otherwise=otherwise):
                return replace(
                    node,
                    condition=self._read(condition),
                    then=self._read(then),
                    otherwise=self._read(otherwise),
                )
            case Call(name=name, arguments=arguments) if name.lower() == "ifthenelse":
                return replace(node, arguments=tuple(map(self._read, arguments)))
        self.parts.append(self._read_comparison(node) if self.depends_on(node, self.unknown) else node)
        return self.parts[-1]

    def _read_comparison(self, node: Node) -> Node:
        match node:
            case Attribute():
                return self._compare(node, "", _ZERO, node)
            case Chain(level=level, first=first, rest=((operator, second),)) if level in COMPARISONS:
                pair = (first, second) if self.depends_on(first, self.unknown) else (second, first)
                return self._compare(pair[0], operator, pair[1], node)
            case Call(name=name, arguments=(Attribute(),)) if name.lower() == "isundefined":
                return node
            case Call(name=name, arguments=(first, second)) if name.lower() in _MEMBER:
                of_queue = not self.depends_on(first, self.listed | self.unknown)
                if name.lower() == "member" and of_queue and isinstance(second, Attribute):
                    return self._open(node, second, first)
                return self._compare(first, name.lower(), second, node)
        return self._open(node)

    def _compare(self, attribute: Node, operator: str, other: Node, node: Node) -> Node:
        """Note what an unknown attribute is compared with, unless that depends on the node, too."""
        if not isinstance(attribute, Attribute) or self.depends_on(other, self.listed | self.unknown):
            return self._open(node)
        found = self.comparisons.setdefault(_key_of(attribute), [])
        found.append(Comparison.read(other, operator))
        return node

    def _open(self, node: Node, attribute: Attribute | None = None, item: Node | None = None) -> Node:
        part = self.open_parts.setdefault(
            render(node),
            OpenPart(
                name=f"{self.prefix}{len(self.open_parts)}",
                attribute=_key_of(attribute) if attribute is not None else None,
                item=Comparison.read(item, "member") if item is not None else None,
            ),
        )
        return Attribute(names=(part.name,))


def _share(part: Program, whole: Program) -> Program:
    """Let a part read the values that the whole reads."""
    shares = {name: share for name, share in whole.shares.items() if name in part.shares}
    return replace(part, shares=shares)


def _key_of(attribute: Attribute) -> str:
    return attribute_key(resource_name(attribute) or "")
