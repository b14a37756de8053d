"""The flags that tell a batch system which nodes a residue needs: the strongest necessary condition it knows.

From the alternatives of a condition the flags choose what holds in each of them: of every alternative one
statement, so that `RAM > 2000 || RAM > 1000 && GPU` says `RAM > 1000`. Numbers are rounded to the
weaker side. The flags are arguments, one by one, to be handed to the submit command without a shell.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from requirements.canonical import Requirements
from requirements.conditions import Alternative, AtLeast, AtMost, Lacks, OneOf, Statement, condition
from requirements.declarations import Declarations
from requirements.nodes import NodeAttributes, Option
from requirements.site_mapping import Meaning, SiteMapping
from requirements.values import as_number
from requirements.vocabularies import Form, Vocabulary, Word

#: Comparisons of statements for the flags of one residue; beyond it weaker ones are looked for.
MAX_COMPARISONS = 40_000
#: Characters of one argument.
MAX_ARGUMENT = 4_000

_STRICT = {Form.ABOVE: Form.MIN, Form.BELOW: Form.MAX}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """A statement in words of the batch system; of several words or texts one is enough."""

    form: Form
    word: str = ""  #: empty for features, which are words themselves
    number: Fraction = Fraction(0)
    texts: frozenset[str] = frozenset()

    @property
    def place(self) -> tuple[str, str]:
        """What is about the same thing has the same place."""
        return _STRICT.get(self.form, self.form), self.word

    def implies(self, other: "_Said") -> bool:
        """Whether the other one, of the same place, holds wherever this one does."""
        if self.texts or other.texts:
            return self.texts <= other.texts
        return _weaker(self, other) == other


#: Statements of which one must hold, by their place.
_Clause = tuple[_Said, ...]


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
    alternatives = condition(residue, nodes, declarations)
    saying = _Saying(mapping=mapping, nodes=nodes)
    said = [tuple(saying.of(alternative)) for alternative in alternatives]
    return _written(_clauses(said, mapping.vocabulary), mapping.vocabulary) if said and all(said) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saying:
    """How statements are said at one queue."""

    mapping: SiteMapping
    nodes: NodeAttributes

    def of(self, alternative: Alternative) -> Iterator[_Said]:
        for statement in alternative:
            meaning = self.mapping.of(statement.name)
            if meaning is not None:
                yield from self._in_words(statement, meaning)

    def _in_words(self, statement: Statement, meaning: Meaning) -> Iterator[_Said]:
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
                    yield _Said(form=Form.NOT_EQUAL, word=meaning.equal, texts=frozenset({text}))
                if feature:
                    yield _Said(form=Form.NO_FEATURE, texts=frozenset({feature}))

    def _hull(self, options: Sequence[Option], meaning: Meaning) -> Iterator[_Said]:
        """The least and the most of numbers, where not every node has so much anyway."""
        hull, whole = _range_of(options), _range_of(self.nodes.options(meaning.name) or ())
        if hull is None:
            return
        if whole is None or hull[0] > whole[0]:
            yield from self._bound(Form.MIN, hull[0], meaning.minimum, meaning)
        if whole is None or hull[1] < whole[1]:
            yield from self._bound(Form.MAX, hull[1], meaning.maximum, meaning)

    def _bound(self, form: Form, value: float, word: str | None, meaning: Meaning) -> Iterator[_Said]:
        """A bound in the word's unit, weaker if need be: whole where numbers must be, and more than 0.

        A zero asks for nothing or, as in Slurm's `--mem=0`, for everything.
        """
        if word is None:
            return
        vocabulary = self.mapping.vocabulary
        exact = Fraction(value) * meaning.factor(word)
        least = form in (Form.MIN, Form.ABOVE)
        whole = Fraction(math.floor(exact) if least else math.ceil(exact))
        if not _place_of(_Said(form=form, word=word), vocabulary):
            form = _STRICT.get(form, form)
        if (number := exact if vocabulary.fractions else whole) > 0:
            yield _Said(form=form, word=word, number=number)


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


def _features(options: Sequence[Option], meaning: Meaning) -> Iterator[_Said]:
    features = [_feature(option, meaning) for option in options]
    if all(features):
        yield _Said(form=Form.FEATURE, texts=frozenset(each for each in features if each))


def _texts(options: Sequence[Option], meaning: Meaning, vocabulary: Vocabulary) -> Iterator[_Said]:
    if meaning.equal is None:
        return
    texts = [
        None if option is None or isinstance(option, tuple) else meaning.text(option, vocabulary)
        for option in options
    ]
    if all(texts):
        said = frozenset(each for each in texts if each)
        yield _Said(form=Form.EQUAL, word=meaning.equal, texts=said)


def _feature(option: Option, meaning: Meaning) -> str | None:
    """A feature of every node that has the option; of several values one that has a feature."""
    items = option if isinstance(option, tuple) else (option,)
    found = (meaning.feature(item) for item in items if item is not None)
    return next((feature for feature in found if feature), None)


def _clauses(alternatives: Sequence[tuple[_Said, ...]], vocabulary: Vocabulary) -> tuple[_Clause, ...]:
    """What holds in every alternative: of each one statement; the strongest of these."""
    clauses: list[_Clause] = [()]
    left = MAX_COMPARISONS
    for alternative in alternatives:
        longer = [_with(clause, said) for clause in clauses for said in alternative]
        left -= len(longer) ** 2
        if left < 0:
            return _about_one_thing(alternatives, vocabulary)
        clauses = _strongest(clause for clause in longer if _place_for(clause, vocabulary))
    return tuple(clauses)


def _about_one_thing(
    alternatives: Sequence[tuple[_Said, ...]], vocabulary: Vocabulary
) -> tuple[_Clause, ...]:
    """The same for statements about one thing each, which are few."""
    clauses: list[_Clause] = []
    for first in alternatives[0]:
        whole: _Clause = (first,)
        for alternative in alternatives[1:]:
            same = [said for said in alternative if said.place == first.place]
            whole = _with(whole, same[0]) if whole and same else ()
        if whole and _place_for(whole, vocabulary):
            clauses.append(whole)
    return tuple(_strongest(clauses))


def _with(clause: _Clause, said: _Said) -> _Clause:
    """The clause, which now holds where the statement does, too."""
    places = {each.place: each for each in clause}
    seen = places.get(said.place)
    places[said.place] = _weaker(seen, said) if seen else said
    return tuple(places[place] for place in sorted(places))


def _weaker(one: _Said, two: _Said) -> _Said:
    if one.texts or two.texts:
        return _Said(form=one.form, word=one.word, texts=one.texts | two.texts)
    if one.place[0] == Form.MIN:
        return min(one, two, key=lambda each: (each.number, each.form is Form.ABOVE))
    return max(one, two, key=lambda each: (each.number, each.form is not Form.BELOW))


def _strongest(clauses: Iterable[_Clause]) -> list[_Clause]:
    """The clauses without those that hold wherever another one does."""
    distinct = list(dict.fromkeys(clauses))
    return [
        each
        for each in distinct
        if not any(other is not each and _implies(other, each) for other in distinct)
    ]


def _implies(one: _Clause, two: _Clause) -> bool:
    places = {each.place: each for each in two}
    return all(said.place in places and said.implies(places[said.place]) for said in one)


def _place_for(clause: _Clause, vocabulary: Vocabulary) -> str | None:
    """Where a clause is written: `option`, `items` or `joined`; None: the language cannot say it."""
    places = {_place_of(said, vocabulary) for said in clause}
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


def _count(clause: _Clause) -> int:
    return sum(len(said.texts) or 1 for said in clause)


def _place_of(said: _Said, vocabulary: Vocabulary) -> str | None:
    word = vocabulary.words.get(said.word, Word())
    if said.form is Form.MIN and word.arguments:
        return "option"
    if vocabulary.items and (said.form in vocabulary.items.forms or (said.form is Form.MIN and word.item)):
        return "items"
    return "joined" if vocabulary.joined and said.form in vocabulary.joined.forms else None


def _written(clauses: Sequence[_Clause], vocabulary: Vocabulary) -> tuple[str, ...]:
    """The clauses as arguments, always in one order; of two on one word, which only one can be, the first."""
    by_place: dict[str, list[_Clause]] = {}
    for clause in sorted(clauses, key=_order):
        by_place.setdefault(_place_for(clause, vocabulary) or "", []).append(clause)
    singles: dict[tuple[str, ...], _Said] = {}
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


def _order(clause: _Clause) -> tuple[int, list[tuple[str, str, Fraction, list[str]]]]:
    return len(clause), [(said.form.value, said.word, said.number, sorted(said.texts)) for said in clause]


def _option(said: _Said, vocabulary: Vocabulary) -> Iterator[str]:
    for argument in vocabulary.words[said.word].arguments or ():
        yield argument.format(word=said.word, value=_number(said))


def _items(items: Sequence[_Said], vocabulary: Vocabulary) -> tuple[str, ...]:
    if not items or vocabulary.items is None:
        return ()
    listed = vocabulary.items.between.join(_item(said, vocabulary) for said in items)
    return _fitting(tuple(argument.format(items=listed) for argument in vocabulary.items.arguments))


def _item(said: _Said, vocabulary: Vocabulary) -> str:
    rules = vocabulary.items
    assert rules is not None  # noqa: S101  # `_place_of` found the form there
    form = vocabulary.words.get(said.word, Word()).item if said.form is Form.MIN else None
    if not said.word:
        return rules.forms[said.form].format(word=next(iter(said.texts)), value="")
    value = (rules.either or "").join(sorted(said.texts)) if said.texts else _number(said)
    return (form or rules.forms[said.form]).format(word=said.word, value=value)


def _joined(clauses: Sequence[_Clause], vocabulary: Vocabulary) -> tuple[str, ...]:
    rules = vocabulary.joined
    if not clauses or rules is None:
        return ()
    written = []
    for clause in clauses:
        terms = [term for said in clause for term in _terms(said, vocabulary)]
        text = (rules.or_ or "").join(terms)
        written.append(f"({text})" if len(terms) > 1 and len(clauses) > 1 else text)
    expression = rules.and_.join(written)
    return _fitting(tuple(argument.format(expression=expression) for argument in rules.arguments))


def _terms(said: _Said, vocabulary: Vocabulary) -> Iterator[str]:
    assert vocabulary.joined is not None  # noqa: S101  # `_place_of` found the form there
    form = vocabulary.joined.forms[said.form]
    if not said.texts:
        yield form.format(word=said.word, value=_number(said))
    for text in sorted(said.texts):
        yield form.format(word=said.word or text, value=text)


def _fitting(arguments: tuple[str, ...]) -> tuple[str, ...]:
    return arguments if all(len(each) <= MAX_ARGUMENT for each in arguments) else ()


def _number(said: _Said) -> str:
    """A number as all languages read it, without exponent, weaker if it cannot be written exactly."""
    number = said.number
    least = said.place[0] == Form.MIN
    thousandths = number * 1000
    whole = math.floor(thousandths) if least else math.ceil(thousandths)
    return f"{whole // 1000}.{whole % 1000:03}".rstrip("0").rstrip(".")
