"""Where each part of requirements is decided: at the queue, in the batch system, or by the matcher."""

from collections.abc import Mapping
from dataclasses import dataclass

from requirements import evaluator
from requirements.canonical import Requirements
from requirements.classad import evaluation
from requirements.classad.expression import Expression
from requirements.nodes.flags import compile_flags
from requirements.nodes.node_attributes import NodeAttributes
from requirements.nodes.site_mapping import SiteMapping
from requirements.record import Declarations, Record
from requirements.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """Where the parts of a job's requirements are decided at an eligible queue."""

    at_queue: tuple[str, ...]  #: parts fulfilled by the queue's parameters, or by all its nodes
    flags: tuple[str, ...]  #: arguments for the batch system, one by one
    left: str | None  #: parts that the matcher checks with the facts of the node; None: none
    sufficient: bool  #: whether the flags say all that is left, so that job managers may get such jobs


#: Of a job without requirements.
NO_REQUIREMENTS = Forwarding(at_queue=(), flags=(), left=None, sufficient=True)


def split_requirements(
    requirements: Requirements,
    resource: Mapping[str, Value],
    declarations: Declarations,
    nodes: NodeAttributes,
    mapping: SiteMapping | None,
) -> Forwarding | None:
    """Determine where requirements are decided at a queue; None if it is not eligible."""
    decision = evaluator.decide_at_queue(requirements, resource, declarations, nodes)
    if not decision.eligible:
        return None
    left = [evaluator.format_requirement(part, declarations) for part in decision.parts]
    parts = [evaluator.format_requirement(part, declarations) for part in _split_parts(requirements)]
    found = compile_flags(decision, mapping)
    between = "; " if isinstance(requirements, Record) else " && "
    return Forwarding(
        at_queue=tuple(part for part in parts if part not in left),
        flags=found.arguments,
        left=between.join(sorted(left, key=parts.index)) or None,
        sufficient=found.sufficient,
    )


def _split_parts(requirements: Requirements) -> tuple[Requirements, ...]:
    """The parts that must all hold: entries of a record, operands of the outermost `&&`."""
    if isinstance(requirements, Record):
        return evaluator.parts(requirements)
    operands = evaluation.operands(requirements.text)
    return tuple(Expression(text=text) for text in operands) or (requirements,)
