"""Flags for the batch system: the strongest conditions in its language that every suitable node fulfils.

The combinations of node values that fulfil the requirements (`resolution`) are written as alternatives, each
with some values for each attribute. One statement of each alternative is combined, so that `RAM > 2000 || RAM
> 1000 && GPU` gives `RAM > 1000`. Numbers are rounded so that the flags become weaker. Flags are separate
arguments for the submit command, without a shell.

Flags are sufficient if they are fulfilled by no node that does not fulfil the requirements. Local jobs of job
managers rely on it, since nothing checks their nodes. What cannot be shown does not count: an answer of no
may be wrong, an answer of yes never is, if the site's mapping is true (`docs/site-admin`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from requirements.nodes.lrms_rendering import (
    Clause,
    Term,
    are_all_written,
    arguments,
    choose_written,
    place_for,
    weaker,
)
from requirements.nodes.lrms_vocabulary import Vocabulary
from requirements.nodes.node_parts import NodePart, count, slices
from requirements.nodes.node_terms import NodeTerms, find_range
from requirements.nodes.representatives import NodeVariable
from requirements.nodes.resolution import QueueDecision
from requirements.nodes.site_mapping import SiteMapping


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFlags:
    """Flags for the nodes that requirements need at a queue."""

    arguments: tuple[str, ...] = ()  #: for the submit command; empty if nothing can be expressed
    #: Whether each node that fulfils the flags fulfils the requirements, so that no other check is needed.
    sufficient: bool = False


#: Of a queue without a mapping.
NO_FLAGS = NodeFlags()
#: Comparisons of statements for the flags of one part; beyond it, simpler and weaker flags are used.
MAX_COMPARISONS = 40_000
#: Alternatives of one part; beyond it, flags say only what all have in common.
MAX_ALTERNATIVES = 64

#: For each variable of a part, positions of its representatives.
Alternative = tuple[tuple[int, ...], ...]


def compile_flags(decision: QueueDecision, mapping: SiteMapping | None) -> NodeFlags:
    """The flags of what a queue leaves to its nodes; nothing is left to say without one.

    For all facts that the nodes may have: where the requirements are fulfilled, the flags hold. Pilots of one
    queue with different flags are different kinds of pilots.
    """
    if not decision.eligible:
        return NO_FLAGS
    if not decision.undecided:
        return NodeFlags(sufficient=True)
    if mapping is None or any(part.good is None for part in decision.undecided):
        return NO_FLAGS
    terms = NodeTerms(mapping=mapping)
    clauses = [clause for part in decision.undecided for clause in _find_clauses(part, terms)]
    written = _write(clauses, mapping.vocabulary)
    return NodeFlags(
        arguments=arguments(written, mapping.vocabulary),
        sufficient=are_all_written(written, mapping.vocabulary)
        and all(_suffice(written, part, terms) for part in decision.undecided),
    )


def render_clauses(clauses: Iterable[Clause], vocabulary: Vocabulary) -> tuple[str, ...]:
    """Arguments for clauses, all of which are to hold; those that a language cannot express are left out."""
    return arguments(
        _write((each for each in clauses if place_for(each, vocabulary)), vocabulary), vocabulary
    )


def _write(clauses: Iterable[Clause], vocabulary: Vocabulary) -> tuple[Clause, ...]:
    return choose_written(_strongest(clauses), vocabulary)


def _suffice(written: Sequence[Clause], part: NodePart, terms: NodeTerms) -> bool:
    """Whether the batch system takes no node for the clauses that does not fulfil a part."""
    accepted = part.everything
    for clause in written:
        taken = 0
        for term in clause:
            taken |= terms.accept(part, term)
        accepted &= taken
    return accepted & ~(part.good or 0) == 0


def _find_clauses(part: NodePart, terms: NodeTerms) -> Sequence[Clause]:
    """Return the clauses that hold on all nodes that fulfil a part."""
    vocabulary = terms.mapping.vocabulary
    common = _find_common(part)
    single = [(term,) for term in _find_terms(part, common, terms)]
    alternatives = _find_alternatives(part, common)
    whole: Sequence[Clause] = ()
    if alternatives is not None and len(alternatives) > 1:
        whole = _combine([_find_terms(part, each, terms) for each in alternatives], vocabulary)
    return _strongest(clause for clause in (*single, *whole) if place_for(clause, vocabulary))


def _find_terms(part: NodePart, alternative: Alternative, terms: NodeTerms) -> list[Term]:
    return [
        term
        for variable, chosen in zip(part.variables, alternative, strict=True)
        for term in terms.find_terms(part, variable, chosen)
    ]


def _find_common(part: NodePart) -> Alternative:
    """Return the values of each variable with which a part may be fulfilled."""
    good = part.good or 0
    return tuple(
        tuple(position for position in range(variable.size) if good & part.select(variable, [position]))
        for variable in part.variables
    )


def _find_alternatives(part: NodePart, common: Alternative) -> list[Alternative] | None:
    """Return alternatives that together are the combinations that fulfil a part; None: too many."""
    found: dict[Alternative, None] = {}
    is_one = len(part.variables) == 1
    split = (common,) if is_one else (_grow(each, part) for each in _split(part.good or 0, part.variables))
    for each in split:
        runs = (_split_runs(*pair) for pair in zip(part.variables, each, strict=True))
        for convex in product(*runs):
            found[convex] = None
            if len(found) > MAX_ALTERNATIVES:
                return None
    return list(found)


def _split_runs(variable: NodeVariable, chosen: Sequence[int]) -> list[tuple[int, ...]]:
    """Split numbers where others are between them: what is left has a lower and an upper bound."""
    ranges = {position: find_range(each) for position, each in enumerate(variable.representatives)}
    if not all(ranges[position] for position in chosen):
        return [tuple(chosen)]
    runs: list[list[int]] = [[]]
    for position in sorted((each for each in ranges if ranges[each]), key=lambda each: ranges[each] or ()):
        if position in chosen:
            runs[-1].append(position)
        elif runs[-1] and not isinstance(variable.representatives[position].value, bool):
            runs.append([])
    return [tuple(run) for run in runs if run]


def _split(good: int, variables: Sequence[NodeVariable]) -> Iterator[Alternative]:
    if not variables:
        yield ()
        return
    alike: dict[int, list[int]] = {}
    for position, others in enumerate(slices(good, count(variables[1:]), variables[0].size)):
        if others:
            alike.setdefault(others, []).append(position)
    for others, positions in alike.items():
        for rest in _split(others, variables[1:]):
            yield (tuple(positions), *rest)


def _grow(alternative: Alternative, part: NodePart) -> Alternative:
    """Add values to an alternative as long as all of its combinations fulfil the part."""
    chosen = [part.select(each, of_it) for each, of_it in zip(part.variables, alternative, strict=True)]
    grown = list(alternative)
    for place, variable in enumerate(part.variables):
        others = part.everything
        for other, positions in enumerate(chosen):
            others &= positions if other != place else part.everything
        grown[place] = tuple(
            position
            for position in range(variable.size)
            if not others & part.select(variable, [position]) & ~(part.good or 0)
        )
        chosen[place] = part.select(variable, grown[place])
    return tuple(grown)


def _combine(alternatives: Sequence[Sequence[Term]], vocabulary: Vocabulary) -> Sequence[Clause]:
    """Combine one statement of every alternative to a clause, in all ways; keep the strongest clauses."""
    clauses: list[Clause] = [()]
    left = MAX_COMPARISONS
    for alternative in alternatives:
        longer = [_extend_clause(clause, term) for clause in clauses for term in alternative]
        left -= len(longer) ** 2
        if left < 0:
            return []
        clauses = _strongest(clause for clause in longer if place_for(clause, vocabulary))
    return clauses


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
