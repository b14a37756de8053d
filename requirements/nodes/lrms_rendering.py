"""Statements about nodes in the words of a site's batch system.

What is said to a batch system, as the arguments of its submit command.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from requirements.nodes.atoms import Alternative, AtLeast, AtMost, Lacks, OneOf, Statement
from requirements.nodes.lrms_vocabulary import ConditionForm, OptionForm, Vocabulary
from requirements.nodes.node_attributes import NodeAttributes, Option
from requirements.nodes.site_mapping import Meaning, SiteMapping
from requirements.values import as_number

_STRICT = {ConditionForm.ABOVE: ConditionForm.MIN, ConditionForm.BELOW: ConditionForm.MAX}


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A statement in words of the batch system; of several words or texts one is enough."""

    form: ConditionForm
    word: str = ""  #: empty for features, which are words themselves
    number: Fraction = Fraction(0)
    texts: frozenset[str] = frozenset()

    @property
    def place(self) -> tuple[str, str]:
        """What is about the same thing has the same place."""
        return _STRICT.get(self.form, self.form), self.word

    def implies(self, other: "Said") -> bool:
        """Whether the other one, of the same place, holds wherever this one does."""
        if self.texts or other.texts:
            return self.texts <= other.texts
        return weaker(self, other) == other


def weaker(one: Said, two: Said) -> Said:
    """What holds where one of two statements of the same place does."""
    if one.texts or two.texts:
        return Said(form=one.form, word=one.word, texts=one.texts | two.texts)
    if one.place[0] == ConditionForm.MIN:
        return min(one, two, key=lambda each: (each.number, each.form is ConditionForm.ABOVE))
    return max(one, two, key=lambda each: (each.number, each.form is not ConditionForm.BELOW))


def place_of(said: Said, vocabulary: Vocabulary) -> str | None:
    """Where a language says it: as an `option`, among the `items`, `joined` with others; None: nowhere."""
    word = vocabulary.words.get(said.word, OptionForm())
    if said.form is ConditionForm.MIN and word.arguments:
        return "option"
    if vocabulary.items and (
        said.form in vocabulary.items.forms or (said.form is ConditionForm.MIN and word.item)
    ):
        return "items"
    return "joined" if vocabulary.joined and said.form in vocabulary.joined.forms else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saying:
    """How statements are said at one queue."""

    mapping: SiteMapping
    nodes: NodeAttributes

    def of(self, alternative: Alternative) -> Iterator[Said]:
        """Whatever can be said of what must all hold."""
        for statement in alternative:
            meaning = self.mapping.of(statement.name)
            if meaning is not None:
                yield from self._in_words(statement, meaning)

    def _in_words(self, statement: Statement, meaning: Meaning) -> Iterator[Said]:
        match statement:
            case AtLeast(value=value, strict=strict):
                yield from self._bound(
                    ConditionForm.ABOVE if strict else ConditionForm.MIN, value, meaning.minimum, meaning
                )
            case AtMost(value=value, strict=strict):
                yield from self._bound(
                    ConditionForm.BELOW if strict else ConditionForm.MAX, value, meaning.maximum, meaning
                )
            case OneOf(options=options):
                yield from self._hull(options, meaning)
                yield from _features(options, meaning)
                if not statement.among:
                    yield from _texts(options, meaning, self.mapping.vocabulary)
            case Lacks(value=value):
                text, feature = meaning.text(value, self.mapping.vocabulary), meaning.feature(value)
                if meaning.equal and text and not statement.among:
                    yield Said(form=ConditionForm.NOT_EQUAL, word=meaning.equal, texts=frozenset({text}))
                if feature:
                    yield Said(form=ConditionForm.NO_FEATURE, texts=frozenset({feature}))

    def _hull(self, options: Sequence[Option], meaning: Meaning) -> Iterator[Said]:
        """The least and the most of numbers, where not every node has so much anyway."""
        hull, whole = _range_of(options), _range_of(self.nodes.options(meaning.name) or ())
        if hull is None:
            return
        if whole is None or hull[0] > whole[0]:
            yield from self._bound(ConditionForm.MIN, hull[0], meaning.minimum, meaning)
        if whole is None or hull[1] < whole[1]:
            yield from self._bound(ConditionForm.MAX, hull[1], meaning.maximum, meaning)

    def _bound(self, form: ConditionForm, value: float, word: str | None, meaning: Meaning) -> Iterator[Said]:
        """A bound in the word's unit, weaker if need be: whole where numbers must be, and more than 0.

        A zero asks for nothing or, as in Slurm's `--mem=0`, for everything.
        """
        if word is None:
            return
        vocabulary = self.mapping.vocabulary
        exact = Fraction(value) * meaning.factor(word)
        least = form in (ConditionForm.MIN, ConditionForm.ABOVE)
        whole = Fraction(math.floor(exact) if least else math.ceil(exact))
        if not place_of(Said(form=form, word=word), vocabulary):
            form = _STRICT.get(form, form)
        if (number := exact if vocabulary.fractions else whole) > 0:
            yield Said(form=form, word=word, number=number)


def _range_of(options: Sequence[Option]) -> tuple[float, float] | None:
    """The least and the most that nodes have by which options are told apart; None: they are not numbers."""
    ranges = [each for option in options if (each := _range(option)) is not None]
    if not ranges or len(ranges) < len(options):
        return None
    return min(high for _, high in ranges), max(low for low, _ in ranges)


def _range(option: Option) -> tuple[float, float] | None:
    items = option if isinstance(option, tuple) else (option,)
    numbers = [number for item in items if item is not None and _is_number(number := as_number(item))]
    return (min(numbers), max(numbers)) if numbers and len(numbers) == len(items) else None  # type: ignore[return-value]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _features(options: Sequence[Option], meaning: Meaning) -> Iterator[Said]:
    features = [_feature(option, meaning) for option in options]
    if all(features):
        yield Said(form=ConditionForm.FEATURE, texts=frozenset(each for each in features if each))


def _texts(options: Sequence[Option], meaning: Meaning, vocabulary: Vocabulary) -> Iterator[Said]:
    if meaning.equal is None:
        return
    texts = [
        None if option is None or isinstance(option, tuple) else meaning.text(option, vocabulary)
        for option in options
    ]
    if all(texts):
        said = frozenset(each for each in texts if each)
        yield Said(form=ConditionForm.EQUAL, word=meaning.equal, texts=said)


def _feature(option: Option, meaning: Meaning) -> str | None:
    """A feature of every node that has the option; of several values one that has a feature."""
    items = option if isinstance(option, tuple) else (option,)
    found = (meaning.feature(item) for item in items if item is not None)
    return next((feature for feature in found if feature), None)


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
    return place if len(said.texts) < 2 or (either and said.form is ConditionForm.EQUAL) else None


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
    form = vocabulary.words.get(said.word, OptionForm()).item if said.form is ConditionForm.MIN else None
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
    least = said.place[0] == ConditionForm.MIN
    thousandths = number * 1000
    whole = math.floor(thousandths) if least else math.ceil(thousandths)
    return f"{whole // 1000}.{whole % 1000:03}".rstrip("0").rstrip(".")
