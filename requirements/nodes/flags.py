"""Flags that tell a batch system which nodes a residue needs: the strongest necessary condition it supports.

The flags hold in every alternative of the condition: one statement of each is combined, so that `RAM > 2000
|| RAM > 1000 && GPU` gives `RAM > 1000`. Numbers are rounded so that the flags become weaker. Flags are
separate arguments for the submit command, without a shell.
"""

from collections.abc import Iterable, Sequence

from requirements.canonical import Requirements
from requirements.nodes.lrms_rendering import Clause, Renderer, Term, arguments, place_for, weaker
from requirements.nodes.lrms_vocabulary import Vocabulary
from requirements.nodes.necessary_condition import necessary_condition
from requirements.nodes.node_attributes import NodeAttributes
from requirements.nodes.site_mapping import SiteMapping
from requirements.record.declarations import Declarations

#: Comparisons of statements for the flags of one residue; beyond it, simpler and weaker flags are used.
MAX_COMPARISONS = 40_000


def flags(
    residue: Requirements | None,
    nodes: NodeAttributes,
    declarations: Declarations,
    mapping: SiteMapping | None,
) -> tuple[str, ...]:
    """Return the arguments for the submit command; empty if nothing can be expressed.

    For all facts that the nodes may have: where the residue is fulfilled, the flags hold. Pilots of one queue
    with different flags are different kinds of pilots.

    Args:
        residue: What depends on the node (`evaluator.decide_at_queue`).
        nodes: Attributes that differ between the nodes.
        declarations: The declarations of a record's names.
        mapping: The site's mapping; None: nothing can be expressed.
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
