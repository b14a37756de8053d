"""Flags that tell a batch system which nodes a residue needs: the strongest necessary condition it supports.

The flags hold in every alternative of the condition: one statement of each is combined, so that `RAM > 2000
|| RAM > 1000 && GPU` gives `RAM > 1000`. Numbers are rounded so that the flags become weaker. Flags are
separate arguments for the submit command, without a shell.

Requirements are split by where they are decided: at the queue, in the batch system, or by the matcher.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from requirements import evaluator
from requirements.canonical import Requirements
from requirements.classad import evaluation
from requirements.classad.expression import Expression
from requirements.nodes.lrms_rendering import Clause, Renderer, Term, arguments, place_for, weaker
from requirements.nodes.lrms_vocabulary import Vocabulary
from requirements.nodes.necessary_condition import necessary_condition
from requirements.nodes.node_attributes import NodeAttributes
from requirements.nodes.site_mapping import SiteMapping
from requirements.record.declarations import Declarations
from requirements.record.record import Record
from requirements.values import Value

#: Comparisons of statements for the flags of one residue; beyond it, simpler and weaker flags are used.
MAX_COMPARISONS = 40_000


def flags(
    residue: Requirements | None,
    nodes: NodeAttributes,
    declarations: Declarations,
    mapping: SiteMapping | None,
) -> tuple[str, ...]:
    """Return the arguments for the submit command; empty if nothing can be expressed, as without a mapping.

    For all facts that the nodes may have: where the residue is fulfilled, the flags hold. Pilots of one queue
    with different flags are different kinds of pilots.
    """
    if residue is None or mapping is None:
        return ()
    alternatives = necessary_condition(residue, nodes, declarations)
    renderer = Renderer(mapping=mapping, nodes=nodes)
    terms = [tuple(renderer.render(alternative)) for alternative in alternatives]
    return arguments(_clauses(terms, mapping.vocabulary), mapping.vocabulary) if terms and all(terms) else ()


def _clauses(alternatives: Sequence[tuple[Term, ...]], vocabulary: Vocabulary) -> tuple[Clause, ...]:
    """Combine one statement of every alternative to a clause, in all ways; keep the strongest clauses."""
    clauses: list[Clause] = [()]
    left = MAX_COMPARISONS
    for alternative in alternatives:
        longer = [_extend_clause(clause, term) for clause in clauses for term in alternative]
        left -= len(longer) ** 2
        if left < 0:
            return _single_clauses(alternatives, vocabulary)
        clauses = _strongest(clause for clause in longer if place_for(clause, vocabulary))
    return tuple(clauses)


def _single_clauses(alternatives: Sequence[tuple[Term, ...]], vocabulary: Vocabulary) -> tuple[Clause, ...]:
    """Combine only statements about the same thing, which gives few clauses."""
    clauses: list[Clause] = []
    for first in alternatives[0]:
        whole: Clause = (first,)
        for alternative in alternatives[1:]:
            same = [term for term in alternative if term.place == first.place]
            whole = _extend_clause(whole, same[0]) if whole and same else ()
        if whole and place_for(whole, vocabulary):
            clauses.append(whole)
    return tuple(_strongest(clauses))


def _extend_clause(clause: Clause, term: Term) -> Clause:
    """Weaken the clause so that it also holds where the statement does."""
    places = {each.place: each for each in clause}
    seen = places.get(term.place)
    places[term.place] = weaker(seen, term) if seen else term
    return tuple(places[place] for place in sorted(places))


def _strongest(clauses: Iterable[Clause]) -> list[Clause]:
    """Drop clauses that are implied by another one."""
    distinct = list(dict.fromkeys(clauses))
    return [
        each
        for each in distinct
        if not any(other is not each and _implies(other, each) for other in distinct)
    ]


def _implies(one: Clause, two: Clause) -> bool:
    places = {each.place: each for each in two}
    return all(term.place in places and term.implies(places[term.place]) for term in one)


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
    """Determine where requirements are decided at a queue; None if it is not eligible."""
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
