"""A site's mapping: which attribute of its nodes is which word of its batch system."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from requirements.errors import InvalidInput, Problem, did_you_mean
from requirements.nodes.lrms_vocabulary import UNITS, VOCABULARIES, ConditionForm, OptionForm, Vocabulary
from requirements.values import Scalar, fold, key


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """How one attribute is said."""

    name: str
    minimum: str | None = None  #: the word for "at least"
    maximum: str | None = None  #: the word for "at most"
    equal: str | None = None  #: the word that is compared with texts
    values: tuple[tuple[Scalar, str], ...] | None = None  #: our value, its text there; None: its own
    features: tuple[tuple[Scalar, str], ...] = ()  #: our value, the feature of nodes that have it
    factors: tuple[tuple[str, Fraction], ...] = ()  #: by word: what our number is multiplied with

    def text(self, value: Scalar, vocabulary: Vocabulary) -> str | None:
        """The text that is compared for a value; None: it is not mapped, or not fit to be written."""
        if self.values is not None:
            return _find_entry(self.values, value)
        return value if isinstance(value, str) and vocabulary.text.fullmatch(value) else None

    def feature(self, value: Scalar) -> str | None:
        """The feature of nodes that have the value; None: there is none."""
        return _find_entry(self.features, value)

    def factor(self, word: str) -> Fraction:
        """What a number of ours is multiplied with to be in the unit of a word."""
        return dict(self.factors).get(word, Fraction(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteMapping:
    """How requirements on nodes are said at a queue; data only."""

    vocabulary: Vocabulary
    meanings: tuple[Meaning, ...]

    def of(self, name: str) -> Meaning | None:
        """How an attribute is said, in any case of letters; None: not at all."""
        folded = fold(name)
        return next((each for each in self.meanings if fold(each.name) == folded), None)


def parse_mapping(raw: object, path: str = "Forwarding") -> SiteMapping:
    """What a configuration says under `Forwarding`.

    Args:
        raw: `{Vocabulary: name, Attributes: {Name: {…}}}`; of an attribute `min`, `max`, `equal` with
            `values`, `features` or `feature`, `unit` (of ours) and `in` (of the word).
        path: Where it stands, for the messages.

    Raises:
        InvalidInput: With every problem.
    """
    section = _section(raw, path, ("Vocabulary", "Attributes"))
    name = section.get("Vocabulary")
    vocabulary = VOCABULARIES.get(name) if isinstance(name, str) else None
    if vocabulary is None:
        message = f"{name!r} is no vocabulary, allowed are {', '.join(VOCABULARIES)}"
        meant = did_you_mean(str(name), VOCABULARIES)
        raise InvalidInput([Problem(path=f"{path}/Vocabulary", message=message, suggestion=meant)])
    attributes = section.get("Attributes", {})
    if not isinstance(attributes, Mapping):
        raise InvalidInput([Problem(path=f"{path}/Attributes", message="allowed is {Name: {…}}")])
    return _mapping(vocabulary, attributes, f"{path}/Attributes")


def _mapping(vocabulary: Vocabulary, attributes: Mapping[object, object], path: str) -> SiteMapping:
    problems: list[Problem] = []
    meanings: list[Meaning] = []
    for name, said in attributes.items():
        reading = _Reading(vocabulary=vocabulary, path=f"{path}/{name}")
        try:
            meanings.append(reading.meaning(str(name), said))
        except InvalidInput as error:
            problems.extend(error.problems)
    problems.extend(_used_twice(meanings, path))
    if problems:
        raise InvalidInput(problems)
    return SiteMapping(vocabulary=vocabulary, meanings=tuple(meanings))


def _used_twice(meanings: Sequence[Meaning], path: str) -> Iterator[Problem]:
    """Of two conditions on one option only one would hold."""
    users: dict[tuple[str, str], str] = {}
    names: dict[str, str] = {}
    for each in meanings:
        if (other := names.setdefault(fold(each.name), each.name)) != each.name:
            yield Problem(path=f"{path}/{each.name}", message=f"named twice, the other time as {other}")
        for how, word in (("min", each.minimum), ("max", each.maximum), ("equal", each.equal)):
            if word and (other := users.setdefault((how, word), each.name)) != each.name:
                yield Problem(path=f"{path}/{each.name}/{how}", message=f"{word} is already said by {other}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The reading of one attribute."""

    vocabulary: Vocabulary
    path: str

    def meaning(self, name: str, raw: object) -> Meaning:
        allowed = ("min", "max", "equal", "values", "features", "feature", "unit", "in")
        said = _section(raw, self.path, allowed)
        features = dict(self._table(said, "features", ConditionForm.FEATURE) or ())
        if "feature" in said:
            features[True] = self._word(said, "feature", ConditionForm.FEATURE) or ""
        minimum, maximum = (
            self._word(said, "min", ConditionForm.MIN),
            self._word(said, "max", ConditionForm.MAX),
        )
        words = [word for word in (minimum, maximum) if word]
        meaning = Meaning(
            name=name,
            minimum=minimum,
            maximum=maximum,
            equal=self._word(said, "equal", ConditionForm.EQUAL),
            values=self._table(said, "values", ConditionForm.EQUAL),
            features=tuple(features.items()),
            factors=tuple((word, self._factor(said, word)) for word in words),
        )
        if not (words or meaning.equal or features):
            raise self._fault("", "says nothing; allowed are min, max, equal, features, feature")
        return meaning

    def _word(self, said: Mapping[object, object], how: str, form: ConditionForm) -> str | None:
        word = said.get(how)
        if word is None:
            return None
        if not isinstance(word, str) or not self.vocabulary.word.fullmatch(word):
            raise self._fault(how, f"{word!r} is no word, allowed is {self.vocabulary.word.pattern}")
        if not can_say(self.vocabulary, form, word):
            raise self._fault(how, f"{self.vocabulary.name} cannot say {how} of {word}")
        return word

    def _table(
        self, said: Mapping[object, object], how: str, form: ConditionForm
    ) -> tuple[tuple[Scalar, str], ...] | None:
        raw = said.get(how)
        if raw is None:
            return None
        if not isinstance(raw, Mapping):
            raise self._fault(how, f"{raw!r}, allowed is {{value: text}}")
        pattern = self.vocabulary.word if form is ConditionForm.FEATURE else self.vocabulary.text
        for ours, theirs in raw.items():
            if not isinstance(ours, str | bool | int | float):
                raise self._fault(how, f"{ours!r} is no value of a node")
            if not isinstance(theirs, str) or not pattern.fullmatch(theirs):
                raise self._fault(how, f"{theirs!r} cannot be written, allowed is {pattern.pattern}")
            if form is ConditionForm.FEATURE and not can_say(self.vocabulary, form, theirs):
                raise self._fault(how, f"{self.vocabulary.name} has no features")
        return tuple(raw.items())

    def _factor(self, said: Mapping[object, object], word: str) -> Fraction:
        known = self.vocabulary.words.get(word, OptionForm()).unit
        ours, theirs = said.get("unit"), said.get("in", known)
        if known and theirs != known:
            raise self._fault("in", f"{theirs!r}, but {word} is in {known}")
        if ours is None or (theirs is None and ours is not None):
            if ours is not None:
                raise self._fault("unit", f"{word} has no unit that is known here; say it with `in`")
            return Fraction(1)
        for units in UNITS.values():
            if ours in units and theirs in units:
                return units[str(ours)] / units[str(theirs)]
        allowed = "; ".join(", ".join(units) for units in UNITS.values())
        raise self._fault("unit", f"{ours!r} is not converted into {theirs!r}, allowed are {allowed}")

    def _fault(self, part: str, message: str) -> InvalidInput:
        return InvalidInput([Problem(path=f"{self.path}/{part}".rstrip("/"), message=message)])


def can_say(vocabulary: Vocabulary, form: ConditionForm, word: str) -> bool:
    """Whether a language has a form for a word."""
    if word in vocabulary.words and form is ConditionForm.MIN:
        known = vocabulary.words[word]
        if known.arguments or known.item:
            return True
    return any(form in place.forms for place in (vocabulary.items, vocabulary.joined) if place)


def _section(raw: object, path: str, allowed: tuple[str, ...]) -> Mapping[object, object]:
    if not isinstance(raw, Mapping):
        raise InvalidInput([Problem(path=path, message=f"{raw!r}, allowed are {', '.join(allowed)}")])
    problems = [
        Problem(
            path=f"{path}/{name}",
            message=f"not known, allowed are {', '.join(allowed)}",
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
