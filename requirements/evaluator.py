"""THE evaluator: whether a resource fulfils the requirements of a job, with every reason if not."""

from collections.abc import Iterator, Mapping

from requirements.canonical import Requirements
from requirements.classad import evaluation
from requirements.classad.evaluation import Operands
from requirements.classad.expression import Expression
from requirements.nodes import resolution
from requirements.nodes.enumeration import TotalWork
from requirements.nodes.node_attributes import NO_NODE_ATTRIBUTES, NodeAttributes
from requirements.nodes.resolution import QueueDecision
from requirements.record import (
    Declaration,
    Declarations,
    MatchRule,
    Reason,
    ReasonKind,
    Record,
    ValueKind,
    compared_parameter,
    kind_of,
    mismatch,
)
from requirements.values import Value, deduplicate, find_excess, fold, format_value, lookup, normal

__all__ = [
    *("QueueDecision", "Reason", "ReasonKind", "decide_at_queue", "eligible", "failing"),
    *("format_requirement", "list_undecided", "operands", "parameters", "parts", "replace_operand"),
]


def failing(
    requirements: Requirements,
    resource: Mapping[str, Value],
    declarations: Declarations,
    nodes: NodeAttributes = NO_NODE_ATTRIBUTES,
) -> tuple[Reason, ...]:
    """Return every requirement that the resource does not fulfil; empty means that it is eligible.

    Names of the resource are looked up without case. Attributes that differ between nodes are fulfilled if a
    node may fulfil them.
    """
    known = nodes.without_these(resource) if nodes else resource
    if isinstance(requirements, Record):
        return tuple(_record_reasons(requirements, known, declarations, nodes))
    if nodes:
        return resolution.failing_parts(requirements.text, known, nodes)
    return evaluation.failing_parts(requirements.text, known)


def eligible(
    requirements: Requirements,
    resource: Mapping[str, Value],
    declarations: Declarations,
    nodes: NodeAttributes = NO_NODE_ATTRIBUTES,
) -> bool:
    """Whether the resource fulfils all requirements, or may have nodes that do.

    With `nodes`, an uncertain case counts as eligible; a queue with a suitable node is never excluded.
    """
    if isinstance(requirements, Record):
        known = nodes.without_these(resource) if nodes else resource
        return next(_record_reasons(requirements, known, declarations, nodes), None) is None
    if nodes:
        return resolution.resolve(requirements, resource, declarations, nodes).eligible
    return evaluation.is_true(requirements.text, resource)


def decide_at_queue(
    requirements: Requirements,
    resource: Mapping[str, Value],
    declarations: Declarations,
    nodes: NodeAttributes,
    total: TotalWork | None = None,
) -> QueueDecision:
    """Decide requirements at a queue, and return what is left to the facts of its nodes.

    For all facts that the nodes may have: the requirements are fulfilled by queue and facts together
    (`node_attributes.merge_facts`) only if the queue is eligible, and if nothing is undecided.

    Questions about many queues share the `total` work: when nothing is left, nodes decide.
    """
    is_record = isinstance(requirements, Record)
    if is_record and not eligible(requirements, resource, declarations, nodes):
        return QueueDecision(eligible=False)
    return resolution.resolve(requirements, resource, declarations, nodes, total)


def parts(requirements: Requirements) -> tuple[Requirements, ...]:
    """Split requirements into parts: a resource fulfils the whole if and only if it fulfils each part."""
    if isinstance(requirements, Record):
        return tuple(Record(values=(entry,)) for entry in requirements.values)
    return (requirements,)


def operands(requirements: Requirements, present: frozenset[str]) -> tuple[Operands, ...]:
    """Return the groups of operands that `failing` evaluates at queues with uniform nodes.

    Empty for a record, whose parts are evaluated one by one, and for an expression that can no longer be
    parsed. `present` has the folded names that any of the queues has.
    """
    return () if isinstance(requirements, Record) else evaluation.group_operands(requirements.text, present)


def format_requirement(requirements: Requirements, declarations: Declarations) -> str:
    """Format requirements for people."""
    if isinstance(requirements, Expression):
        return requirements.text
    return "; ".join(
        f"{name}: {_format_wanted(wanted, declarations.get(name))}" for name, wanted in requirements.values
    )


def replace_operand(requirements: Requirements, wanted: str, new: str | None) -> Requirements | None:
    """Return the expression with another operand, or none, in place of this one in its outermost `&&`.

    None: nothing is left.
    """
    if isinstance(requirements, Record):
        return requirements
    dropped = _bare(wanted)
    operands = evaluation.operands(requirements.text)
    changed = [new if _bare(text) == dropped else text for text in operands] if operands else [new]
    left = [f"({text})" for text in changed if text is not None]
    return Expression(text=" && ".join(left)) if left else None


def _bare(text: str) -> str:
    return text.strip("() ")


def parameters(requirements: Requirements, declarations: Declarations) -> tuple[str, ...]:
    """Return the names of a resource on which the requirements depend."""
    if isinstance(requirements, Record):
        return tuple(compared_parameter(name, declarations.get(name)) for name, _ in requirements.values)
    return evaluation.names(requirements.text)


def list_undecided(decision: QueueDecision, declarations: Declarations) -> frozenset[str]:
    """Return the folded parameters on which nodes decide at a queue."""
    found: set[str] = set()
    for part in decision.undecided:
        relevant = part.relevant
        if relevant and all(each.attribute == fold(each.name) for each in relevant):
            found.update(fold(each.name) for each in relevant)
        else:
            found.update(fold(name) for each in part.requirements for name in parameters(each, declarations))
    return frozenset(found)


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
                has=None if has is None else _format_present(wanted, has, kind),
                kind=kind,
            )
    for entry, kind in resolution.list_impossible(record, declarations, nodes):
        yield Reason(
            requirement=entry.name,
            wanted=_format_wanted(entry.wanted, entry.declaration),
            has=nodes.describe(compared_parameter(entry.name, entry.declaration)),
            kind=kind,
        )


def _format_present(wanted: Value, has: Value, kind: ReasonKind) -> str:
    """Format a value of a resource; with its kind if that is why it does not do: `4000 (string)`."""
    is_list = isinstance(has, tuple)
    is_number = kind is ReasonKind.NOT_AMONG and is_list and kind_of(normal(wanted)) is ValueKind.NUMBER
    if kind is not ReasonKind.TYPE and not is_number:
        return format_value(has)
    kinds = sorted({kind_of(item) for item in (has if isinstance(has, tuple) else (has,))})
    return f"{format_value(has)} ({'list of ' if is_list else ''}{' and '.join(kinds)})"


def _format_wanted(wanted: Value, declaration: Declaration | None) -> str:
    if excess := find_excess(wanted):
        return f"a value that {excess}"
    declared = declaration or Declaration(name="")
    plain = normal(wanted)
    if isinstance(plain, tuple):
        which = "all of " if declared.match is MatchRule.ALL else "one of "
        return which + format_value(deduplicate(wanted))
    text = format_value(wanted) + (f" {declared.unit}" if declared.unit else "")
    is_number = not isinstance(plain, str | bool) or declared.kind is ValueKind.NUMBER
    return f"at least {text}" if is_number and declared.kind is not ValueKind.LIST else text
