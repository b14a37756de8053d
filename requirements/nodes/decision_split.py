"""What is decided where: at the queue, by the batch system that picks a node, by the matcher with facts."""

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
    """How the requirements of a job are decided at one queue that is eligible for them."""

    at_queue: tuple[str, ...]  #: what the queue's own parameters, or all its nodes, fulfil
    flags: tuple[str, ...]  #: arguments for the batch system, one by one
    left: str | None  #: what the matcher asks the facts of the node for; None: nothing

    def lines(self) -> tuple[str, ...]:
        """The same for a person, one thing a line."""
        told = " ".join(self.flags) or ("nothing that it could be told" if self.left else "nothing")
        return (
            *(f"at the queue: {text}" for text in self.at_queue),
            f"to the batch system: {told}",
            f"to the matcher, with the facts of the node: {self.left or 'nothing'}",
        )

    def as_json(self) -> dict[str, object]:
        """The same for machines."""
        return {"at_queue": list(self.at_queue), "flags": list(self.flags), "left": self.left}


def forwarding(
    requirements: Requirements,
    resource: Mapping[str, Value],
    declarations: Declarations,
    nodes: NodeAttributes,
    mapping: SiteMapping | None,
) -> Forwarding | None:
    """What is decided where at a queue; None where it is not eligible (`evaluator.failing` says why).

    Args:
        requirements: What a job asks.
        resource: The effective parameters of the queue for the job's VO.
        declarations: What the names mean now.
        nodes: What its nodes may have.
        mapping: How they are said to its batch system; None: not at all.
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
