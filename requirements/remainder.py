"""What is left of an expression at a queue whose nodes differ, and why nothing would help."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from requirements import evaluation, partial
from requirements.effort import MAX_EFFORT
from requirements.errors import InvalidInput
from requirements.evaluation import FailingPart
from requirements.grammar import read_expression
from requirements.nodes import NodeAttributes, Option, shown_options
from requirements.outcomes import Outcome
from requirements.program import read
from requirements.rendering import attribute_key, attribute_name, rendered
from requirements.restrictions import resource_name
from requirements.rules import ReasonKind
from requirements.source import Source
from requirements.syntax import Attribute, Literal, Node
from requirements.values import Value, lookup, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """What the nodes of a queue decide of an expression."""

    possible: bool  #: whether it may be true of a node; False: of none
    text: str | None = None  #: what else must be true; None: nothing (or nothing would help)


_IMPOSSIBLE = Remainder(possible=False)
_TRUE = Literal(value=True, start=0, end=0)


def remainder(
    text: str, resource: Mapping[str, Value], nodes: NodeAttributes, *, effort: int = MAX_EFFORT
) -> Remainder:
    """What a node has to fulfil so that the expression is true of queue and node together.

    Args:
        text: The expression; one that no longer reads as one is never true.
        resource: What holds for every node of the queue.
        nodes: What its nodes may have.
        effort: What trying may take, in the unit of `requirements.effort`; what would take more stays open.
    """
    names = evaluation.names(text)
    options = {name: nodes.options(name) for name in names if name in nodes}
    if not options:
        return Remainder(possible=evaluation.is_true(text, resource))
    has = {
        name: value for name in names if name not in options and (value := lookup(resource, name)) is not None
    }
    # As texts: in the key of a cache True would be 1.
    return _remainder(text, json.dumps(has), json.dumps(options), effort)


@lru_cache(maxsize=4096)
def _remainder(text: str, has: str, options: str, effort: int) -> Remainder:
    resource = {name: _value(value) for name, value in json.loads(has).items() if value is not None}
    open_ = {attribute_key(name): _options(said) for name, said in json.loads(options).items()}
    node = read_expression(Source(text=text, path="Requirements"))
    part = partial.folded(node, resource, open_, effort=effort)
    if Outcome.TRUE not in part.outcomes:
        return _IMPOSSIBLE
    left = None if part.node == _TRUE else _readable(rendered(part.node, _spelled), text)
    return Remainder(possible=True, text=left)


def _value(raw: object) -> Value:
    return tuple(raw) if isinstance(raw, list) else raw  # type: ignore[return-value]


def _options(raw: list[object] | None) -> tuple[Option, ...] | None:
    return None if raw is None else tuple(None if item is None else _value(item) for item in raw)


def _readable(folded: str, whole: str) -> str:
    """What was folded, if it can be read again: long lists of the queue may have made it too long."""
    try:
        read(Source(text=folded, path="Requirements"))
    except InvalidInput:
        return whole
    return folded


def _spelled(part: Node) -> str | None:
    """An attribute as its user spelled it."""
    name = resource_name(part) if isinstance(part, Attribute) else None
    if name is None:
        return None
    return f"other.{name if attribute_name(name) == name.lower() else attribute_name(name)}"


def failing_parts(text: str, resource: Mapping[str, Value], nodes: NodeAttributes) -> tuple[FailingPart, ...]:
    """The operands of the outermost `&&` that are true of no node; empty where the whole may be."""
    if remainder(text, resource, nodes).possible:
        return ()
    asked = evaluation.names(text)
    if not any(name in nodes for name in asked):
        return evaluation.failing_parts(text, resource)
    operands = evaluation.operands(text)
    share = MAX_EFFORT // max(1, len(operands))  # many operands together take no longer than one expression
    failed = [each for each in operands if not remainder(each, resource, nodes, effort=share).possible] or [
        text
    ]
    return tuple(part for each in failed for part in _why(each, resource, nodes))


def _why(text: str, resource: Mapping[str, Value], nodes: NodeAttributes) -> tuple[FailingPart, ...]:
    names = evaluation.names(text)
    if not any(name in nodes for name in names):
        return evaluation.failing_parts(text, resource)
    said = "; ".join(_said(name, resource, nodes) for name in names)
    return (FailingPart(text=text, has=said, kind=ReasonKind.EXPRESSION),)


def _said(name: str, resource: Mapping[str, Value], nodes: NodeAttributes) -> str:
    if name in nodes:
        return f"{name} of a node is one of {shown_options(nodes.options(name))}"
    value = lookup(resource, name)
    return f"{name} {evaluation.ABSENT}" if value is None else f"{name} = {shown(value)}"
