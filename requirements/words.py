"""Statements about nodes in the words of a site's batch system."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from requirements.nodes import NodeAttributes, Option
from requirements.site_mapping import Meaning, SiteMapping
from requirements.statements import Alternative, AtLeast, AtMost, Lacks, OneOf, Statement
from requirements.values import as_number
from requirements.vocabularies import Form, Vocabulary, Word

_STRICT = {Form.ABOVE: Form.MIN, Form.BELOW: Form.MAX}


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A statement in words of the batch system; of several words or texts one is enough."""

    form: Form
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
    if one.place[0] == Form.MIN:
        return min(one, two, key=lambda each: (each.number, each.form is Form.ABOVE))
    return max(one, two, key=lambda each: (each.number, each.form is not Form.BELOW))


def place_of(said: Said, vocabulary: Vocabulary) -> str | None:
    """Where a language says it: as an `option`, among the `items`, `joined` with others; None: nowhere."""
    word = vocabulary.words.get(said.word, Word())
    if said.form is Form.MIN and word.arguments:
        return "option"
    if vocabulary.items and (said.form in vocabulary.items.forms or (said.form is Form.MIN and word.item)):
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
                yield from self._bound(Form.ABOVE if strict else Form.MIN, value, meaning.minimum, meaning)
            case AtMost(value=value, strict=strict):
                yield from self._bound(Form.BELOW if strict else Form.MAX, value, meaning.maximum, meaning)
            case OneOf(options=options):
                yield from self._hull(options, meaning)
                yield from _features(options, meaning)
                if not statement.among:
                    yield from _texts(options, meaning, self.mapping.vocabulary)
            case Lacks(value=value):
                text, feature = meaning.text(value, self.mapping.vocabulary), meaning.feature(value)
                if meaning.equal and text and not statement.among:
                    yield Said(form=Form.NOT_EQUAL, word=meaning.equal, texts=frozenset({text}))
                if feature:
                    yield Said(form=Form.NO_FEATURE, texts=frozenset({feature}))

    def _hull(self, options: Sequence[Option], meaning: Meaning) -> Iterator[Said]:
        """The least and the most of numbers, where not every node has so much anyway."""
        hull, whole = _range_of(options), _range_of(self.nodes.options(meaning.name) or ())
        if hull is None:
            return
        if whole is None or hull[0] > whole[0]:
            yield from self._bound(Form.MIN, hull[0], meaning.minimum, meaning)
        if whole is None or hull[1] < whole[1]:
            yield from self._bound(Form.MAX, hull[1], meaning.maximum, meaning)

    def _bound(self, form: Form, value: float, word: str | None, meaning: Meaning) -> Iterator[Said]:
        """A bound in the word's unit, weaker if need be: whole where numbers must be, and more than 0.

        A zero asks for nothing or, as in Slurm's `--mem=0`, for everything.
        """
        if word is None:
            return
        vocabulary = self.mapping.vocabulary
        exact = Fraction(value) * meaning.factor(word)
        least = form in (Form.MIN, Form.ABOVE)
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
        yield Said(form=Form.FEATURE, texts=frozenset(each for each in features if each))


def _texts(options: Sequence[Option], meaning: Meaning, vocabulary: Vocabulary) -> Iterator[Said]:
    if meaning.equal is None:
        return
    texts = [
        None if option is None or isinstance(option, tuple) else meaning.text(option, vocabulary)
        for option in options
    ]
    if all(texts):
        said = frozenset(each for each in texts if each)
        yield Said(form=Form.EQUAL, word=meaning.equal, texts=said)


def _feature(option: Option, meaning: Meaning) -> str | None:
    """A feature of every node that has the option; of several values one that has a feature."""
    items = option if isinstance(option, tuple) else (option,)
    found = (meaning.feature(item) for item in items if item is not None)
    return next((feature for feature in found if feature), None)
