"""What is said to a batch system, as the arguments of its submit command."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from requirements.vocabularies import Form, Vocabulary, Word
from requirements.words import Said, place_of

#: Characters of one argument.
MAX_ARGUMENT = 4_000

#: Statements of which one must hold, by their place.
Clause = tuple[Said, ...]


def place_for(clause: Clause, vocabulary: Vocabulary) -> str | None:
    """Where a clause is written: `option`, `items` or `joined`; None: the language cannot say it."""
    places = {place_of(said, vocabulary) for said in clause}
    if len(places) > 1:
        return None
    place = places.pop()
    if place == "joined":
        can = vocabulary.joined is not None and (vocabulary.joined.or_ or _count(clause) == 1)
        return place if can else None
    if place is None or len(clause) > 1:
        return None
    either = vocabulary.items.either if vocabulary.items and place == "items" else None
    [said] = clause
    return place if len(said.texts) < 2 or (either and said.form is Form.EQUAL) else None


def _count(clause: Clause) -> int:
    return sum(len(said.texts) or 1 for said in clause)


def arguments(clauses: Sequence[Clause], vocabulary: Vocabulary) -> tuple[str, ...]:
    """The clauses as arguments, always in one order; of two on one word, which only one can be, the first."""
    by_place: dict[str, list[Clause]] = {}
    for clause in sorted(clauses, key=_order):
        by_place.setdefault(place_for(clause, vocabulary) or "", []).append(clause)
    singles: dict[tuple[str, ...], Said] = {}
    for place in ("option", "items"):
        for (said,) in by_place.get(place, []):
            features = tuple(said.texts) if not said.word else ()
            singles.setdefault((place, *said.place, *features), said)
    options = [said for place, said in singles.items() if place[0] == "option"]
    items = [said for place, said in singles.items() if place[0] == "items"]
    return (
        *(argument for said in options for argument in _option(said, vocabulary)),
        *_items(items, vocabulary),
        *_joined(by_place.get("joined", []), vocabulary),
    )


def _order(clause: Clause) -> tuple[int, list[tuple[str, str, Fraction, list[str]]]]:
    return len(clause), [(said.form.value, said.word, said.number, sorted(said.texts)) for said in clause]


def _option(said: Said, vocabulary: Vocabulary) -> Iterator[str]:
    for argument in vocabulary.words[said.word].arguments or ():
        yield argument.format(word=said.word, value=_number(said))


def _items(items: Sequence[Said], vocabulary: Vocabulary) -> tuple[str, ...]:
    if not items or vocabulary.items is None:
        return ()
    listed = vocabulary.items.between.join(_item(said, vocabulary) for said in items)
    return _fitting(tuple(argument.format(items=listed) for argument in vocabulary.items.arguments))


def _item(said: Said, vocabulary: Vocabulary) -> str:
    rules = vocabulary.items
    assert rules is not None  # noqa: S101  # `place_of` found the form there
    form = vocabulary.words.get(said.word, Word()).item if said.form is Form.MIN else None
    if not said.word:
        return rules.forms[said.form].format(word=next(iter(said.texts)), value="")
    value = (rules.either or "").join(sorted(said.texts)) if said.texts else _number(said)
    return (form or rules.forms[said.form]).format(word=said.word, value=value)


def _joined(clauses: Sequence[Clause], vocabulary: Vocabulary) -> tuple[str, ...]:
    rules = vocabulary.joined
    if not clauses or rules is None:
        return ()
    parts = []
    for clause in clauses:
        terms = [term for said in clause for term in _terms(said, vocabulary)]
        text = (rules.or_ or "").join(terms)
        parts.append(f"({text})" if len(terms) > 1 and len(clauses) > 1 else text)
    expression = rules.and_.join(parts)
    return _fitting(tuple(argument.format(expression=expression) for argument in rules.arguments))


def _terms(said: Said, vocabulary: Vocabulary) -> Iterator[str]:
    assert vocabulary.joined is not None  # noqa: S101  # `place_of` found the form there
    form = vocabulary.joined.forms[said.form]
    if not said.texts:
        yield form.format(word=said.word, value=_number(said))
    for text in sorted(said.texts):
        yield form.format(word=said.word or text, value=text)


def _fitting(told: tuple[str, ...]) -> tuple[str, ...]:
    return told if all(len(each) <= MAX_ARGUMENT for each in told) else ()


def _number(said: Said) -> str:
    """A number as all languages read it, without exponent, weaker if it cannot be written exactly."""
    number = said.number
    least = said.place[0] == Form.MIN
    thousandths = number * 1000
    whole = math.floor(thousandths) if least else math.ceil(thousandths)
    return f"{whole // 1000}.{whole % 1000:03}".rstrip("0").rstrip(".")
