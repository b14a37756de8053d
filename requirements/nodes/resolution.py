"""Requirements at a queue with different nodes, by enumeration of what its nodes may have.

Each part (an entry of a record, an operand of the outermost `&&`) is evaluated for all combinations of what
it depends on. Parts with variables in common are joined: some combination has to fulfil all of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from requirements.canonical import Requirements
from requirements.classad import evaluation
from requirements.classad.expression import Expression
from requirements.nodes.enumeration import TotalWork, evaluate_operands
from requirements.nodes.node_attributes import NodeAttributes
from requirements.nodes.node_parts import NodePart, as_set, join_parts
from requirements.nodes.representatives import (
    NodeVariable,
    represent_listed,
    represent_required,
    required_items,
)
from requirements.record import (
    Declaration,
    Declarations,
    Reason,
    ReasonKind,
    Record,
    compared_parameter,
    mismatch,
)
from requirements.values import Value, fold, key, lookup

#: Lists that stand for all values of an attribute that a record requires.
_MOST_LISTS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDecision:
    """Decision about requirements at a queue, before its nodes are known."""

    eligible: bool  #: whether it may have a node that fulfils them
    undecided: tuple[NodePart, ...] = ()  #: what only some nodes fulfil; empty: the decision is final

    @property
    def parts(self) -> tuple[Requirements, ...]:
        """The parts that depend on the node, as written."""
        return tuple(part for joined in self.undecided for part in joined.requirements)


def resolve(
    requirements: Requirements,
    resource: Mapping[str, Value],
    declarations: Declarations,
    nodes: NodeAttributes,
    total: TotalWork | None = None,
) -> QueueDecision:
    """Decide an expression at a queue, or the entries of a record about attributes of its nodes.

    An expression that can no longer be parsed is never true.
    """
    if isinstance(requirements, Record):
        entries = _list_entries(requirements, declarations, nodes)
        return _decide(entry.part for of_one in entries for entry in of_one)
    names = evaluation.names(requirements.text)
    options = {name: nodes.options(name) for name in names if name in nodes}
    if not options:
        return QueueDecision(eligible=evaluation.is_true(requirements.text, resource))
    known = {
        name: has for name in names if name not in options and (has := lookup(resource, name)) is not None
    }
    parts = evaluate_operands(requirements.text, known, options, total)
    return QueueDecision(eligible=False) if parts is None else _decide(parts)


def _decide(parts: Iterator[NodePart]) -> QueueDecision:
    found = []
    for part in parts:
        if part.good == 0:
            return QueueDecision(eligible=False)
        found.append(part)
    undecided = join_parts(found)
    if any(part.good == 0 for part in undecided):
        return QueueDecision(eligible=False)
    return QueueDecision(eligible=True, undecided=undecided)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """An entry of a record about an attribute of nodes."""

    name: str
    wanted: Value
    declaration: Declaration | None
    variable: NodeVariable | None  #: None: too many values would have to be tried

    @property
    def part(self) -> NodePart:
        """The entry, with the values that fulfil it."""
        record = (Record(values=((self.name, self.wanted),)),)
        if self.variable is None:
            return NodePart(requirements=record, variables=())
        good = as_set(fault is None for fault in self._list_faults())
        return NodePart(requirements=record, variables=(self.variable,), good=good)

    @property
    def fault(self) -> ReasonKind | None:
        """Why no value fulfils the entry; None: one does."""
        kinds = set(self._list_faults())
        if not kinds or None in kinds:
            return None
        if self.variable is not None and not self.variable.is_listed:
            kinds.discard(ReasonKind.ABSENT)
        only = kinds.pop()
        return only if not kinds else ReasonKind.NOT_AMONG

    def _list_faults(self) -> Iterator[ReasonKind | None]:
        for each in self.variable.representatives if self.variable else ():
            yield mismatch(self.wanted, each.value, self.declaration)  # type: ignore[arg-type]  # never Error


def _list_entries(
    record: Record, declarations: Declarations, nodes: NodeAttributes
) -> Iterator[list[NodeEntry]]:
    """Yield the entries about each attribute of the nodes."""
    found: dict[str, list[tuple[str, Value, Declaration | None]]] = {}
    for name, wanted in record.values:
        declaration = declarations.get(name)
        if (parameter := compared_parameter(name, declaration)) in nodes:
            found.setdefault(fold(parameter), []).append((name, wanted, declaration))
    for parameter, entries in found.items():
        options = nodes.options(parameter)
        required = [(wanted, declaration) for _, wanted, declaration in entries]
        values = represent_required(required, _MOST_LISTS) if options is None else represent_listed(options)
        variable = values and NodeVariable(
            name=parameter,
            representatives=values,
            attribute=parameter,
            is_listed=options is not None,
            literals=frozenset(key(item) for each in required for item in required_items(*each)),
        )
        yield [
            NodeEntry(name=name, wanted=wanted, declaration=declaration, variable=variable or None)
            for name, wanted, declaration in entries
        ]


def list_impossible(
    record: Record, declarations: Declarations, nodes: NodeAttributes
) -> Iterator[tuple[NodeEntry, ReasonKind]]:
    """Yield the entries that no node fulfils, alone or together with others about the same attribute."""
    for entries in _list_entries(record, declarations, nodes):
        alone = [(entry, fault) for entry in entries if (fault := entry.fault) is not None]
        if not alone and not _decide(entry.part for entry in entries).eligible:
            alone = [(entry, ReasonKind.NOT_AMONG) for entry in entries]
        yield from alone


def failing_parts(text: str, resource: Mapping[str, Value], nodes: NodeAttributes) -> tuple[Reason, ...]:
    """Return the operands of the outermost `&&` that are true of no node; empty if the whole may be true."""
    if _may_be_true(text, resource, nodes):
        return ()
    failed = [each for each in evaluation.operands(text) if not _may_be_true(each, resource, nodes)]
    return tuple(reason for each in failed or [text] for reason in _explain(each, resource, nodes))


def _may_be_true(text: str, resource: Mapping[str, Value], nodes: NodeAttributes) -> bool:
    return resolve(Expression(text=text), resource, Declarations(), nodes).eligible


def _explain(text: str, resource: Mapping[str, Value], nodes: NodeAttributes) -> tuple[Reason, ...]:
    names = evaluation.names(text)
    if not any(name in nodes for name in names):
        return evaluation.failing_parts(text, resource)
    values = "; ".join(
        f"{name} of a node is one of {nodes.describe(name)}"
        if name in nodes
        else evaluation.format_attribute(name, lookup(resource, name))
        for name in names
    )
    return (evaluation.make_reason(text, values, ReasonKind.EXPRESSION),)
