"""Upper bound of the work of an evaluation, by the tree of the expression and the sizes of the values.

HTCondor's library cannot be interrupted, and the interpreter waits for it. A short expression may build long
texts of short values, `toLower(strcat(X, X, …))`, and a short pattern may read a text many times. So the work
is bounded before the evaluation; beyond the bound the value is Error. Values are copied into the library
before: each name of an expression has a share of that work (`reading_shares`), and a value beyond it is
Error.

A function that builds a text hands its argument's length on, one that returns a number or a truth value does
not. So the work is linear in the sizes of the values that the expression reads, with one weight for each
name, and the weights are found once. Only a few functions compare two texts part by part: the product of the
two lengths is added for these. Weights were measured; `benchmarks/expressions.py` compares them with times.

Budgets in these units: `count_work` and `LargestSizes.units`, which adds the reading.
"""

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from requirements.classad import restrictions
from requirements.classad.restrictions import parts_of, resource_names
from requirements.classad.syntax_tree import (
    ELVIS,
    Attribute,
    Call,
    Chain,
    Conditional,
    ListOf,
    Literal,
    Node,
    Subscript,
    Unary,
    attribute_key,
    children,
    render,
)
from requirements.values import MAX_ITEMS, MAX_LIST, MAX_TEXT, Value, find_excess

#: Work of one evaluation, and of reading all its values before; a unit takes at most 0.1 ns, so all of it
#: at most 10 ms.
MAX_WORK: Final = 50_000_000
MAX_READING: Final = 50_000_000

TOO_LONG: Final = "the texts that it reads and builds are too long"
TOO_LONG_TO_READ: Final = "is too long beside what else is read"

#: Names of an expression, and those that are only compared, share the reading as if they were at least that
#: many.
_FEW_NAMES: Final = 128
_FEW_COMPARED: Final = 8
#: Work of reading a name with a number, a text or list, an item of a list, more for a number there and for a
#: text beyond ASCII; and each byte of a text: of ASCII, in NFC, and in another form.
_READ_NAME: Final = 28_000
_READ_TEXT: Final = 10_000
_READ_LIST: Final = 40_000
_READ_ITEM: Final = 6_000
_READ_NUMBER: Final = 1_000
_READ_LETTERS: Final = 4_000
_READ_BYTE: Final = 3
_READ_LETTER: Final = 70
_NORMALIZED: Final = 1_500
#: Bytes of a text in NFC for each of its own, at most.
_COMPOSED: Final = 3

#: Bytes of a character in UTF-8 and NFC, at most.
_BYTES: Final = 12
#: Bytes of a number as text, at most: `-1.797693134862316E+308`.
_NUMBER: Final = 24
#: Bytes of one byte of an item in a list that is converted to text: `\303`.
_ESCAPED: Final = 4
#: Bytes that count for an item of a list besides its text: the library handles it as a value of its own.
_ITEM: Final = 16
#: Work of each operator, name and literal, of an argument that is computed in Python, and of an item of a
#: list there.
_NODE: Final = 1_000
_COMPUTED: Final = 35_000
_COMPUTED_ITEM: Final = 11_000
#: Work for each byte of a value that the library copies, of a list that becomes one of Python, and of one
#: that is written as text: there a byte that is no letter of ASCII takes ten times as long as a letter.
_COPYING: Final = 4
_RETURNING: Final = 60
_WRITING: Final = 550
#: Work for each byte that a regular expression is matched with: if RE2 can keep all states of its automaton,
#: and for each instruction of its program else; of a large program, most do not take part.
_MATCHING: Final = 60
_INSTRUCTION: Final = 150
_FURTHER_INSTRUCTION: Final = 70
_INSTRUCTIONS: Final = 300
_FLAGS: Final = re.compile(r"\(\?[a-z]+\)")
#: What stands for several characters, what repeats, and how often. Each may double the number of states.
_SEVERAL: Final = re.compile(r"[.\[(]|\\[A-Za-z]")
_REPEATING: Final = re.compile(r"[*+?]")
_COUNT: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")
#: Instructions and ambiguities of a program, at most, that has so few states that RE2 keeps all of them, some
#: hundreds; it builds them once, in about a millisecond.
_FEW_STATES: Final = ((40, 10), (100, 8))

#: How many times less memory such a program takes, at least.
_SMALLER: Final = 8

#: Work for each byte, of functions that return a text, of those that read one, and of those that read a list.
_BUILDING: Final = {"strcat": 4, "string": 4, "substr": 6, "tolower": 35, "toupper": 35}
_READING: Final = {
    **dict.fromkeys(("int", "real", "bool", "floor", "ceiling", "round", "pow", "quantize"), 12),
    **dict.fromkeys(("strcmp", "stricmp"), 6),
    **dict.fromkeys(("versioncmp", "versiongt", "versionge", "versionlt", "versionle", "versioneq"), 20),
    "version_in_range": 25,
    "stringlistsize": 120,
    **dict.fromkeys(("stringlistsum", "stringlistavg", "stringlistmin", "stringlistmax"), 450),
    **dict.fromkeys(("stringlistmember", "stringlistimember"), 400),
    **dict.fromkeys(("stringlistsintersect", "stringlistsubsetmatch", "stringlistisubsetmatch"), 400),
}
#: Functions that convert a list to text.
_WRITERS: Final = frozenset(
    {*("strcat", "string", "tolower", "toupper", "strcmp", "stricmp"), *restrictions.VERSION_FUNCTIONS}
)
_LISTS: Final = dict.fromkeys(
    ("member", "identicalmember", "anycompare", "allcompare", "sum", "avg", "min", "max"), 20
)
#: Functions that compare each item of the first text with each of the second.
_PAIRS: Final = frozenset({"stringlistisubsetmatch"})
_PER_PAIR: Final = 3
#: Of functions whose last argument may have the separators, the place of that argument.
_SEPARATORS: Final = {
    **dict.fromkeys(
        ("stringlistsize", "stringlistsum", "stringlistavg", "stringlistmin", "stringlistmax"), 1
    ),
    **dict.fromkeys(("stringlistmember", "stringlistimember"), 2),
    **dict.fromkeys(("stringlistsintersect", "stringlistsubsetmatch", "stringlistisubsetmatch"), 2),
}
_PER_SEPARATOR: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size of a text, or of a list with all its items, at most."""

    bytes: int  #: as the library has it
    items: int | None = None  #: of a list; None: it is a text
    reading: int = 0  #: work of copying it into the library

    def find_excess(self, allowed: int) -> str | None:
        """Return why a value is not read; None: its work is no more than is allowed."""
        return _describe_excess(TOO_LONG_TO_READ, self.reading, allowed) if self.reading > allowed else None


#: Sizes of the values that are texts or lists, by `attribute_key`.
Sizes = Mapping[str, Size]


def measure(value: object) -> Size | None:
    """Return the size of a value of a resource; None: it is neither text nor a list."""
    if isinstance(value, str):
        length, reading = _measure_text(value)
        return Size(bytes=length, reading=_READ_TEXT + reading)
    if not isinstance(value, list | tuple):
        return None
    texts = [item for item in value if isinstance(item, str)]
    whole = "".join(texts)
    sizes = [_measure_text(each) for each in ((whole,) if whole.isascii() else texts)]
    least, numbers = _least_list(len(value)), len(value) - len(texts)
    return Size(
        bytes=least.bytes + sum(length for length, _ in sizes) + _NUMBER * numbers,
        items=least.items,
        reading=least.reading + sum(reading for _, reading in sizes) + _READ_NUMBER * numbers,
    )


def measure_least(value: object) -> Size | None:
    """Return a lower bound of the size of a list, without a look at its items; None: it is none."""
    return _least_list(len(value)) if isinstance(value, list | tuple) else None


def _least_list(count: int) -> Size:
    return Size(bytes=_ITEM * count, items=count, reading=_READ_LIST + _READ_ITEM * count)


def _measure_text(text: str) -> tuple[int, int]:
    """Return the bytes of a text in the library, at most, and the work of reading it."""
    if text.isascii():
        return len(text), len(text) * _READ_BYTE
    length = len(text.encode(errors="surrogatepass"))  # half of a surrogate pair is refused later
    if unicodedata.is_normalized("NFC", text):
        return length, _READ_LETTERS + length * _READ_LETTER
    return length * _COMPOSED, _READ_LETTERS + length * _NORMALIZED


def reading_shares(node: Node) -> dict[str, int]:
    """Return the work that reading each name's value may take, by `attribute_key`.

    They do not depend on the values of other names, so an operand of the outermost `&&` has the same value
    alone as within the whole. Names that are only compared have a small part: a list is of no use there.
    They are rounded so that a name mostly has the same in different expressions.
    """
    names, lists = resource_names(node), frozenset(_list_names(node))
    left = max(0, MAX_READING - _READ_NAME * _round_up(len(names), _FEW_NAMES))
    others = left // 8 // _round_up(len(names) - len(lists), _FEW_COMPARED)
    of_list = (left - left // 8) // _round_up(len(lists), 1)
    return {name: of_list if name in lists else others for name in names}


def _list_names(node: Node) -> Iterator[str]:
    """Yield the names whose values are not only operands of operators."""
    if isinstance(node, Attribute):
        yield attribute_key(node.names[-1])
    for part in parts_of(node):
        is_operator = isinstance(part, Unary) or (isinstance(part, Chain) and part.level != ELVIS)
        for child in () if is_operator else children(part):
            if isinstance(child, Attribute):
                yield attribute_key(child.names[-1])


def _round_up(count: int, least: int) -> int:
    """Round a number of names up to `least`, or that doubled as often as necessary."""
    return least << _doublings(math.ceil(count / least))


def _doublings(count: int) -> int:
    """Return the exponent of the smallest power of two that is not less than the count."""
    return max(0, count - 1).bit_length()


#: The largest sizes that values may have.
_LARGEST_TEXT: Final = Size(bytes=MAX_TEXT * _BYTES)
_LARGEST_LIST: Final = Size(bytes=MAX_LIST * _BYTES, items=MAX_ITEMS)


@dataclass(slots=True, kw_only=True)
class _Sum:
    """A linear function of the sizes: a constant, and a weight for each byte of a value."""

    constant: int = 0
    of_texts: dict[str, int] = field(default_factory=dict)  #: by `attribute_key`, if the value is a text
    of_lists: dict[str, int] = field(default_factory=dict)  #: if it is a list
    of_items: dict[str, int] = field(default_factory=dict)  #: for each item of a list

    def value(self, sizes: Sizes) -> int:
        """Return the value for values of these sizes."""
        total = self.constant
        for name, weight in self.of_texts.items():
            if size := sizes.get(name):
                total += size.bytes * weight if size.items is None else self._measure_list(name, size)
        return total

    def _measure_list(self, name: str, size: Size) -> int:
        return size.bytes * self.of_lists[name] + (size.items or 0) * self.of_items.get(name, 0)

    @property
    def most(self) -> int:
        """The value for the largest values that there may be."""
        largest = (
            max(weight * _LARGEST_TEXT.bytes, self._measure_list(name, _LARGEST_LIST))
            for name, weight in self.of_texts.items()
        )
        return self.constant + sum(largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Upper bound of the work of one expression, for any values."""

    linear: _Sum
    products: tuple[tuple[_Sum, _Sum], ...]

    def units(self, sizes: Sizes) -> int:
        """Return the bound for values of these sizes."""
        return self.linear.value(sizes) + sum(
            one.value(sizes) * two.value(sizes) for one, two in self.products
        )

    @property
    def most(self) -> int:
        """The bound for the largest values that there may be."""
        return self.linear.most + sum(one.most * two.most for one, two in self.products)


@dataclass(frozen=True, slots=True)
class LargestSizes:
    """The sizes of the largest values that each name has at any of many resources."""

    texts: dict[str, Size] = field(default_factory=dict)
    lists: dict[str, Size] = field(default_factory=dict)

    def add(self, name: str, value: Value | None) -> None:
        """Add a value; one that is too long is not read."""
        size = None if value is None or find_excess(value) else measure(value)
        if size is not None:
            kept, key = self.texts if size.items is None else self.lists, attribute_key(name)
            known = kept.setdefault(key, size)
            items = None if size.items is None else max(size.items, known.items or 0)
            reading = max(size.reading, known.reading)
            kept[key] = Size(bytes=max(size.bytes, known.bytes), items=items, reading=reading)

    def units(self, work: Work) -> int:
        """Return an upper bound of the work of reading and evaluating once, at any of the resources."""
        reading = _READ_NAME * len(work.linear.of_texts) + sum(
            max(kept[name].reading for kept in (self.texts, self.lists) if name in kept)
            for name in work.linear.of_texts
            if name in self.texts or name in self.lists
        )
        return self.evaluation_units(work) + min(reading, MAX_READING)

    def evaluation_units(self, work: Work) -> int:
        """Return the same without the reading."""
        return min(work.units(self.texts) + (work.units(self.lists) if self.lists else 0), MAX_WORK)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLimit:
    """The work of an operand of the outermost `&&`, and how much of it is allowed."""

    work: Work
    allowed: int

    def is_exceeded(self, sizes: Sizes) -> bool:
        """Whether the operand is not evaluated for values of these sizes."""
        return self.work.units(sizes) > self.allowed

    def describe(self, sizes: Sizes) -> str:
        """Return the reason why the operand is not evaluated for values of these sizes."""
        return _describe_excess(TOO_LONG, self.work.units(sizes), self.allowed)


def _describe_excess(what: str, seen: int, allowed: int) -> str:
    share = f": {math.ceil(100 * seen / allowed)} % of the work that is allowed" if allowed else ""
    return what + share


def limits(counted: Sequence[Work]) -> tuple[WorkLimit | None, ...]:
    """Return the limit of each operand of the outermost `&&`; None: it is below for any values.

    Operands are also evaluated one by one, so each has a share that does not depend on the values of others:
    those that never need an equal part of the bound leave the rest to the others.
    """
    left, share = MAX_WORK, 0
    for place, most in enumerate(sorted(each.most for each in counted)):
        share = left // (len(counted) - place)
        if most > share:
            break
        left -= most
    allowed = _round_share(share)
    return tuple(None if each.most <= allowed else WorkLimit(work=each, allowed=allowed) for each in counted)


def _round_share(share: int) -> int:
    """Round to sixteenths of the bound, so that an operand mostly has the same in different expressions."""
    step = MAX_WORK // 16
    return share // step * step if share >= step else step >> _doublings(math.ceil(step / max(1, share)))


def count_work(node: Node) -> Work:
    """Return the bound for an expression that is checked already."""
    counter = _Counter()
    counter.add(node, _COPYING, _RETURNING)
    return Work(linear=counter.found, products=tuple(counter.products))


def _matching_work(call: Call) -> int:
    """Return the work of matching one byte with the pattern of a call."""
    compiled = restrictions.pattern_of(call)
    size: int = compiled.programsize
    further = max(0, size - _INSTRUCTIONS)
    return (
        _MATCHING
        if _has_few_states(compiled)
        else _INSTRUCTION * (size - further) + _FURTHER_INSTRUCTION * further
    )


def _has_few_states(compiled: Any) -> bool:
    size: int = compiled.programsize
    ambiguities = _ambiguities(_FLAGS.sub("", compiled.pattern, count=1))
    return any(size <= most and ambiguities <= allowed for most, allowed in _FEW_STATES)


def pattern_bytes(part: Node) -> int:
    """Return the bytes that a part takes once it was matched with many texts: 0 if it has no pattern."""
    if not isinstance(part, Call) or not restrictions.is_regexp(part):
        return 0
    is_small = _has_few_states(restrictions.pattern_of(part))
    return restrictions.MAX_MEMORY // (_SMALLER if is_small else 1)


def _ambiguities(pattern: str) -> float:
    """Return how many parts of a pattern may have been matched or not when one more byte is read."""
    if "){" in pattern:
        return math.inf  # groups that are repeated contain any number
    repeating = len(_REPEATING.findall(pattern))
    counts = sum(int(most or least) for least, most in _COUNT.findall(pattern))
    alternatives = pattern.count("|") if repeating or counts else 0
    return len(_SEVERAL.findall(pattern)) + repeating + counts + alternatives


@dataclass(slots=True, kw_only=True)
class _Counter:
    """Adds up the work of a tree, from the top: each part with the work that a byte of its value causes."""

    only_length: bool = False  #: count the bytes of the value instead of the work
    found: _Sum = field(default_factory=_Sum)
    products: list[tuple[_Sum, _Sum]] = field(default_factory=list)

    def add(self, node: Node, text: int, items: int) -> None:
        """Add a part: `text` for each byte of its value if this is a text, `items` if it is a list."""
        if not self.only_length:
            self.found.constant += _NODE
        match node:
            case Literal(value=value):
                known = measure(value)
                self.found.constant += text * (known.bytes if known else _NUMBER)
            case Attribute(names=names):
                self._add_name(attribute_key(names[-1]), text, items)
            case ListOf(items=parts):
                # Converted to text, its items are written as expressions.
                self.found.constant += items * (_ITEM * len(parts) + len(render(node)))
                self._add_all(parts, items, items)
            case Conditional(condition=condition, then=then, otherwise=otherwise):
                self._add_all((condition,), self._own(_COPYING), 0)
                self._add_all((then, otherwise), text + self._own(_COPYING), items)
            case Chain(level=level) if level == ELVIS:
                self._add_all(children(node), text + self._own(_COPYING), items)
            case Subscript(of=of, index=index):
                self.add(of, self._own(_COPYING), max(text, items) + self._own(1))
                self.add(index, self._own(_COPYING), 0)
            case Call():
                self._add_call(node, text, items)
            case _:
                self.found.constant += text * _NUMBER
                self._add_read(children(node), _COPYING, 0)

    def _add_name(self, name: str, text: int, items: int) -> None:
        self.found.constant += text * _NUMBER
        self.found.of_texts[name] = self.found.of_texts.get(name, 0) + text
        self.found.of_lists[name] = self.found.of_lists.get(name, 0) + items

    def _add_call(self, call: Call, text: int, items: int) -> None:
        name, arguments = call.name.lower(), call.arguments
        if name == "ifthenelse":
            self._add_all(arguments[:1], self._own(_COPYING), 0)
            self._add_all(arguments[1:], text + self._own(_COPYING), items)
        elif (weight := _BUILDING.get(name)) is not None:
            weight = text + self._own(weight)
            self._add_all(arguments, weight, self._as_text(name, weight))
        else:
            self.found.constant += text * _NUMBER
            self._add_reading(name, call)

    def _add_reading(self, name: str, call: Call) -> None:
        arguments = call.arguments
        if restrictions.is_regexp(call):
            self._add_computed(arguments[1:2])
            weight = _matching_work(call)
            self._add_read(arguments[1:2], weight, weight + _RETURNING)
        elif (weight := _READING.get(name, 0)) > 0:
            if restrictions.is_version(call):
                self._add_computed(arguments)
            self._add_read(arguments, weight, self._as_text(name, weight))
            if not self.only_length:
                self._add_products(name, arguments)
        else:
            weight = _LISTS.get(name, _COPYING)
            self._add_read(arguments, weight, _LISTS.get(name, 0))

    def _as_text(self, name: str, weight: int) -> int:
        """Return the work for each byte of a list in place of a text; 0: it is an error there."""
        return weight * _ESCAPED + self._own(_WRITING) if name in _WRITERS else 0

    def _add_computed(self, arguments: tuple[Node, ...]) -> None:
        """Add the arguments that are computed in Python, with the items of lists."""
        if not self.only_length:
            for argument in arguments:
                self.found.constant += _COMPUTED
                self._add_items(argument)

    def _add_items(self, node: Node) -> None:
        if isinstance(node, Attribute):
            name = attribute_key(node.names[-1])
            self.found.of_items[name] = self.found.of_items.get(name, 0) + _COMPUTED_ITEM
        elif isinstance(node, ListOf):
            self.found.constant += _COMPUTED_ITEM * len(node.items)
        for part in children(node):
            self._add_items(part)

    def _add_products(self, name: str, arguments: tuple[Node, ...]) -> None:
        place = _SEPARATORS.get(name, len(arguments))
        if name in _PAIRS:
            self.products.append((self._length(arguments[:1], _PER_PAIR), self._length(arguments[1:2], 1)))
        if place < len(arguments):
            separators = self._length(arguments[place:], _PER_SEPARATOR)
            self.products.append((self._length(arguments[:place], 1), separators))

    def _length(self, parts: tuple[Node, ...], factor: int) -> _Sum:
        """Return the bytes of the parts as texts, multiplied."""
        inner = _Counter(only_length=True)
        inner._add_all(parts, factor, factor * _ESCAPED)
        return inner.found

    def _add_read(self, parts: tuple[Node, ...], text: int, items: int) -> None:
        """Add parts whose length is not handed on."""
        if not self.only_length:
            self._add_all(parts, text, items)

    def _add_all(self, parts: tuple[Node, ...], text: int, items: int) -> None:
        for part in parts:
            self.add(part, text, items)

    def _own(self, weight: int) -> int:
        return 0 if self.only_length else weight
