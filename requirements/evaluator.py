"""THE evaluator: whether a resource has what a job asks, with every reason why not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from requirements.canonical import Requirements
from requirements.classad import evaluation
from requirements.classad.evaluation import Operands
from requirements.classad.expression import Expression
from requirements.nodes import residual
from requirements.nodes.node_attributes import NO_NODE_ATTRIBUTES, NodeAttributes, format_options
from requirements.record.declarations import (
    Declaration,
    Declarations,
    MatchRule,
    ValueKind,
    compared_parameter,
)
from requirements.record.record import Record
from requirements.record.rules import ReasonKind, mismatch
from requirements.values import Value, deduplicate, format_value, lookup, normal

__all__ = [
    *("Reason", "ReasonKind", "Standing", "eligible", "failing", "in_words", "operands"),
    *("parameters", "parts", "reworded", "standing", "without"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One requirement that fails at a resource."""

    requirement: str  #: its name, or `Requirements` for an expression
    wanted: str  #: what is asked, for a person
    has: str | None  #: what the resource has; None: nothing of that name
    kind: ReasonKind

    def __str__(self) -> str:
        has = "nothing of that name" if self.has is None else self.has
        return f"{self.requirement}: wanted {self.wanted}, has {has} ({self.kind})"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDecision:
    """How requirements stand at a queue, before any of its nodes is known."""

    eligible: bool  #: whether a node that it may have would do
    residue: Requirements | None = None  #: what the node decides; None: nothing, the answer is final


def failing(
    requirements: Requirements,
    resource: Mapping[str, Value],
    declarations: Declarations,
    nodes: NodeAttributes = NO_NODE_ATTRIBUTES,
) -> tuple[Reason, ...]:
    """Every requirement that the resource does not fulfil; empty means that it is eligible.

    Args:
        requirements: What a job asks.
        resource: The effective parameters of a queue for the job's VO; names are looked up without case.
        declarations: What the names mean now; an expression takes no notice of them.
        nodes: What differs from node to node; fulfilled where a node may fulfil it.
    """
    known = nodes.without_these(resource) if nodes else resource
    if isinstance(requirements, Record):
        return tuple(_record_reasons(requirements, known, declarations, nodes))
    parts = (
        residual.failing_parts(requirements.text, known, nodes)
        if nodes
        else evaluation.failing_parts(requirements.text, known)
    )
    return tuple(
        Reason(requirement="Requirements", wanted=part.text, has=part.has, kind=part.kind) for part in parts
    )


def eligible(
    requirements: Requirements,
    resource: Mapping[str, Value],
    declarations: Declarations,
    nodes: NodeAttributes = NO_NODE_ATTRIBUTES,
) -> bool:
    """Whether the resource fulfils all requirements, or has nodes that may.

    With `nodes`, the answer is yes where it is not certain; it never is no where a node would do.
    """
    if isinstance(requirements, Record):
        known = nodes.without_these(resource) if nodes else resource
        return next(_record_reasons(requirements, known, declarations, nodes), None) is None
    if nodes:
        return residual.residual(requirements.text, resource, nodes).possible
    return evaluation.is_true(requirements.text, resource)


def decide_at_queue(
    requirements: Requirements,
    resource: Mapping[str, Value],
    declarations: Declarations,
    nodes: NodeAttributes,
) -> QueueDecision:
    """What a queue decides of requirements, and what is left to the facts of its nodes.

    For all facts that the nodes may have: the requirements are fulfilled by queue and facts together
    (`nodes.together`) if and only if the queue is eligible and the residue, if any, is fulfilled by them.
    """
    if not eligible(requirements, resource, declarations, nodes):
        return QueueDecision(eligible=False)
    if isinstance(requirements, Record):
        return QueueDecision(
            eligible=True, residue=residual.residual_record(requirements, declarations, nodes)
        )
    text = residual.residual(requirements.text, resource, nodes).text
    return QueueDecision(eligible=True, residue=None if text is None else Expression(text=text))


def parts(requirements: Requirements) -> tuple[Requirements, ...]:
    """What can be asked one by one: a resource that fulfils each of them fulfils the whole, and only then."""
    if isinstance(requirements, Record):
        return tuple(Record(values=(entry,)) for entry in requirements.values)
    return (requirements,)


def operands(requirements: Requirements, present: frozenset[str]) -> tuple[Operands, ...]:
    """What `failing` asks queues whose nodes are all alike, in groups to which the same parameters matter.

    None of a record, whose parts are asked one by one anyway, nor of what no longer reads as an expression.

    Args:
        requirements: What a job asks.
        present: Folded names that any of the queues has.
    """
    return () if isinstance(requirements, Record) else evaluation.group_operands(requirements.text, present)


def format_requirement(requirements: Requirements, declarations: Declarations) -> str:
    """What is asked, for a person."""
    if isinstance(requirements, Expression):
        return requirements.text
    return "; ".join(
        f"{name}: {_format_wanted(wanted, declarations.get(name))}" for name, wanted in requirements.values
    )


def remove_operand(requirements: Requirements, wanted: str) -> Requirements | None:
    """An expression without the operand of its outermost `&&` that was written so; None: nothing is left."""
    return _replace_operand(requirements, wanted, None)


def replace_operand(requirements: Requirements, wanted: str, new: str) -> Requirements | None:
    """An expression with another operand instead of the one of its outermost `&&` that was written so."""
    return _replace_operand(requirements, wanted, new)


def _replace_operand(requirements: Requirements, wanted: str, new: str | None) -> Requirements | None:
    if isinstance(requirements, Record):
        return requirements
    dropped = _bare(wanted)
    operands = evaluation.operands(requirements.text)
    changed = [new if _bare(text) == dropped else text for text in operands] if operands else [new]
    left = [f"({text})" for text in changed if text is not None]
    return Expression(text=" && ".join(left)) if left else None


def _bare(text: str) -> str:
    """Parentheses around the whole are no part of it."""
    return text.strip("() ")


def parameters(requirements: Requirements, declarations: Declarations) -> tuple[str, ...]:
    """The names of a resource that the requirements look at; nothing else about it matters to them."""
    if isinstance(requirements, Record):
        return tuple(compared_parameter(name, declarations.get(name)) for name, _ in requirements.values)
    return evaluation.names(requirements.text)


def _record_reasons(
    record: Record, resource: Mapping[str, Value], declarations: Declarations, nodes: NodeAttributes
) -> Iterator[Reason]:
    for name, wanted in record.values:
        declaration = declarations.get(name)
        parameter = compared_parameter(name, declaration)
        if nodes and parameter in nodes:
            continue
        has = lookup(resource, parameter)
        kind = mismatch(wanted, has, declaration)
        if kind is not None:
            yield Reason(
                requirement=name,
                wanted=_format_wanted(wanted, declaration),
                has=None if has is None else format_value(has),
                kind=kind,
            )
    for name, wanted, kind in residual.impossible(record, declarations, nodes):
        declaration = declarations.get(name)
        options = nodes.options(compared_parameter(name, declaration))
        yield Reason(
            requirement=name,
            wanted=_format_wanted(wanted, declaration),
            has=format_options(options),
            kind=kind,
        )


def _format_wanted(wanted: Value, declaration: Declaration | None) -> str:
    """What is asked, in words that say by which rule."""
    declared = declaration or Declaration(name="")
    plain = normal(wanted)
    if isinstance(plain, tuple):
        which = "all of " if declared.match is MatchRule.ALL else "one of "
        return which + format_value(deduplicate(wanted))
    text = format_value(wanted) + (f" {declared.unit}" if declared.unit else "")
    is_number = not isinstance(plain, str | bool) or declared.kind is ValueKind.NUMBER
    return f"at least {text}" if is_number and declared.kind is not ValueKind.LIST else text
