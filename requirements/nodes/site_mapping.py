"""A site's mapping from attributes of its nodes to words of its batch system."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from requirements.errors import InvalidInput, Problem, did_you_mean
from requirements.nodes.lrms_vocabulary import (
    UNITS,
    ConditionForm,
    OptionForm,
    Vocabulary,
    parse_vocabulary,
)
from requirements.values import Scalar, fold, key


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """Words of one attribute."""

    name: str
    minimum: str | None = None  #: word for a lower bound
    maximum: str | None = None  #: word for an upper bound
    equal: str | None = None  #: word compared with texts
    values: tuple[tuple[Scalar, str], ...] | None = (
        None  #: our value and its text at the site; None: the same text
    )
    features: tuple[tuple[Scalar, str], ...] = ()  #: our value and the feature of nodes that have it
    kinds: tuple[tuple[Scalar, str], ...] = ()  #: our value and the kind of GPUs that have it
    factors: tuple[tuple[str, Fraction], ...] = ()  #: by word: factor for our number

    def text(self, value: Scalar, vocabulary: Vocabulary) -> str | None:
        """Return the text to compare for a value; None: it is not mapped, or cannot be written."""
        if self.values is not None:
            return _find_entry(self.values, value)
        return value if isinstance(value, str) and vocabulary.text.fullmatch(value) else None

    def feature(self, value: Scalar) -> str | None:
        """Return the feature of nodes that have the value; None: there is none."""
        return _find_entry(self.features, value)

    def factor(self, word: str) -> Fraction:
        """Return the factor that converts our number to the unit of a word."""
        return dict(self.factors).get(word, Fraction(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteMapping:
    """Mapping of node attributes at a queue; data only."""

    vocabulary: Vocabulary
    meanings: tuple[Meaning, ...]

    def find(self, name: str) -> Meaning | None:
        """Return the words of an attribute, in any case of letters; None: it is not mapped."""
        folded = fold(name)
        return next((each for each in self.meanings if fold(each.name) == folded), None)


def parse_mapping(raw: object, path: str = "Forwarding") -> SiteMapping:
    """Parse the section `Forwarding` of the configuration: `{Vocabulary: …, Attributes: {Name: {…}}}`.

    An attribute has `min`, `max`, `equal` with `values`, `features` or `feature`, `kinds` (of GPUs), `unit`
    (of ours) and `in` (of the word).

    Raises:
        InvalidInput: With every problem.
    """
    section = _section(raw, path, ("Vocabulary", "Attributes"))
    vocabulary = parse_vocabulary(section.get("Vocabulary"), f"{path}/Vocabulary")
    attributes = section.get("Attributes", {})
    if not isinstance(attributes, Mapping):
        raise InvalidInput([Problem(path=f"{path}/Attributes", message="allowed is {Name: {…}}")])
    return _mapping(vocabulary, attributes, f"{path}/Attributes")


def _mapping(vocabulary: Vocabulary, attributes: Mapping[object, object], path: str) -> SiteMapping:
    problems: list[Problem] = []
    meanings: list[Meaning] = []
    for name, entry in attributes.items():
        reading = _Reading(vocabulary=vocabulary, path=f"{path}/{name}")
        try:
            meanings.append(reading.meaning(str(name), entry))
        except InvalidInput as error:
            problems.extend(error.problems)
    problems.extend(_used_twice(meanings, path))
    if problems:
        raise InvalidInput(problems)
    return SiteMapping(vocabulary=vocabulary, meanings=tuple(meanings))


def _used_twice(meanings: Sequence[Meaning], path: str) -> Iterator[Problem]:
    """Yield conflicts: of two conditions on one option only one would hold."""
    users: dict[tuple[str, str], str] = {}
    names: dict[str, str] = {}
    for each in meanings:
        if (other := names.setdefault(fold(each.name), each.name)) != each.name:
            yield Problem(path=f"{path}/{each.name}", message=f"named twice, the other time as {other}")
        for how, word in (("min", each.minimum), ("max", each.maximum), ("equal", each.equal)):
            if word and (other := users.setdefault((how, word), each.name)) != each.name:
                yield Problem(path=f"{path}/{each.name}/{how}", message=f"{word} is already used by {other}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    vocabulary: Vocabulary
    path: str

    def meaning(self, name: str, raw: object) -> Meaning:
        allowed = ("min", "max", "equal", "values", "features", "feature", "kinds", "unit", "in")
        entry = _section(raw, self.path, allowed)
        features = dict(self._table(entry, "features", ConditionForm.FEATURE) or ())
        if "feature" in entry:
            features[True] = self._word(entry, "feature", ConditionForm.FEATURE) or ""
        minimum = self._word(entry, "min", ConditionForm.MIN)
        maximum = self._word(entry, "max", ConditionForm.MAX)
        words = [word for word in (minimum, maximum) if word]
        meaning = Meaning(
            name=name,
            minimum=minimum,
            maximum=maximum,
            equal=self._word(entry, "equal", ConditionForm.EQUAL),
            values=self._table(entry, "values", ConditionForm.EQUAL),
            features=tuple(features.items()),
            kinds=self._table(entry, "kinds", ConditionForm.KIND) or (),
            factors=tuple((word, self._factor(entry, word)) for word in words),
        )
        if not (words or meaning.equal or features or meaning.kinds):
            raise self._fault("", "is empty; allowed are min, max, equal, features, feature, kinds")
        return meaning

    def _word(self, entry: Mapping[object, object], how: str, form: ConditionForm) -> str | None:
        word = entry.get(how)
        if word is None:
            return None
        if not isinstance(word, str) or not self.vocabulary.word.fullmatch(word):
            raise self._fault(how, f"{word!r} is not a word, allowed is {self.vocabulary.word.pattern}")
        if not supports(self.vocabulary, form, word):
            raise self._fault(how, f"{self.vocabulary.name} does not support {how} of {word}")
        return word

    def _table(
        self, entry: Mapping[object, object], how: str, form: ConditionForm
    ) -> tuple[tuple[Scalar, str], ...] | None:
        raw = entry.get(how)
        if raw is None:
            return None
        if not isinstance(raw, Mapping):
            raise self._fault(how, f"{raw!r}, allowed is {{value: text}}")
        is_word = form in (ConditionForm.FEATURE, ConditionForm.KIND)
        pattern = self.vocabulary.word if is_word else self.vocabulary.text
        for ours, theirs in raw.items():
            if not isinstance(ours, str | bool | int | float):
                raise self._fault(how, f"{ours!r} is not a value of a node")
            if not isinstance(theirs, str) or not pattern.fullmatch(theirs):
                raise self._fault(how, f"{theirs!r} cannot be written, allowed is {pattern.pattern}")
            if is_word and not supports(self.vocabulary, form, theirs):
                raise self._fault(how, f"{self.vocabulary.name} has no {how}")
        return tuple(raw.items())

    def _factor(self, entry: Mapping[object, object], word: str) -> Fraction:
        known = self.vocabulary.words.get(word, OptionForm()).unit
        ours, theirs = entry.get("unit"), entry.get("in", known)
        if known and theirs != known:
            raise self._fault("in", f"{theirs!r}, but {word} is in {known}")
        if ours is None:
            return Fraction(1)
        if theirs is None:
            raise self._fault("unit", f"the unit of {word} is not known; state it with `in`")
        for units in UNITS.values():
            if ours in units and theirs in units:
                return units[str(ours)] / units[str(theirs)]
        allowed = "; ".join(", ".join(units) for units in UNITS.values())
        raise self._fault("unit", f"{ours!r} cannot be converted to {theirs!r}, allowed are {allowed}")

    def _fault(self, part: str, message: str) -> InvalidInput:
        return InvalidInput([Problem(path=f"{self.path}/{part}".rstrip("/"), message=message)])


def supports(vocabulary: Vocabulary, form: ConditionForm, word: str) -> bool:
    """Whether a language supports a form for a word."""
    if word in vocabulary.words and form is ConditionForm.MIN:
        known = vocabulary.words[word]
        if known.arguments or known.item:
            return True
    return form in vocabulary.separate or any(
        form in place.forms for place in (vocabulary.items, vocabulary.joined) if place
    )


def _section(raw: object, path: str, allowed: tuple[str, ...]) -> Mapping[object, object]:
    if not isinstance(raw, Mapping):
        raise InvalidInput([Problem(path=path, message=f"{raw!r}, allowed are {', '.join(allowed)}")])
    problems = [
        Problem(
            path=f"{path}/{name}",
            message=f"unknown, allowed are {', '.join(allowed)}",
            suggestion=did_you_mean(str(name), allowed),
        )
        for name in raw
        if name not in allowed
    ]
    if problems:
        raise InvalidInput(problems)
    return raw


def _find_entry(table: Sequence[tuple[Scalar, str]], value: Scalar) -> str | None:
    return next((text for ours, text in table if key(ours) == key(value)), None)
