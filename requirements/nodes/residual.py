"""Residue of requirements at a queue with different nodes, and the parts that no node fulfils."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from requirements.canonical import Requirements
from requirements.classad import evaluation
from requirements.classad.evaluation import read
from requirements.classad.expression import Expression
from requirements.classad.parser import read_expression
from requirements.classad.restrictions import resource_name
from requirements.classad.syntax_tree import (
    Attribute,
    Literal,
    Node,
    SourceText,
    attribute_key,
    attribute_name,
    render,
)
from requirements.errors import InvalidInput
from requirements.nodes import partial_evaluation
from requirements.nodes.node_attributes import NodeAttributes, Option
from requirements.nodes.partial_evaluation import MAX_EFFORT, TruthValue
from requirements.record import (
    Declaration,
    Declarations,
    Reason,
    ReasonKind,
    Record,
    compared_parameter,
    mismatch,
)
from requirements.values import Value, fold, lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDecision:
    """Decision about requirements at a queue, before its nodes are known."""

    eligible: bool  #: whether it may have a node that fulfils them
    residue: Requirements | None = None  #: what depends on the node; None: nothing, the decision is final


_TRUE = Literal(value=True)


def residual(
    text: str, resource: Mapping[str, Value], nodes: NodeAttributes, *, effort: int = MAX_EFFORT
) -> QueueDecision:
    """Return what a node has to fulfil so that the expression is true of queue and node together.

    An expression that can no longer be parsed is never true. Parts that exceed the effort are kept.
    """
    names = evaluation.names(text)
    options = {name: nodes.options(name) for name in names if name in nodes}
    if not options:
        return QueueDecision(eligible=evaluation.is_true(text, resource))
    has = {
        name: value for name in names if name not in options and (value := lookup(resource, name)) is not None
    }
    # As texts: as cache keys, True and 1 would be equal.
    return _residual(text, json.dumps(has), json.dumps(options), effort)


@lru_cache(maxsize=4096)
def _residual(text: str, has: str, options: str, effort: int) -> QueueDecision:
    resource = {name: _value(value) for name, value in json.loads(has).items() if value is not None}
    open_ = {attribute_key(name): _options(each) for name, each in json.loads(options).items()}
    node = read_expression(SourceText(text=text, path="Requirements"))
    part = partial_evaluation.folded(node, resource, open_, effort=effort)
    if TruthValue.TRUE not in part.outcomes:
        return QueueDecision(eligible=False)
    if part.node == _TRUE:
        return QueueDecision(eligible=True)
    left = _readable(render(part.node, _spelled), text)
    return QueueDecision(eligible=True, residue=Expression(text=left))


def _value(raw: object) -> Value:
    return tuple(raw) if isinstance(raw, list) else raw  # type: ignore[return-value]


def _options(raw: list[object] | None) -> tuple[Option, ...] | None:
    return None if raw is None else tuple(None if item is None else _value(item) for item in raw)


def _readable(folded: str, whole: str) -> str:
    """Return the folded text unless it cannot be parsed: long lists of the queue may make it too long."""
    try:
        read(SourceText(text=folded, path="Requirements"))
    except InvalidInput:
        return whole
    return folded


def _spelled(part: Node) -> str | None:
    name = resource_name(part) if isinstance(part, Attribute) else None
    if name is None:
        return None
    return f"other.{name if attribute_name(name) == name.lower() else attribute_name(name)}"


def failing_parts(text: str, resource: Mapping[str, Value], nodes: NodeAttributes) -> tuple[Reason, ...]:
    """Return the operands of the outermost `&&` that are true of no node; empty if the whole may be true."""
    if residual(text, resource, nodes).eligible:
        return ()
    names = evaluation.names(text)
    if not any(name in nodes for name in names):
        return evaluation.failing_parts(text, resource)
    operands = evaluation.operands(text)
    share = MAX_EFFORT // max(1, len(operands))  # many operands together take no longer than one expression
    failed = [each for each in operands if not residual(each, resource, nodes, effort=share).eligible] or [
        text
    ]
    return tuple(part for each in failed for part in _why(each, resource, nodes))


def _why(text: str, resource: Mapping[str, Value], nodes: NodeAttributes) -> tuple[Reason, ...]:
    names = evaluation.names(text)
    if not any(name in nodes for name in names):
        return evaluation.failing_parts(text, resource)
    values = "; ".join(_format_value(name, resource, nodes) for name in names)
    return (evaluation.make_reason(text, values, ReasonKind.EXPRESSION),)


def _format_value(name: str, resource: Mapping[str, Value], nodes: NodeAttributes) -> str:
    if name in nodes:
        return f"{name} of a node is one of {nodes.describe(name)}"
    return evaluation.format_attribute(name, lookup(resource, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeEntry:
    name: str
    wanted: Value
    declaration: Declaration | None

    def why_not(self, option: Option) -> ReasonKind | None:
        return mismatch(self.wanted, option, self.declaration)


def impossible(
    record: Record, declarations: Declarations, nodes: NodeAttributes
) -> Iterator[tuple[str, Value, ReasonKind]]:
    """Yield the entries that no node fulfils, alone or together with others about the same attribute."""
    for parameter, entries in _group_by_parameter(record, declarations, nodes).items():
        options = nodes.options(parameter)
        # A node with all required values fulfils every entry that can be fulfilled.
        tried = (_everything(entries),) if options is None else options
        alone = [(each, kind) for each in entries if (kind := _never(each, tried)) is not None]
        if not alone and not any(all(each.why_not(one) is None for each in entries) for one in tried):
            alone = [(each, ReasonKind.NOT_AMONG) for each in entries]
        yield from ((each.name, each.wanted, kind) for each, kind in alone)


def residual_record(record: Record, declarations: Declarations, nodes: NodeAttributes) -> Record | None:
    """Return the entries that only some nodes may fulfil; None: there are none."""
    by_parameter = _group_by_parameter(record, declarations, nodes)
    names = {
        each.name
        for parameter, entries in by_parameter.items()
        for each in entries
        if (options := nodes.options(parameter)) is None
        or any(each.why_not(option) is not None for option in options)
    }
    values = tuple(entry for entry in record.values if entry[0] in names)
    return Record(values=values) if values else None


def _group_by_parameter(
    record: Record, declarations: Declarations, nodes: NodeAttributes
) -> dict[str, list[_NodeEntry]]:
    found: dict[str, list[_NodeEntry]] = {}
    for name, wanted in record.values:
        declaration = declarations.get(name)
        parameter = compared_parameter(name, declaration)
        if parameter in nodes:
            entry = _NodeEntry(name=name, wanted=wanted, declaration=declaration)
            found.setdefault(fold(parameter), []).append(entry)
    return found


def _everything(entries: list[_NodeEntry]) -> Option:
    if len(entries) == 1:
        return entries[0].wanted
    return tuple(
        item
        for each in entries
        for item in (each.wanted if isinstance(each.wanted, tuple) else (each.wanted,))
    )


def _never(entry: _NodeEntry, options: tuple[Option, ...]) -> ReasonKind | None:
    """Return why no option fulfils the entry; None: one does."""
    kinds = {entry.why_not(option) for option in options}
    if None in kinds:
        return None
    only = kinds.pop()
    return only if not kinds else ReasonKind.NOT_AMONG
