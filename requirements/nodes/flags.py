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
from requirements.nodes import sufficient_flags
from requirements.nodes.lrms_rendering import (
    Clause,
    Renderer,
    Term,
    are_all_written,
    arguments,
    choose_written,
    place_for,
    weaker,
)
from requirements.nodes.lrms_vocabulary import Vocabulary
from requirements.nodes.necessary_condition import necessary_condition
from requirements.nodes.node_attributes import NodeAttributes
from requirements.nodes.site_mapping import SiteMapping
from requirements.record.declarations import Declarations
from requirements.values import Value

#: Comparisons of statements for the flags of one residue; beyond it, simpler and weaker flags are used.
MAX_COMPARISONS = 40_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFlags:
    """Flags for a residue."""

    arguments: tuple[str, ...] = ()  #: for the submit command; empty if nothing can be expressed
    #: Whether each node that fulfils the flags fulfils the residue, so that no other check is needed.
    sufficient: bool = False


#: Of a queue without a mapping.
NO_FLAGS = NodeFlags()


def compile_flags(
    residue: Requirements | None,
    nodes: NodeAttributes,
    declarations: Declarations,
    mapping: SiteMapping | None,
    *,
    is_checked: bool = True,
) -> NodeFlags:
    """The flags of a residue; nothing is left to say without one.

    Not `is_checked`: whether they are sufficient, which takes longer, is not determined and counts as no.

    For all facts that the nodes may have: where the residue is fulfilled, the flags hold. Pilots of one queue
    with different flags are different kinds of pilots.
    """
    if residue is None:
        return NodeFlags(sufficient=True)
    if mapping is None:
        return NO_FLAGS
    alternatives = necessary_condition(residue, nodes, declarations)
    renderer = Renderer(mapping=mapping, nodes=nodes)
    terms = [tuple(renderer.render(alternative)) for alternative in alternatives]
    if not terms or not all(terms):
        return NO_FLAGS
    written = choose_written(_clauses(terms, mapping.vocabulary), mapping.vocabulary)
    are_all = is_checked and bool(written) and are_all_written(written, mapping.vocabulary)
    return NodeFlags(
        arguments=arguments(written, mapping.vocabulary),
        sufficient=are_all and sufficient_flags.suffice(written, residue, nodes, declarations, mapping),
    )


def flags(
    residue: Requirements | None,
    nodes: NodeAttributes,
    declarations: Declarations,
    mapping: SiteMapping | None,
) -> tuple[str, ...]:
    """The arguments of `compile_flags`."""
    return compile_flags(residue, nodes, declarations, mapping).arguments


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
    sufficient: bool  #: whether the flags say all that is left, so that job managers may get such jobs

    def lines(self) -> tuple[str, ...]:
        """Format for people, one line each."""
        sent = " ".join(self.flags) or ("nothing that it supports" if self.left else "nothing")
        return (
            *(f"at the queue: {text}" for text in self.at_queue),
            f"to the batch system: {sent}",
            f"to the matcher, with the facts of the node: {self.left or 'nothing'}",
            *(() if self.sufficient else ("to job managers: never, the flags do not say all that is left",)),
        )

    def as_json(self) -> dict[str, object]:
        """Convert to JSON types."""
        return {
            "at_queue": list(self.at_queue),
            "flags": list(self.flags),
            "left": self.left,
            "sufficient": self.sufficient,
        }


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
        for part in sufficient_flags.split_parts(requirements)
        if evaluator.decide_at_queue(part, resource, declarations, nodes).residue is None
    )
    left = standing.residue
    found = compile_flags(left, nodes, declarations, mapping)
    return Forwarding(
        at_queue=tuple(decided),
        flags=found.arguments,
        left=None if left is None else evaluator.format_requirement(left, declarations),
        sufficient=found.sufficient,
    )
