"""Statements about nodes in a site's batch system language, rendered as arguments of its submit command."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from requirements.nodes.lrms_vocabulary import ConditionForm, OptionForm, Vocabulary

#: The form with equality of each bound without it.
NOT_STRICT = {ConditionForm.ABOVE: ConditionForm.MIN, ConditionForm.BELOW: ConditionForm.MAX}


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A statement in the batch system's language; of several words or texts one is enough."""

    form: ConditionForm
    word: str = ""  #: empty for features, which are in `texts`
    number: Fraction = Fraction(0)
    texts: frozenset[str] = frozenset()

    @property
    def place(self) -> tuple[str, str]:
        """Key of statements about the same thing."""
        return NOT_STRICT.get(self.form, self.form), self.word

    def implies(self, other: "Term") -> bool:
        """Whether another statement with the same key holds wherever this one does."""
        if self.texts or other.texts:
            return self.texts <= other.texts
        return weaker(self, other) == other


def weaker(one: Term, two: Term) -> Term:
    """Return the disjunction of two statements with the same key."""
    if one.texts or two.texts:
        return Term(form=one.form, word=one.word, texts=one.texts | two.texts)
    if one.place[0] == ConditionForm.MIN:
        return min(one, two, key=lambda each: (each.number, each.form is ConditionForm.ABOVE))
    return max(one, two, key=lambda each: (each.number, each.form is not ConditionForm.BELOW))


def find_place(term: Term, vocabulary: Vocabulary) -> str | None:
    """Where the language writes a statement: `option`, `separate`, `items` or `joined`; None: nowhere."""
    word = vocabulary.words.get(term.word, OptionForm())
    if term.form is ConditionForm.MIN and word.arguments:
        return "option"
    if term.form in vocabulary.separate:
        return "separate"
    if vocabulary.items and (
        term.form in vocabulary.items.forms or (term.form is ConditionForm.MIN and word.item)
    ):
        return "items"
    return "joined" if vocabulary.joined and term.form in vocabulary.joined.forms else None


#: Characters of one argument.
MAX_ARGUMENT = 4_000

#: Statements of which one must hold, sorted by key.
Clause = tuple[Term, ...]


def place_for(clause: Clause, vocabulary: Vocabulary) -> str | None:
    """Where a clause is written, as `find_place`."""
    places = {find_place(term, vocabulary) for term in clause}
    if len(places) > 1:
        return None
    place = places.pop()
    if place == "joined":
        is_single = sum(len(term.texts) or 1 for term in clause) == 1
        can = vocabulary.joined is not None and (vocabulary.joined.or_ or is_single)
        return place if can else None
    if place is None or len(clause) > 1:
        return None
    either = vocabulary.items.either if vocabulary.items and place == "items" else None
    [term] = clause
    return place if len(term.texts) < 2 or (either and term.form is ConditionForm.EQUAL) else None


def choose_written(clauses: Sequence[Clause], vocabulary: Vocabulary) -> tuple[Clause, ...]:
    """The clauses that are written, in a fixed order; for a word that is allowed once, only the first."""
    written: dict[tuple[object, ...], Clause] = {}
    for clause in sorted(clauses, key=_order):
        place, term = place_for(clause, vocabulary), clause[0]
        features = tuple(term.texts) if not term.word else ()
        written.setdefault(clause if place == "joined" else (place, *term.place, *features), clause)
    return tuple(written.values())


def arguments(written: Sequence[Clause], vocabulary: Vocabulary) -> tuple[str, ...]:
    """Render the clauses of `choose_written` as arguments; what is too long for an argument is left out."""
    options, items = (
        [term for (term,) in _list_clauses(place, written, vocabulary)] for place in ("option", "items")
    )
    return (
        *(
            argument.format(word=term.word, value=_number(term))
            for term in options
            for argument in vocabulary.words[term.word].arguments or ()
        ),
        *(
            argument.format(
                word=term.word or next(iter(term.texts)),
                value=next(iter(term.texts)) if term.texts else _number(term),
            )
            for (term,) in _list_clauses("separate", written, vocabulary)
            for argument in vocabulary.separate[term.form]
        ),
        *_items(items, vocabulary),
        *_joined(_list_clauses("joined", written, vocabulary), vocabulary),
    )


def are_all_written(written: Sequence[Clause], vocabulary: Vocabulary) -> bool:
    """Whether `arguments` leaves none of the clauses out."""
    items, joined = (_list_clauses(place, written, vocabulary) for place in ("items", "joined"))
    is_left_out = items and not _items([term for (term,) in items], vocabulary)
    return not is_left_out and not (joined and not _joined(joined, vocabulary))


def _list_clauses(place: str, written: Sequence[Clause], vocabulary: Vocabulary) -> list[Clause]:
    return [clause for clause in written if place_for(clause, vocabulary) == place]


def _order(clause: Clause) -> tuple[int, list[tuple[str, str, Fraction, list[str]]]]:
    return len(clause), [(term.form.value, term.word, term.number, sorted(term.texts)) for term in clause]


def _items(items: Sequence[Term], vocabulary: Vocabulary) -> tuple[str, ...]:
    if not items or vocabulary.items is None:
        return ()
    listed = vocabulary.items.between.join(_item(term, vocabulary) for term in items)
    return _fitting(tuple(argument.format(items=listed) for argument in vocabulary.items.arguments))


def _item(term: Term, vocabulary: Vocabulary) -> str:
    rules = vocabulary.items
    assert rules is not None  # noqa: S101  # `find_place` found the form there
    form = vocabulary.words.get(term.word, OptionForm()).item if term.form is ConditionForm.MIN else None
    if not term.word:
        return rules.forms[term.form].format(word=next(iter(term.texts)), value="")
    value = (rules.either or "").join(sorted(term.texts)) if term.texts else _number(term)
    return (form or rules.forms[term.form]).format(word=term.word, value=value)


def _joined(clauses: Sequence[Clause], vocabulary: Vocabulary) -> tuple[str, ...]:
    rules = vocabulary.joined
    if not clauses or rules is None:
        return ()
    parts = []
    for clause in clauses:
        terms = [written for each in clause for written in _terms(each, vocabulary)]
        text = (rules.or_ or "").join(terms)
        parts.append(f"({text})" if len(terms) > 1 and len(clauses) > 1 else text)
    expression = rules.and_.join(parts)
    return _fitting(tuple(argument.format(expression=expression) for argument in rules.arguments))


def _terms(term: Term, vocabulary: Vocabulary) -> Iterator[str]:
    assert vocabulary.joined is not None  # noqa: S101  # `find_place` found the form there
    form = vocabulary.joined.forms[term.form]
    if not term.texts:
        yield form.format(word=term.word, value=_number(term))
    for text in sorted(term.texts):
        yield form.format(word=term.word or text, value=text)


def _fitting(rendered: tuple[str, ...]) -> tuple[str, ...]:
    return rendered if all(len(each) <= MAX_ARGUMENT for each in rendered) else ()


def written_number(term: Term) -> Fraction:
    """The number of a bound as it is written: to thousandths, rounded to the weaker side."""
    least = term.place[0] == ConditionForm.MIN
    thousandths = term.number * 1000
    return Fraction(math.floor(thousandths) if least else math.ceil(thousandths), 1000)


def _number(term: Term) -> str:
    """Write a number without exponent."""
    whole = int(written_number(term) * 1000)
    return f"{whole // 1000}.{whole % 1000:03}".rstrip("0").rstrip(".")
