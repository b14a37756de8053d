"""Split requirements by where they are decided: at the queue, in the batch system, or by the matcher."""

from collections.abc import Mapping
from dataclasses import dataclass

from requirements import evaluator
from requirements.canonical import Requirements
from requirements.classad import evaluation
from requirements.classad.expression import Expression
from requirements.nodes.flags import flags
from requirements.nodes.node_attributes import NodeAttributes
from requirements.nodes.site_mapping import SiteMapping
from requirements.record.declarations import Declarations
from requirements.record.record import Record
from requirements.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """Where the parts of a job's requirements are decided at an eligible queue."""

    at_queue: tuple[str, ...]  #: parts fulfilled by the queue's parameters, or by all its nodes
    flags: tuple[str, ...]  #: arguments for the batch system, one by one
    left: str | None  #: parts that the matcher checks with the facts of the node; None: none

    def lines(self) -> tuple[str, ...]:
        """Format for people, one line each."""
        sent = " ".join(self.flags) or ("nothing that it supports" if self.left else "nothing")
        return (
            *(f"at the queue: {text}" for text in self.at_queue),
            f"to the batch system: {sent}",
            f"to the matcher, with the facts of the node: {self.left or 'nothing'}",
        )

    def as_json(self) -> dict[str, object]:
        """Convert to JSON types."""
        return {"at_queue": list(self.at_queue), "flags": list(self.flags), "left": self.left}


def forwarding(
    requirements: Requirements,
    resource: Mapping[str, Value],
    declarations: Declarations,
    nodes: NodeAttributes,
    mapping: SiteMapping | None,
) -> Forwarding | None:
    """Determine where requirements are decided at a queue; None if it is not eligible.

    Args:
        requirements: Requirements of a job.
        resource: The effective parameters of the queue for the job's VO.
        declarations: The current declarations of names.
        nodes: Attributes that differ between its nodes.
        mapping: Their mapping to its batch system; None: nothing can be forwarded.
    """
    standing = evaluator.decide_at_queue(requirements, resource, declarations, nodes)
    if not standing.eligible:
        return None
    decided = (
        evaluator.format_requirement(part, declarations)
        for part in _parts(requirements)
        if evaluator.decide_at_queue(part, resource, declarations, nodes).residue is None
    )
    left = standing.residue
    return Forwarding(
        at_queue=tuple(decided),
        flags=flags(left, nodes, declarations, mapping),
        left=None if left is None else evaluator.format_requirement(left, declarations),
    )


def _parts(requirements: Requirements) -> tuple[Requirements, ...]:
    if isinstance(requirements, Record):
        return evaluator.parts(requirements)
    operands = evaluation.operands(requirements.text)
    return tuple(Expression(text=text) for text in operands) or (requirements,)
