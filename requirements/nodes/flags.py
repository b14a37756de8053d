"""Flags that tell a batch system which nodes a residue needs: the strongest necessary condition it supports.

The flags hold in every alternative of the condition: one statement of each is combined, so that `RAM > 2000
|| RAM > 1000 && GPU` gives `RAM > 1000`. Numbers are rounded so that the flags become weaker. Flags are
separate arguments for the submit command, without a shell.

Requirements are split by where they are decided: at the queue, in the batch system, or by the matcher.

Whether flags say all of a residue: each node that the batch system takes for them fulfils it.

Local jobs of job managers rely on it, since nothing checks their nodes. What cannot be shown does not count:
an answer of no may be wrong, an answer of yes never is, if the site's mapping is true (`docs/site-admin`).

Parts about listed attributes are tried for all values that nodes may have. A part about an unknown attribute
is understood if it is one comparison of it with a constant.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product

from requirements import evaluator
from requirements.canonical import Requirements
from requirements.classad import evaluation
from requirements.classad.expression import Expression
from requirements.classad.parser import read_expression
from requirements.classad.restrictions import resource_names
from requirements.classad.syntax_tree import Attribute, Chain, Literal, Node, SourceText
from requirements.nodes import partial_evaluation
from requirements.nodes.lrms_rendering import (
    Clause,
    Renderer,
    Term,
    are_all_written,
    arguments,
    choose_written,
    place_for,
    weaker,
    written_number,
)
from requirements.nodes.lrms_vocabulary import ConditionForm, Vocabulary
from requirements.nodes.necessary_condition import AtLeast, AtMost, OneOf, Statement, necessary_condition
from requirements.nodes.node_attributes import NodeAttributes, Option
from requirements.nodes.partial_evaluation import EvaluationBudget, TruthValue
from requirements.nodes.site_mapping import Meaning, SiteMapping
from requirements.record import Declarations, Record, compared_parameter
from requirements.values import Scalar, Value, fold, key

#: Work for one residue, as in `EvaluationBudget`; beyond, the flags do not count as sufficient.
MAX_EFFORT = 1_000_000
#: Of it, for a term or a record looked at once, and for a part that is read.
_TERM, _PART = 50, 500


def suffice(
    clauses: Sequence[Clause],
    residue: Requirements,
    nodes: NodeAttributes,
    declarations: Declarations,
    mapping: SiteMapping,
) -> bool:
    """Whether each node that fulfils the written clauses of a residue fulfils the residue."""
    checker = _Checker(clauses=clauses, nodes=nodes, declarations=declarations, mapping=mapping)
    return checker.are_said(split_parts(residue))


def split_parts(requirements: Requirements) -> tuple[Requirements, ...]:
    """The parts that must all hold: entries of a record, operands of the outermost `&&`."""
    if isinstance(requirements, Record):
        return evaluator.parts(requirements)
    operands = evaluation.operands(requirements.text)
    return tuple(Expression(text=text) for text in operands) or (requirements,)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checker:
    clauses: Sequence[Clause]
    nodes: NodeAttributes
    declarations: Declarations
    mapping: SiteMapping
    effort: EvaluationBudget = field(default_factory=lambda: EvaluationBudget(left=MAX_EFFORT))

    def are_said(self, parts: Sequence[Requirements]) -> bool:
        """Whether the clauses say all the parts, as far as the effort shows."""
        return all(self._spend(_PART) and self._is_said(part) for part in parts)

    def _spend(self, effort: int) -> bool:
        self.effort.left -= effort
        return self.effort.left >= 0

    def _is_said(self, part: Requirements) -> bool:
        names = [name for name in self._names(part) if name in self.nodes]
        options = {name: known for name in names if (known := self.nodes.options(name)) is not None}
        if len(options) < len(names):
            is_single = len(names) == 1 and _is_comparison(part)
            return is_single and self._spend(_TERM * len(self.clauses)) and self._is_said_of_unknown(part)
        terms = sum(map(len, self.clauses))
        count = math.prod(map(len, options.values()))
        if not self._spend(_TERM * terms * count):
            return False
        combinations = [dict(zip(options, each, strict=True)) for each in product(*options.values())]
        fulfilled = self._fulfilled(part, options, combinations)
        return fulfilled is not None and all(
            is_fulfilled or not self._may_take(facts)
            for facts, is_fulfilled in zip(combinations, fulfilled, strict=True)
        )

    def _fulfilled(
        self,
        part: Requirements,
        options: Mapping[str, Sequence[Option]],
        combinations: Sequence[Mapping[str, Option]],
    ) -> Iterable[bool] | None:
        """Whether each combination fulfils a part; None: too much effort."""
        if isinstance(part, Record):
            if not self._spend(_TERM * len(combinations)):
                return None
            return (evaluator.eligible(part, _present(facts), self.declarations) for facts in combinations)
        node = _read(part)
        # A budget of its own for the weights, which it keeps by the ids of nodes.
        budget = EvaluationBudget(left=self.effort.left)
        work = evaluation.largest_work(node, {}, options)
        if not budget.spend(node, names=len(options), combinations=len(combinations), work=work):
            return None
        self.effort.left = budget.left
        return (
            partial_evaluation.as_truth(partial_evaluation.outcome_of_value(value)) is TruthValue.TRUE
            for value in evaluation.compile_node(node).values({}, options)
        )

    def _names(self, part: Requirements) -> list[str]:
        if isinstance(part, Record):
            return [compared_parameter(name, self.declarations.get(name)) for name, _ in part.values]
        return list(resource_names(_read(part)).values())

    def _may_take(self, facts: Mapping[str, Option]) -> bool:
        """Whether the batch system may take a node with these facts; what is not known may be so."""
        return all(any(self._may_hold(term, facts) for term in clause) for clause in self.clauses)

    def _may_hold(self, term: Term, facts: Mapping[str, Option]) -> bool:
        known = [(meaning, fact) for name, fact in facts.items() if (meaning := self.mapping.find(name))]
        match term.form:
            case ConditionForm.FEATURE:
                return any(self._may_have(feature, known) for feature in term.texts)
            case ConditionForm.EQUAL:
                return all(
                    _may_be_text(term, meaning, fact, self.mapping)
                    for meaning, fact in known
                    if meaning.equal == term.word
                )
            case ConditionForm.MIN | ConditionForm.ABOVE:
                return all(
                    _may_be_within(term, meaning, fact)
                    for meaning, fact in known
                    if meaning.minimum == term.word
                )
            case ConditionForm.MAX | ConditionForm.BELOW:
                return all(
                    _may_be_within(term, meaning, fact)
                    for meaning, fact in known
                    if meaning.maximum == term.word
                )
        return True

    def _may_have(self, feature: str, known: Sequence[tuple[Meaning, Option]]) -> bool:
        """Whether a node may have a feature: it has those of its values, and no other."""
        facts = {meaning.name: fact for meaning, fact in known}
        for meaning, value in self._values_of(feature):
            if meaning.name not in facts:
                return True  # of an attribute that is not looked at
            fact = facts[meaning.name]
            items = fact if isinstance(fact, tuple) else (fact,)
            if any(item is not None and _counts_as(item, value) for item in items):
                return True
        return False

    def _values_of(self, feature: str) -> Iterator[tuple[Meaning, Scalar]]:
        for meaning in self.mapping.meanings:
            for value, named in meaning.features:
                if named == feature:
                    yield meaning, value

    def _is_said_of_unknown(self, part: Requirements) -> bool:
        """Whether one written term means the same as the one statement of a part."""
        condition = necessary_condition(part, self.nodes, self.declarations)
        if len(condition) != 1 or not condition[0]:
            return False
        terms = [clause[0] for clause in self.clauses if len(clause) == 1]
        return all(any(self._implies(term, each) for term in terms) for each in condition[0])

    def _implies(self, term: Term, statement: Statement) -> bool:
        meaning = self.mapping.find(statement.name)
        if meaning is None:
            return False
        match statement, term.form:
            case AtLeast(value=value, strict=strict), ConditionForm.MIN | ConditionForm.ABOVE:
                bound = Fraction(value) * meaning.factor(term.word)
                said = written_number(term)
                is_strict = term.form is ConditionForm.ABOVE or not strict
                return meaning.minimum == term.word and (said > bound or (said == bound and is_strict))
            case AtMost(value=value, strict=strict), ConditionForm.MAX | ConditionForm.BELOW:
                bound = Fraction(value) * meaning.factor(term.word)
                said = written_number(term)
                is_strict = term.form is ConditionForm.BELOW or not strict
                return meaning.maximum == term.word and (said < bound or (said == bound and is_strict))
            case OneOf(options=options), ConditionForm.FEATURE:
                wanted = {key(each) for each in options if each is not None and not isinstance(each, tuple)}
                return all(
                    other.name == meaning.name and key(value) in wanted
                    for feature in term.texts
                    for other, value in self._values_of(feature)
                )
            case OneOf(options=options, among=False), ConditionForm.EQUAL:
                wanted = {key(each) for each in options if each is not None and not isinstance(each, tuple)}
                texts = {fold(text) for text in term.texts}
                meant = [value for value, text in meaning.values or () if fold(text) in texts]
                named = meant if meaning.values is not None else sorted(term.texts)
                return meaning.equal == term.word and all(key(value) in wanted for value in named)
        return False


def _is_comparison(part: Requirements) -> bool:
    """Whether a part is an attribute, or its comparison with a constant."""
    if isinstance(part, Record):
        return True
    match _read(part):
        case Attribute():
            return True
        case Chain(first=first, rest=((operator, second),)):
            kinds = {isinstance(each, Literal) for each in (first, second)}
            # Batch systems compare numbers and texts without their kind or case, as `=?=` does not.
            is_exact = operator == "=?=" and not any(
                isinstance(each, Literal) and isinstance(each.value, bool) for each in (first, second)
            )
            return (
                operator in ("<", "<=", ">", ">=", "==", "=?=")
                and not is_exact
                and kinds == {True, False}
                and any(isinstance(each, Attribute) for each in (first, second))
            )
    return False


def _read(part: Expression) -> Node:
    return read_expression(SourceText(text=part.text, path="Requirements"))


def _present(facts: Mapping[str, Option]) -> dict[str, Scalar | tuple[Scalar, ...]]:
    return {name: fact for name, fact in facts.items() if fact is not None}


def _counts_as(item: Scalar, value: Scalar) -> bool:
    """Whether a node with an item may have the feature of a value: that of true means all that counts so."""
    if isinstance(value, bool) and isinstance(item, int | float):
        return bool(item) is value
    return key(item) == key(value)


def _may_be_text(term: Term, meaning: Meaning, fact: Option, mapping: SiteMapping) -> bool:
    if fact is None or isinstance(fact, tuple):
        return fact is not None
    text = meaning.text(fact, mapping.vocabulary)
    return text is None or fold(text) in {fold(each) for each in term.texts}


def _may_be_within(term: Term, meaning: Meaning, fact: Option) -> bool:
    """Whether a node's number may be within a bound; a node without the attribute has no such number."""
    if fact is None:
        return False
    if isinstance(fact, bool | str | tuple):
        return True
    number, bound = Fraction(fact) * meaning.factor(term.word), written_number(term)
    match term.form:
        case ConditionForm.MIN:
            return number >= bound
        case ConditionForm.ABOVE:
            return number > bound
        case ConditionForm.MAX:
            return number <= bound
    return number < bound


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
        sufficient=are_all and suffice(written, residue, nodes, declarations, mapping),
    )


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
        for part in split_parts(requirements)
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
