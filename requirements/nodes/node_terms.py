"""What the batch system's statements mean for the representatives of an attribute, by the site's mapping.

A statement has to hold on every node that is needed, so what an unknown value may be counts against it. The
other way round, nodes that the batch system may take are those on which a statement may hold: there an
unknown attribute has a value of the kind that its word stands for, and one value if it is compared as one.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from requirements.nodes.lrms_rendering import NOT_STRICT, Term, find_place, written_number
from requirements.nodes.lrms_vocabulary import ConditionForm
from requirements.nodes.node_parts import NodePart
from requirements.nodes.representatives import NodeVariable, Representative
from requirements.nodes.site_mapping import Meaning, SiteMapping
from requirements.values import Scalar, as_number, fold, key

_MINIMUM = frozenset({ConditionForm.MIN, ConditionForm.ABOVE})


#: Lower and upper bound of numbers, each with whether it is exclusive.
Hull = tuple[tuple[float, bool], tuple[float, bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTerms:
    """Statements of one batch system about nodes."""

    mapping: SiteMapping

    def find_terms(self, part: NodePart, variable: NodeVariable, needed: Collection[int]) -> Iterator[Term]:
        """Yield the strongest statements that hold for some representatives of a variable, by position."""
        meaning = self.mapping.find(variable.attribute) if variable.attribute else None
        if meaning is None or not needed or len(needed) == variable.size:
            return
        chosen = [variable.representatives[position] for position in needed]
        bounds: tuple[Term, ...] = ()
        if variable.item is None:
            yield from (bounds := tuple(self._bounds(variable, chosen, meaning)))
            if texts := self._texts(chosen, meaning):
                yield Term(form=ConditionForm.EQUAL, word=meaning.equal or "", texts=texts)
            else:
                yield from self._other_texts(variable, needed, meaning)
        # Besides a bound of numbers, the feature that stands for all that counts as true says nothing.
        is_bounded = bool(bounds) and key(True) not in variable.literals  # noqa: FBT003  # a value
        features = [
            None if is_bounded and _is_number(each.value) else _find_feature(variable, each, meaning)
            for each in chosen
        ]
        if all(features):
            yield Term(form=ConditionForm.FEATURE, texts=frozenset(each for each in features if each))
        else:
            yield from self._lacking(part, variable, needed, meaning)

    def _bounds(
        self, variable: NodeVariable, chosen: Sequence[Representative], meaning: Meaning
    ) -> Iterator[Term]:
        """Bound numbers by the smallest and the largest, unless all listed nodes are within these bounds."""
        hull = _find_hull(chosen)
        whole = _find_hull(variable.representatives) if variable.is_listed else None
        if hull is None:
            return
        (low, is_above), (high, is_below) = hull
        if math.isfinite(low) and (whole is None or low > whole[0][0]):
            form = ConditionForm.ABOVE if is_above else ConditionForm.MIN
            yield from self.bound(form, low, meaning.minimum, meaning)
        if math.isfinite(high) and (whole is None or high < whole[1][0]):
            form = ConditionForm.BELOW if is_below else ConditionForm.MAX
            yield from self.bound(form, high, meaning.maximum, meaning)

    def bound(self, form: ConditionForm, value: float, word: str | None, meaning: Meaning) -> Iterator[Term]:
        """Convert a bound to the word's unit, rounded to the weaker side if necessary; 0 is left out.

        A zero requests nothing or, as in Slurm's `--mem=0`, everything.
        """
        if word is None:
            return
        vocabulary = self.mapping.vocabulary
        exact = Fraction(value) * meaning.factor(word)
        whole = Fraction(math.floor(exact) if form in _MINIMUM else math.ceil(exact))
        if not find_place(Term(form=form, word=word), vocabulary):
            form = NOT_STRICT.get(form, form)
        if (number := exact if vocabulary.fractions else whole) > 0:
            yield Term(form=form, word=word, number=number)

    def _texts(self, chosen: Sequence[Representative], meaning: Meaning) -> frozenset[str]:
        """Return the texts of which each representative has one; empty if this cannot be expressed."""
        found: dict[str, str] = {}
        for each in chosen:
            text = None if meaning.equal is None else self._text(each, meaning)
            if not text:
                return frozenset()
            found.setdefault(fold(text), text)
        return frozenset(found.values())

    def _text(self, each: Representative, meaning: Meaning) -> str | None:
        is_one = each.between is None and not each.is_other and isinstance(each.value, str | int | float)
        return meaning.text(each.value, self.mapping.vocabulary) if is_one else None  # type: ignore[arg-type]

    def _other_texts(
        self, variable: NodeVariable, needed: Collection[int], meaning: Meaning
    ) -> Iterator[Term]:
        """Yield the texts that no needed representative has, where each has a text."""
        chosen = [variable.representatives[position] for position in needed]
        if meaning.equal is None or not all(
            isinstance(each.value, str) or self._text(each, meaning) for each in chosen
        ):
            return
        kept = {fold(text) for each in chosen for text in self._possible_texts(variable, each, meaning)}
        for position, each in enumerate(variable.representatives):
            text = self._text(each, meaning)
            if position not in needed and text and fold(text) not in kept:
                yield Term(form=ConditionForm.NOT_EQUAL, word=meaning.equal, texts=frozenset({text}))

    def _possible_texts(
        self, variable: NodeVariable, each: Representative, meaning: Meaning
    ) -> Iterator[str]:
        """Yield the texts that a node may have: of its value, or of one that is mapped."""
        if text := self._text(each, meaning):
            yield text
        yield from (text for value, text in meaning.values or () if _may_have(variable, each, value))

    def _lacking(
        self, part: NodePart, variable: NodeVariable, needed: Collection[int], meaning: Meaning
    ) -> Iterator[Term]:
        """Yield the features that no needed representative may have, but another one has."""
        if any(_is_any_list(variable, variable.representatives[position]) for position in needed):
            return
        chosen = part.select(variable, needed)
        named = [feature for value, feature in meaning.features if self._is_compared(variable, value)]
        for feature in dict.fromkeys(named):
            if not self._having(part, feature) & chosen:
                yield Term(form=ConditionForm.NO_FEATURE, texts=frozenset({feature}))

    @staticmethod
    def _is_compared(variable: NodeVariable, value: Scalar) -> bool:
        if variable.is_listed:
            return any(_has(variable, each, value) for each in variable.representatives)
        return key(value) in variable.literals or variable.item is not None

    def accept(self, part: NodePart, term: Term) -> int:
        """Return the combinations of a part that the batch system may take for a statement."""
        if term.form is ConditionForm.FEATURE:
            found = 0
            for feature in term.texts:
                found |= self._having(part, feature, as_mapped=True)
            return found
        if term.form in (ConditionForm.NOT_EQUAL, ConditionForm.NO_FEATURE):
            return part.everything
        accepted = part.everything
        for variable in part.variables:
            meaning = self.mapping.find(variable.attribute) if variable.attribute else None
            if meaning is None or variable.item is not None:
                continue
            words = {ConditionForm.EQUAL: meaning.equal, ConditionForm.MIN: meaning.minimum}
            if words.get(NOT_STRICT.get(term.form, term.form), meaning.maximum) == term.word:
                taken = [
                    position
                    for position, each in enumerate(variable.representatives)
                    if self._may_hold(term, variable, each, meaning)
                ]
                accepted &= part.select(variable, taken)
        return accepted

    def _having(self, part: NodePart, feature: str, *, as_mapped: bool = False) -> int:
        """Return the combinations in which a node may have a feature: that of one of its values.

        `as_mapped`: only if it has a value of the kind that the feature stands for.
        """
        found = 0
        for meaning in self.mapping.meanings:
            for value in (value for value, named in meaning.features if named == feature):
                about = [each for each in part.variables if each.attribute == fold(meaning.name)]
                if not about:
                    return part.everything
                having = part.everything
                for variable in about:
                    having &= part.select(
                        variable,
                        [
                            position
                            for position, each in enumerate(variable.representatives)
                            if _may_have(variable, each, value)
                            and (not as_mapped or _is_as_mapped(variable, each, value, meaning))
                        ],
                    )
                found |= having
        return found

    def _may_hold(self, term: Term, variable: NodeVariable, each: Representative, meaning: Meaning) -> bool:
        if each.value is None or isinstance(each.value, tuple):
            return variable.is_listed and each.value is not None
        if term.form is ConditionForm.EQUAL:
            texts = {fold(text) for text in self._possible_texts(variable, each, meaning)}
            return not texts.isdisjoint(map(fold, term.texts)) or (variable.is_listed and not texts)
        numbers = find_range(each)
        if numbers is None:
            return variable.is_listed
        low, high = numbers
        factor, bound = meaning.factor(term.word), written_number(term)
        end = high if term.form in _MINIMUM else low
        if math.isinf(end):
            return True
        number = Fraction(end) * factor
        if number == bound:
            return term.form in (ConditionForm.MIN, ConditionForm.MAX) and each.between is None
        return number > bound if term.form in _MINIMUM else number < bound


def _find_hull(chosen: Sequence[Representative]) -> Hull | None:
    """Return bounds of numbers, and whether they are exclusive; None: one is no number.

    A list has its smallest and its largest number: of several numbers one is enough.
    """
    lows, highs = [], []
    for each in chosen:
        if (numbers := find_range(each)) is None:
            return None
        is_open = each.between is not None
        lows.append((numbers[0 if is_open else 1], is_open))
        highs.append((numbers[1 if is_open else 0], not is_open))
    high, is_closed = max(highs)
    return min(lows), (high, not is_closed)


def find_range(each: Representative) -> tuple[float, float] | None:
    """Return the smallest and the largest number that a representative stands for; true is 1."""
    if each.between is not None:
        return each.between
    items = each.value if isinstance(each.value, tuple) else (each.value,)
    numbers = [number for item in items if isinstance(number := _read_number(item), int | float)]
    return (min(numbers), max(numbers)) if numbers and len(numbers) == len(items) else None


def _read_number(item: object) -> object:
    return as_number(item) if isinstance(item, str) else item


def _find_feature(variable: NodeVariable, each: Representative, meaning: Meaning) -> str | None:
    """Return a feature of every node with a representative: that of any of its values."""
    return next((name for value, name in meaning.features if _has(variable, each, value)), None)


def _has(variable: NodeVariable, each: Representative, value: Scalar) -> bool:
    """Whether every node that a representative stands for has a value."""
    if variable.item is not None:
        return each.value is True and key(variable.item) == key(value)
    if each.between is not None:
        return value is True and not each.between[0] < 0 < each.between[1]
    if isinstance(each.value, tuple):
        return any(_counts_as(item, value) for item in each.value)
    return not each.is_other and _counts_as(each.value, value)


def _may_have(variable: NodeVariable, each: Representative, value: Scalar) -> bool:
    """Whether a node that a representative stands for may have a value, alone or among others."""
    if variable.item is not None:
        # Of another item nothing is known; what is no list may have the value itself.
        return key(variable.item) != key(value) or each.value not in (False, None)
    if _has(variable, each, value):
        return True
    if each.between is not None:
        low, high = each.between
        return low < 0 < high if isinstance(value, bool) else _is_number(value) and low < value < high  # type: ignore[operator]
    return (
        each.is_other and isinstance(each.value, (tuple, type(value))) and key(value) not in variable.literals
    )


def _is_as_mapped(variable: NodeVariable, each: Representative, value: Scalar, meaning: Meaning) -> bool:
    """Whether an unknown attribute, if only a feature stands for true or false, has such a value."""
    is_truth = isinstance(value, bool) and not (meaning.minimum or meaning.maximum or meaning.equal)
    return variable.is_listed or not is_truth or isinstance(each.value, bool)


def _is_any_list(variable: NodeVariable, each: Representative) -> bool:
    return not variable.is_listed and variable.item is None and isinstance(each.value, tuple)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _counts_as(item: object, value: Scalar) -> bool:
    """Whether a node with an item has the feature of a value: that of true means all that counts so."""
    if not isinstance(item, str | int | float):
        return False
    if isinstance(value, bool) and isinstance(item, int | float):
        return bool(item) is value
    return key(item) == key(value)
