"""The flags that tell a batch system which nodes a residue needs: the strongest necessary condition it knows.

From the alternatives of a condition the flags choose what holds in each of them: of every alternative one
statement, so that `RAM > 2000 || RAM > 1000 && GPU` says `RAM > 1000`. Numbers are rounded to the
weaker side. The flags are arguments, one by one, to be handed to the submit command without a shell.
"""

from collections.abc import Iterable, Sequence

from requirements.canonical import Requirements
from requirements.nodes.lrms_rendering import Clause, Said, Saying, arguments, place_for, weaker
from requirements.nodes.lrms_vocabulary import Vocabulary
from requirements.nodes.necessary_condition import necessary_condition
from requirements.nodes.node_attributes import NodeAttributes
from requirements.nodes.site_mapping import SiteMapping
from requirements.record.declarations import Declarations

#: Comparisons of statements for the flags of one residue; beyond it weaker ones are looked for.
MAX_COMPARISONS = 40_000


def flags(
    residue: Requirements | None,
    nodes: NodeAttributes,
    declarations: Declarations,
    mapping: SiteMapping | None,
) -> tuple[str, ...]:
    """The arguments for the submit command; none where nothing can be said.

    For all facts that the nodes may have: where the residue is fulfilled, the flags hold. Pilots of one
    queue that have other flags are other pilots.

    Args:
        residue: What the queue leaves open (`evaluator.standing`).
        nodes: What its nodes may have.
        declarations: What the names of a record mean.
        mapping: What can be said at the queue, and how; None: nothing.
    """
    if residue is None or mapping is None:
        return ()
    alternatives = necessary_condition(residue, nodes, declarations)
    saying = Saying(mapping=mapping, nodes=nodes)
    said = [tuple(saying.of(alternative)) for alternative in alternatives]
    return arguments(_clauses(said, mapping.vocabulary), mapping.vocabulary) if said and all(said) else ()


def _clauses(alternatives: Sequence[tuple[Said, ...]], vocabulary: Vocabulary) -> tuple[Clause, ...]:
    """What holds in every alternative: of each one statement; the strongest of these."""
    clauses: list[Clause] = [()]
    left = MAX_COMPARISONS
    for alternative in alternatives:
        longer = [_extend_clause(clause, said) for clause in clauses for said in alternative]
        left -= len(longer) ** 2
        if left < 0:
            return _single_clauses(alternatives, vocabulary)
        clauses = _strongest(clause for clause in longer if place_for(clause, vocabulary))
    return tuple(clauses)


def _single_clauses(alternatives: Sequence[tuple[Said, ...]], vocabulary: Vocabulary) -> tuple[Clause, ...]:
    """The same for statements about one thing each, which are few."""
    clauses: list[Clause] = []
    for first in alternatives[0]:
        whole: Clause = (first,)
        for alternative in alternatives[1:]:
            same = [said for said in alternative if said.place == first.place]
            whole = _extend_clause(whole, same[0]) if whole and same else ()
        if whole and place_for(whole, vocabulary):
            clauses.append(whole)
    return tuple(_strongest(clauses))


def _extend_clause(clause: Clause, said: Said) -> Clause:
    """The clause, which now holds where the statement does, too."""
    places = {each.place: each for each in clause}
    seen = places.get(said.place)
    places[said.place] = weaker(seen, said) if seen else said
    return tuple(places[place] for place in sorted(places))


def _strongest(clauses: Iterable[Clause]) -> list[Clause]:
    """The clauses without those that hold wherever another one does."""
    distinct = list(dict.fromkeys(clauses))
    return [
        each
        for each in distinct
        if not any(other is not each and _implies(other, each) for other in distinct)
    ]


def _implies(one: Clause, two: Clause) -> bool:
    places = {each.place: each for each in two}
    return all(said.place in places and said.implies(places[said.place]) for said in one)
